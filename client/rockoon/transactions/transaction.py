"""A transaction of a sender: one message that is delivered if a local transaction commits.

The message is stored first, as a half message that no consumer sees. Then the local transaction
runs. Commit turns the half message into a message of its topic, rollback deletes it. If the broker
receives neither, it checks with a producer of the same group.

A producer answers checks over one stream from every live broker. A sender can die between its half
message and the end of its transaction. So every producer of a group connects to all brokers, also
those it never sent to, and answers the checks of half messages that other producers of the group
have left behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from grpc import RpcError

from rockoon.callbacks import call, is_being_cancelled
from rockoon.errors import BrokerUnavailable, RockoonError, TransactionEnded
from rockoon.message import Batch, Message, SendResult
from rockoon_core.clock import Backoff
from rockoon_core.failed_call import from_rpc_error, may_sign_again
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import loggable
from rockoon_format.record import decode_record
from rockoon_proto.v1 import broker_pb2
from rockoon_proto.v1.broker_pb2 import CheckTransactionsRequest, TransactionCheck
from rockoon_proto.v1.nameserver_pb2 import BROKER

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


class Resolution(Enum):
    """Result of a transaction."""

    COMMIT = "commit"
    """The message is delivered."""
    ROLLBACK = "rollback"
    """The message is deleted."""
    UNKNOWN = "unknown"
    """Not known yet: the broker checks again later."""

    @property
    def on_wire(self) -> broker_pb2.Resolution:
        return _ON_WIRE[self]


_ON_WIRE: dict[Resolution, broker_pb2.Resolution] = {
    Resolution.COMMIT: broker_pb2.COMMIT,
    Resolution.ROLLBACK: broker_pb2.ROLLBACK,
    Resolution.UNKNOWN: broker_pb2.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class HalfPosition:
    """Position of a half message."""

    broker: str
    queue_offset: int
    physical_offset: int


EndCall = Callable[["Transaction", Resolution], Awaitable[broker_pb2.EndTransactionReply]]


class Transaction:
    """One transaction. Created by `TransactionalProducer.transaction` and `begin`.

    Attributes:
        message_id: the message's id (UNIQ_KEY), the same before and after the commit. If the local
            transaction stores it, the check can find out whether the local transaction committed.
        queue: the queue to which a commit appends the message.
        half: position of the half message.
        resolution: UNKNOWN while the transaction is open.
        result: position of the message after a commit.
    """

    __slots__ = ("_end", "half", "message_id", "queue", "resolution", "result")

    def __init__(
        self, message_id: str, queue: MessageQueue, half: HalfPosition, end: EndCall
    ) -> None:
        self.message_id = message_id
        self.queue = queue
        self.half = half
        self.resolution = Resolution.UNKNOWN
        self.result: SendResult | None = None
        self._end = end

    def __repr__(self) -> str:
        return f"Transaction({self.message_id}, {self.queue}, {self.resolution.value})"

    async def commit(self) -> SendResult:
        """Commit the transaction; return once the message is stored in its topic.

        Further calls return the same result.

        Raises:
            TransactionEnded: it was rolled back, or the broker has rolled it back after a timeout.
            RockoonError: no broker has confirmed the commit. It may be committed anyway; otherwise
                the check decides.
        """
        if self.result is None:
            self._decide(Resolution.COMMIT)
            reply = await self._end(self, Resolution.COMMIT)
            stored = reply.committed
            self.result = SendResult(
                queue=self.queue,
                queue_offset=stored.first_queue_offset,
                physical_offset=stored.first_physical_offset,
                message_id=self.message_id,
                store_timestamp_ms=stored.store_timestamp_ms,
                store_host=stored.store_host,
            )
        return self.result

    async def rollback(self) -> None:
        """Roll the transaction back; return once that is stored. Further calls have no effect.

        Raises:
            TransactionEnded: it was committed, or the broker has rolled it back after a timeout.
            RockoonError: no broker has confirmed the rollback; otherwise the check decides.
        """
        self._decide(Resolution.ROLLBACK)
        await self._end(self, Resolution.ROLLBACK)

    def _decide(self, resolution: Resolution) -> None:
        """Set the resolution before it is sent: a check in between gets the same answer."""
        if self.resolution not in (Resolution.UNKNOWN, resolution):
            raise TransactionEnded(outcome=f"by {self.resolution.value}")
        self.resolution = resolution


log = limited(logging.getLogger(__name__))


Check = Callable[[Message], Awaitable[Resolution] | Resolution]


"""Returns the result of a message's local transaction; async, or plain (runs in a thread)."""


Answer = Callable[[str, HalfPosition, Resolution], Awaitable[None]]


class TransactionChecks:
    """Keeps a stream to each live broker and answers its checks.

    Args:
        cluster: an open connection; its TaskGroup owns the tasks.
        client_id: id of this producer; unique.
        known: returns the producer's own knowledge of a message id; None if it has none.
        check: the user's check; called if the producer has no knowledge.
        answer: sends a resolution to a broker; called with message id, position of the half
            message, resolution.
        running_max: maximum number of parallel checks; further ones wait in the brokers.
        check_seconds_max: timeout of a check in seconds; a late check counts as UNKNOWN.
    """

    def __init__(
        self,
        cluster: "Connection",
        group: str,
        client_id: str,
        *,
        known: Callable[[str], Resolution | None],
        check: Check,
        answer: Answer,
        running_max: int,
        check_seconds_max: float,
    ) -> None:
        self._cluster = cluster
        self._request = CheckTransactionsRequest(producer_group=group, client_id=client_id)
        self._known = known
        self._check = check
        self._answer = answer
        self._slots = asyncio.Semaphore(running_max)
        self._check_seconds_max = check_seconds_max
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.asking: set[str] = set()
        """Brokers whose stream to this producer is open."""
        self._following = cluster.tasks.create_task(
            self._follow_brokers(), name=f"rockoon transaction checks of {group}"
        )

    async def close(self) -> None:
        """End the streams and the running checks."""
        tasks = [self._following, *self._streams.values(), *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _follow_brokers(self) -> None:
        changed = self._cluster.routes_changed
        while True:
            seen = changed.count
            live = {node.name for node in self._cluster.routes.nodes if node.kind == BROKER}
            for broker in live - self._streams.keys():
                self._streams[broker] = self._cluster.tasks.create_task(
                    self._listen(broker), name=f"rockoon transaction checks at {broker}"
                )
            for broker in self._streams.keys() - live:
                self._streams.pop(broker).cancel()
            await changed.wait(seen)

    async def _listen(self, broker: str) -> None:
        """Keep a check stream open for as long as the broker is in the routes."""
        backoff = Backoff()
        while True:
            try:
                call = self._cluster.broker(broker).CheckTransactions(
                    self._request, metadata=self._cluster.metadata
                )
                try:
                    async for check in call:
                        backoff.reset()
                        self.asking.add(broker)
                        if check.frame:
                            await self._start_check(broker, check)
                finally:
                    self.asking.discard(broker)
                    call.cancel()
            except RpcError as failure:
                error: RockoonError = from_rpc_error(failure, BrokerUnavailable, broker=broker)
                may_sign_again(self._cluster.access, error)
                log.debug("transaction checks at %s: %s", broker, error)
            except RockoonError as absent:
                log.debug("transaction checks at %s: %s", broker, absent)
            await asyncio.sleep(backoff.next_seconds())

    async def _start_check(self, broker: str, check: TransactionCheck) -> None:
        # While all slots are in use nothing is read, and the broker asks another producer.
        await self._slots.acquire()
        task = self._cluster.tasks.create_task(self._run(broker, check))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: self._slots.release())

    async def _run(self, broker: str, check: TransactionCheck) -> None:
        message = _message(broker, check.frame)
        resolution = self._known(message.message_id)
        if resolution is None:
            resolution = await self._ask(message)
        try:
            half = HalfPosition(broker, check.queue_offset, check.physical_offset)
            await self._answer(message.message_id, half, resolution)
        except RockoonError as failure:
            # The broker asks again, this producer or another one.
            log.warning(
                "could not send %s for transaction %s: %s; the broker will check it again",
                resolution.value,
                message.message_id,
                failure,
            )

    async def _ask(self, message: Message) -> Resolution:
        try:
            async with asyncio.timeout(self._check_seconds_max):
                answer = await call(self._check, message)
        except (Exception, asyncio.CancelledError) as failure:
            if is_being_cancelled():
                raise
            # Whatever the user's check raises counts as UNKNOWN.
            log.exception(
                "check of transaction %s failed; its result counts as UNKNOWN",
                message.message_id,
                exc_info=loggable(failure),
            )
            return Resolution.UNKNOWN
        if not isinstance(answer, Resolution):
            log.error(
                "check of transaction %s returned %r, not a Resolution; it counts as UNKNOWN",
                message.message_id,
                answer,
            )
            return Resolution.UNKNOWN
        return answer


def _message(broker: str, frame: bytes) -> Message:
    record = decode_record(frame, check_crc=False)
    queue = MessageQueue(record.topic.decode(), broker, record.queue_id)
    message: Message = Batch(queue, frame, [len(frame)])[0]
    return message
