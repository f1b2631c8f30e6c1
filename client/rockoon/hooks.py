"""Hooks: what producers and consumers tell of messages on their way, to whoever traces them.

A connection has one `Hooks`, or None; each part of it asks for those that it calls. Without them a
message costs one comparison with None. `rockoon.tracing.Tracing` implements them.

What a hook raises comes out of the call that it is told of: hooks must not raise.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rockoon.errors import RockoonError
from rockoon.message import Batch
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.receipt import Receipt
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import AppendRequest


class ProducerHooks(Protocol):
    """Told by one producer what becomes of its messages, in the event loop's thread."""

    @property
    def may_want(self) -> Callable[[], object] | None:
        """Asked for every message: `on_send` and `on_refused` are called where the answer is true.

        It costs every message, so it is no function of Python's; None: neither is ever called.
        """
        ...

    def on_send(self, receipt: Receipt) -> None:
        """A message was taken; until it is awaited its properties can be added to.

        Its place may change: one whose topic's route is not known yet moves to another batch.
        """

    def on_refused(self, topic: str, failure: RockoonError) -> None:
        """A message was not taken; `failure` is raised next."""

    def on_send_many(self, topic: str) -> AbstractContextManager[Callable[[int], None]] | None:
        """Many messages are about to be taken and awaited, within what is returned.

        Returns:
            Entered around the sends, it gives what is called with the number of messages when all
            are stored. None: `on_send` is not called for messages that are taken in chunks.
        """
        ...

    def on_encode(self, batch: ProducerBatch) -> None:
        """A batch is about to be made records: the last time to add to properties."""

    def on_batch_sent(self, batch: ProducerBatch, request: AppendRequest) -> None:
        """A batch goes to a broker, maybe again; `request` has what few requests have, and can be
        added to."""

    def on_completed(self, batch: ProducerBatch) -> None:
        """A batch is acknowledged or given up."""


class TransactionHooks(Protocol):
    """Told by one transactional producer of its half messages and their ends."""

    def on_begin(
        self, topic: str, properties: Mapping[str, str] | None
    ) -> "AbstractContextManager[HalfMessageHook | None]":
        """A half message is stored within what is returned; None: it is not of interest."""
        ...

    def on_end(
        self, message_id: str, topic: str, resolution: str
    ) -> AbstractContextManager[object]:
        """The broker is told "commit" or "rollback" within what is returned."""
        ...


class HalfMessageHook(Protocol):
    """Told of one half message."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What the message is sent with in place of the sender's properties."""
        ...

    def on_stored(self, message_id: str, queue: MessageQueue) -> None:
        """The broker has stored it."""


class Hooks(Protocol):
    """Told by one or several connections."""

    def for_producer(self) -> ProducerHooks:
        """Those of a new producer."""
        ...

    def for_transactions(self) -> TransactionHooks:
        """Those of a new transactional producer."""
        ...

    def around_handler(self, group: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What a push consumer of a group calls in place of its handler: async if that is."""
        ...

    def on_pulled(self, batch: Batch, frames: bytes, group: str, asked_ns: int) -> None:
        """A pull was answered with messages.

        Args:
            batch: the messages.
            frames: what it was made of.
            group: whose reader pulled; empty outside groups.
            asked_ns: when the pull began, epoch nanoseconds.
        """

    def on_commit(
        self, group: str, offsets: Iterable[tuple[MessageQueue, int]]
    ) -> AbstractContextManager[None]:
        """A group's progress is stored within what is returned.

        Args:
            group: whose.
            offsets: where each queue goes on.
        """
        ...

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """What is added to the metadata of a call."""
        ...
