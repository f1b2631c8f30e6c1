"""Hooks: callbacks of producers and consumers for message tracing.

A connection has one `Hooks` or None; its producers and consumers get their own hooks from it. None
costs one comparison per message. `rockoon.tracing.Tracing` implements these protocols.

A hook must not raise: its exception would fail the operation that it observes.
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
    """Hooks of one producer, called in the event loop's thread."""

    @property
    def may_want(self) -> Callable[[], object] | None:
        """Function that decides whether `on_send` or `on_refused` is called for a message.

        It is called for each message, so it must not be a Python function. None: `on_send` and
        `on_refused` are never called.
        """
        ...

    def on_send(self, receipt: Receipt) -> None:
        """A message was accepted. Until it is encoded, properties can be added.

        The message may still move to another batch if its topic's route is not known yet.
        """

    def on_refused(self, topic: str, failure: RockoonError) -> None:
        """A message was refused; `failure` is raised next."""

    def on_send_many(self, topic: str) -> AbstractContextManager[Callable[[int], None]] | None:
        """`send_many` is about to send and await messages.

        Returns:
            A context manager around the sends. It yields a function that is called with the number
            of messages once all are stored. None: `on_send` is not called for these messages.
        """
        ...

    def on_encode(self, batch: ProducerBatch) -> None:
        """A batch is about to be encoded: the last chance to add properties."""

    def on_batch_sent(self, batch: ProducerBatch, request: AppendRequest) -> None:
        """A batch is being sent or resent. `request` has the fields that few requests have; more
        can be added."""

    def on_completed(self, batch: ProducerBatch) -> None:
        """A batch was acknowledged, or its delivery failed finally."""


class TransactionHooks(Protocol):
    """Hooks of one transactional producer."""

    def on_begin(
        self, topic: str, properties: Mapping[str, str] | None
    ) -> "AbstractContextManager[HalfMessageHook | None]":
        """Return a context manager around storing a half message; it yields None if not traced."""
        ...

    def on_end(
        self, message_id: str, topic: str, resolution: str
    ) -> AbstractContextManager[object]:
        """Return a context manager around sending "commit" or "rollback" to the broker."""
        ...


class HalfMessageHook(Protocol):
    """Hook of one half message."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties that are sent instead of the sender's properties."""
        ...

    def on_stored(self, message_id: str, queue: MessageQueue) -> None:
        """The broker has stored the half message."""


class Hooks(Protocol):
    """Hooks of one or several connections."""

    def for_producer(self) -> ProducerHooks:
        """Return the hooks of a new producer."""
        ...

    def for_transactions(self) -> TransactionHooks:
        """Return the hooks of a new transactional producer."""
        ...

    def around_handler(self, group: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that wraps a push consumer's handler; async if the handler is async."""
        ...

    def on_pulled(self, batch: Batch, frames: bytes, group: str, asked_ns: int) -> None:
        """A pull returned messages.

        Args:
            frames: the records of the batch.
            group: consumer group of the reader; empty without a group.
            asked_ns: time of the pull request, epoch nanoseconds.
        """

    def on_commit(
        self, group: str, offsets: Iterable[tuple[MessageQueue, int]]
    ) -> AbstractContextManager[None]:
        """Return a context manager around a commit.

        Args:
            offsets: queues with their next offsets.
        """
        ...

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return metadata to add to each call."""
        ...
