"""Producer of messages that are delivered if and only if a local transaction commits.

    def check(message):
        return Resolution.COMMIT if is_paid(message.keys[0]) else Resolution.ROLLBACK

    producer = cluster.transactional_producer("payments", check=check)
    async with producer.transaction("paid", body, keys=order_id) as transaction:
        database.mark_paid(order_id)

Guarantee: once the half message is stored, the message reaches its topic if and only if the
transaction is committed, whichever processes die. If a sender dies before it has ended its
transaction, any live producer of its group answers for it through `check`.

Not guaranteed: that a half message is stored only once. If a broker dies between storing it and
replying, it is sent again with a new id, and the check is called for both. A check that looks for
`message.message_id` distinguishes them; one that uses another key may commit both.
`client/examples/pay_and_tell_sqlite.py` shows a check that never has to guess.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Unpack

from rockoon.callbacks import call
from rockoon.errors import (
    BrokerUnavailable,
    Busy,
    Internal,
    InvalidArgument,
    NoWritableQueue,
    QueueNotFound,
    RockoonError,
    StoreFailed,
    TimedOut,
    TopicNotWritable,
    TransactionEnded,
    TransactionNotFound,
)
from rockoon.net.addresses import born_host
from rockoon.net.forks import ClosedOnExit, closed
from rockoon.net.retried import retried
from rockoon.net.routes import TopicRoute
from rockoon.producer.options import HalfMessageOptions, renamed_key
from rockoon.producer.outgoing import (
    BODY_BYTES_MAX,
    BatchEncoder,
    Body,
    Extras,
    body_too_large,
    check_topic,
    encode_extras,
    to_body,
)
from rockoon.producer.queue_selectors import (
    KeyHash,
    RoundRobin,
    accepting,
    crc32_key_hash,
    for_keys,
)
from rockoon.transactions.transaction import (
    Check,
    HalfPosition,
    Resolution,
    Transaction,
    TransactionChecks,
)
from rockoon_core.clock import Backoff, Clock, wall_clock_ms
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_format.names import group_fault
from rockoon_format.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    encode,
)
from rockoon_proto.v1 import broker_pb2 as broker_pb

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

__all__ = ["Resolution", "Transaction", "TransactionalProducer"]

log = limited(logging.getLogger(__name__))

# Ends that no broker has confirmed, kept for later checks: at most this many.
_UNCONFIRMED_MAX = 10_000
# Timeout of one attempt of a call; the delivery timeout is for all attempts.
_TRY_SECONDS_MAX = 10.0

Execute = Callable[[Transaction], Awaitable[Resolution] | Resolution]
# After these errors the half message may or may not have been stored.
_AMBIGUOUS = (BrokerUnavailable, Internal, StoreFailed, TimedOut)


class TransactionalProducer(ClosedOnExit):
    """Sends messages that are delivered if and only if a local transaction commits. Created by
    `cluster.transactional_producer()`.

    Not thread-safe: must be used from the cluster's event loop.

    Args:
        cluster: an open connection, which closes the producer before itself.
        group: the producer group. Brokers send the checks of all half messages of the group to
            any live producer of the group, so each must be able to answer them.
        check: called with a Message; returns the result of its local transaction: COMMIT,
            ROLLBACK, or UNKNOWN to be asked again. UNKNOWN is also right while the transaction
            may still run in another process. Async, or plain (runs in a thread). An exception or
            a timeout after `check_seconds_max` counts as UNKNOWN.
        key_hash: maps an ordering key to a queue; see `rockoon.producer.queue_selectors`.
        clock: returns epoch milliseconds.
        delivery_timeout_seconds: timeout of storing a half message and of ending a transaction,
            with retries, in seconds.
        open_max: maximum number of open transactions.
        checks_max: maximum number of parallel checks.
        check_seconds_max: timeout of one check in seconds.

    Raises:
        InvalidArgument: the group's name is invalid, or a number is out of bounds.
        Closed: the connection is not open.
    """

    def __init__(
        self,
        cluster: "Connection",
        group: str,
        *,
        check: Check,
        key_hash: KeyHash = crc32_key_hash,
        clock: Clock = wall_clock_ms,
        delivery_timeout_seconds: float = 30.0,
        open_max: int = 10_000,
        checks_max: int = 32,
        check_seconds_max: float = 60.0,
    ) -> None:
        if fault := group_fault(group):
            raise InvalidArgument(reason=fault)
        if not callable(check):
            raise InvalidArgument(reason="check is not callable")
        if min(delivery_timeout_seconds, check_seconds_max, open_max, checks_max) <= 0:
            raise InvalidArgument(reason="timeouts and bounds must be above 0")
        self.group = group
        self._cluster = cluster
        self._key_hash = key_hash
        self._clock = clock
        self._timeout_seconds = delivery_timeout_seconds
        self._open_max = open_max
        self._instance_hash = secrets.randbits(32)
        self._encoder: BatchEncoder | None = None
        self._round_robin = RoundRobin(secrets.randbelow(1 << 16))
        # Knowledge of this producer that needs no user check, by message id.
        self._open: dict[str, Transaction] = {}
        self._sending: set[str] = set()
        self._unconfirmed: OrderedDict[str, Resolution] = OrderedDict()
        self._hooks = None if cluster.hooks is None else cluster.hooks.for_transactions()
        self._is_closed = False
        self._refused_in_child: str | None = None
        self._checks = TransactionChecks(
            cluster,
            group,
            f"{cluster.client_id}#{self._instance_hash:08x}",
            known=self._known,
            check=check,
            answer=self._answer,
            running_max=checks_max,
            check_seconds_max=check_seconds_max,
        )
        cluster.adopt(self)

    @property
    def asked_by(self) -> frozenset[str]:
        """Names of the brokers that can send checks to this producer now."""
        return frozenset(self._checks.asking)

    @asynccontextmanager
    async def transaction(
        self, topic: str, body: Body, **options: Unpack[HalfMessageOptions]
    ) -> AsyncIterator[Transaction]:
        """Commit the message when the block ends; roll it back if the block raises.

        The block may also end the transaction itself. If the commit fails after the block has
        succeeded, the error is raised, and the check will decide.

        Args:
            topic, body, options: as in `begin`.

        Raises:
            RockoonError: on enter, as `begin`; on exit, as `Transaction.commit`.
        """
        transaction = await self.begin(topic, body, **options)
        try:
            yield transaction
        except BaseException:
            if transaction.resolution is Resolution.UNKNOWN:
                await self._roll_back(transaction)
            raise
        if transaction.resolution is Resolution.UNKNOWN:
            await transaction.commit()

    async def send_in_transaction(
        self, topic: str, body: Body, execute: Execute, **options: Unpack[HalfMessageOptions]
    ) -> Transaction:
        """Send a message, run the local transaction, and end it accordingly, as in RocketMQ's API.

        Args:
            topic, body, options: as in `begin`.
            execute: the local transaction: called with the Transaction, returns a Resolution.
                Async, or plain (runs in a thread). After UNKNOWN or an exception the transaction
                stays open, because it may have been committed, and the check will decide.

        Returns:
            The transaction with `resolution` and `result`.

        Raises:
            RockoonError: as `begin` and `Transaction.commit`; also the exceptions of `execute`.
        """
        transaction = await self.begin(topic, body, **options)
        try:
            answer = await call(execute, transaction)
        finally:
            # From here on the check decides.
            if transaction.resolution is Resolution.UNKNOWN:
                self._open.pop(transaction.message_id, None)
        if not isinstance(answer, Resolution):
            raise InvalidArgument(reason=f"execute returned {answer!r}, not a Resolution")
        if answer is Resolution.COMMIT:
            await transaction.commit()
        elif answer is Resolution.ROLLBACK:
            await transaction.rollback()
        return transaction

    async def begin(
        self,
        topic: str,
        body: Body,
        *,
        keys: str | Sequence[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        check_after_seconds: int | None = None,
        key: str | None = None,
    ) -> Transaction:
        """Store a half message; the caller ends the transaction with `commit` or `rollback`.

        Args:
            topic, body, keys, tags, properties, queue, ordering_key: as in `Producer.send`. The
                order of messages is that of the commits, not of the half messages.
            check_after_seconds: how long the local transaction may run before the broker's first
                check, in seconds; None uses the broker's `transaction_timeout_ms`. While this
                producer lives, it answers UNKNOWN for its open transactions, and the broker keeps
                checking.
            key: deprecated: `ordering_key`.

        Raises:
            RockoonError: as `Producer.send` and its receipt. The message is not stored, or it is
                rolled back at the first check.
        """
        if key is not None:
            ordering_key = renamed_key(key, ordering_key)
        hooked = nullcontext() if self._hooks is None else self._hooks.on_begin(topic, properties)
        with hooked as half:
            if half is not None:
                properties = half.properties
            extras = self._extras(keys, tags, properties, check_after_seconds)
            transaction = await self._store_half(topic, body, extras, queue, ordering_key)
            if half is not None:
                half.on_stored(transaction.message_id, transaction.queue)
            return transaction

    async def _store_half(
        self,
        topic: str,
        body: Body,
        extras: Extras,
        queue: MessageQueue | None,
        ordering_key: str | None,
    ) -> Transaction:
        if self._is_closed:
            raise closed(self._refused_in_child, "the transactional producer")
        if len(self._open) >= self._open_max:
            raise Busy(reason=f"{len(self._open)} transactions are open")
        check_topic(topic)
        body = to_body(body)
        if len(body) > BODY_BYTES_MAX:
            raise body_too_large(len(body))
        if queue is not None and ordering_key is not None:
            raise InvalidArgument(reason="set a queue or an ordering_key, not both")
        if queue is not None and queue.topic != topic:
            raise InvalidArgument(reason=f"queue {queue} is not one of topic {topic!r}")
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        return await self._send_half(topic, body, extras, queue, ordering_key, deadline)

    async def close(self) -> None:
        """End the check streams. Checks of open transactions go to other producers of the group.

        Further calls have no effect.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._checks.close()
        self._cluster.release(self)

    def refuse_in_child(self, reason: str) -> None:
        """Implements `Forkable.refuse_in_child`."""
        self._is_closed, self._refused_in_child = True, reason

    # Half messages

    def _extras(
        self,
        keys: str | Sequence[str] | None,
        tags: str | None,
        properties: Mapping[str, str] | None,
        check_after_seconds: int | None,
    ) -> Extras:
        head, tail = encode_extras(keys, tags, properties)
        own = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self.group}
        if check_after_seconds is not None:
            if check_after_seconds < 0:
                raise InvalidArgument(reason=f"check_after_seconds is {check_after_seconds}")
            own[PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS] = str(int(check_after_seconds))
        return head, tail + encode(own)

    async def _send_half(
        self,
        topic: str,
        body: bytes,
        extras: Extras,
        queue: MessageQueue | None,
        key: str | None,
        deadline: float,
    ) -> Transaction:
        loop = asyncio.get_running_loop()
        encoder = await self._ready_encoder()
        backoff = Backoff()
        while True:
            chosen: MessageQueue | None = None
            try:
                route = await self._cluster.route(
                    topic, retry_seconds=max(deadline - loop.time(), 0)
                )
                chosen = self._choose(route, queue, key)
                return await self._send_once(encoder, chosen, body, extras, deadline)
            except RockoonError as error:
                # A broker may not know a new queue yet, or may know of its deletion first.
                retriable = error.retriable or (
                    isinstance(error, QueueNotFound) and chosen is not None and chosen != queue
                )
                pause = backoff.next_seconds()
                if not retriable or loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _send_once(
        self,
        encoder: BatchEncoder,
        queue: MessageQueue,
        body: bytes,
        extras: Extras,
        deadline: float,
    ) -> Transaction:
        stub = self._cluster.broker(queue.broker)
        ids = encoder.next_ids(1)
        message_id = ids.decode()
        try:
            frames, lengths = encoder.encode(
                queue.topic.encode(), queue.queue_id, [body], {0: extras}, ids, self._clock()
            )
        except ValueError as failure:
            raise InvalidArgument(reason=str(failure)) from failure
        request = broker_pb.AppendRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            frames=frames,
            record_lengths=lengths,
            route_revision=self._cluster.routes.needed_revision(queue.topic),
            handling=broker_pb.HALF,
        )
        # The broker may check the message before its reply arrives.
        self._sending.add(message_id)
        try:
            reply: broker_pb.AppendReply = await self._cluster.call(
                stub.Append,
                request,
                unavailable=BrokerUnavailable,
                timeout_seconds=self._try_seconds(deadline),
                broker=queue.broker,
            )
        except RockoonError as error:
            if isinstance(error, _AMBIGUOUS):
                self._record_unconfirmed(message_id, Resolution.ROLLBACK)
            raise
        except asyncio.CancelledError:
            self._record_unconfirmed(message_id, Resolution.ROLLBACK)
            raise
        finally:
            self._sending.discard(message_id)
        where = reply.appended
        half = HalfPosition(queue.broker, where.first_queue_offset, where.first_physical_offset)
        transaction = Transaction(message_id, queue, half, self._end)
        self._open[message_id] = transaction
        return transaction

    def _choose(
        self, route: TopicRoute, queue: MessageQueue | None, key: str | None
    ) -> MessageQueue:
        if not route.writable:
            raise TopicNotWritable(topic=route.name)
        if queue is not None:
            if queue not in route.create_revisions:
                raise QueueNotFound(topic=route.name, queue=queue.queue_id, broker=queue.broker)
            return queue
        routes = self._cluster.routes
        if key is not None and route.queues:
            queues = for_keys(route.queues, routes.drained)
            return queues[self._key_hash(key) % len(queues)]
        chosen = self._round_robin.choose(
            accepting(route.queues, routes.drained),
            lambda each: routes.broker_address(each.broker) is not None,
        )
        if chosen is None:
            raise NoWritableQueue(topic=route.name)
        return chosen

    async def _ready_encoder(self) -> BatchEncoder:
        if self._encoder is None:
            host = await born_host(self._cluster.nameservers[0])
            self._encoder = self._encoder or BatchEncoder(host, self._instance_hash, self._clock)
        return self._encoder

    def _record_unconfirmed(self, message_id: str, resolution: Resolution) -> None:
        self._unconfirmed[message_id] = resolution
        while len(self._unconfirmed) > _UNCONFIRMED_MAX:
            self._unconfirmed.popitem(last=False)

    # Ends

    async def _end(
        self, transaction: Transaction, resolution: Resolution
    ) -> broker_pb.EndTransactionReply:
        message_id, topic = transaction.message_id, transaction.queue.topic
        hooks, name = self._hooks, resolution.name.lower()
        try:
            with nullcontext() if hooks is None else hooks.on_end(message_id, topic, name):
                reply = await self._send_end(transaction.half, resolution, from_check=False)
        except (TransactionEnded, TransactionNotFound):
            raise
        except BaseException:
            self._record_unconfirmed(message_id, resolution)
            raise
        finally:
            self._open.pop(message_id, None)
        self._unconfirmed.pop(message_id, None)
        return reply

    async def _answer(self, message_id: str, half: HalfPosition, resolution: Resolution) -> None:
        await self._send_end(half, resolution, from_check=True)
        if resolution is not Resolution.UNKNOWN:
            self._unconfirmed.pop(message_id, None)

    async def _send_end(
        self, half: HalfPosition, resolution: Resolution, *, from_check: bool
    ) -> broker_pb.EndTransactionReply:
        """Send the end of a transaction; retry until the broker has confirmed it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds
        request = broker_pb.EndTransactionRequest(
            producer_group=self.group,
            queue_offset=half.queue_offset,
            physical_offset=half.physical_offset,
            resolution=resolution.on_wire,
            from_check=from_check,
        )

        async def send_once() -> broker_pb.EndTransactionReply:
            stub = await self._cluster.wait_broker(half.broker, max(deadline - loop.time(), 0))
            reply: broker_pb.EndTransactionReply = await self._cluster.call(
                stub.EndTransaction,
                request,
                unavailable=BrokerUnavailable,
                timeout_seconds=self._try_seconds(deadline),
                broker=half.broker,
            )
            return reply

        return await retried(send_once, self._timeout_seconds)

    async def _roll_back(self, transaction: Transaction) -> None:
        """Roll back after an exception; an error of the rollback must not replace it."""
        try:
            await transaction.rollback()
        except RockoonError as error:
            log.warning("rollback of %s failed, the check decides: %s", transaction, error)

    def _known(self, message_id: str) -> Resolution | None:
        """Return the producer's own knowledge of a half message; None if only `check` knows."""
        transaction = self._open.get(message_id)
        if transaction is not None:
            return transaction.resolution
        if message_id in self._sending:
            return Resolution.UNKNOWN
        return self._unconfirmed.get(message_id)

    def _try_seconds(self, deadline: float) -> float:
        left = deadline - asyncio.get_running_loop().time()
        return min(max(left, 0.001), _TRY_SECONDS_MAX)
