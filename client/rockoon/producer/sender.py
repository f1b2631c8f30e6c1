"""Sender: connects the batch scheduler, which does no I/O, with the append streams of the brokers.

Batches are sent at the end of the loop iteration in which they became ready. If the program awaits
each message, `ready` sends the batch immediately. One task per broker runs the append stream, one
task follows the routes, one task fails overdue batches.
All state belongs to the event loop; there are no locks.
"""

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rockoon.errors import (
    Busy,
    Closed,
    MalformedBatch,
    NoExternalAddress,
    NotAuthenticated,
    NotEnoughReplicas,
    NotLeader,
    NotReady,
    QueueNotFound,
    RockoonError,
    StoreNotWritable,
    TopicNotFound,
    TopicNotWritable,
    WrongCluster,
    from_wire,
)
from rockoon.hooks import ProducerHooks
from rockoon.net.large_replies import Answer, StoredBatch
from rockoon.net.routes import TopicRoute
from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch, fresh
from rockoon.producer.append_requests import AppendRequests, combined
from rockoon.producer.append_stream import AppendStream
from rockoon.producer.batch_scheduler import BatchScheduler, Shipment
from rockoon.producer.sequences import SequenceBook
from rockoon.producer.settings import ProducerSettings
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff, Clock
from rockoon_core.failed_call import may_sign_again
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node

if TYPE_CHECKING:
    from rockoon.net.connection import Connection
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub

log = limited(logging.getLogger(__name__))

# Minimum time between two checks for expired batches and overdue replies.
_SWEEP_SECONDS = 0.25
# A sender that never blocks must yield to the event loop after this long, so that replies and
# timers are handled.
_TURN_SECONDS = 0.005
# Batches of more bytes are sent in several loop iterations: encoding this many takes a millisecond,
# and streams must be able to write in between.
_TURN_BYTES = 512 << 10
# Time that `close` waits for the brokers to end their streams; a broker that hangs never does.
_FINISH_SECONDS_MAX = 1.0
# Number of checks after which the stream to a replaced process is interrupted. Counted in checks,
# not in seconds: if this process was suspended, it must first read the replies that have arrived.
_REPLACED_CHECKS_MAX = 2
# A program that never flushes must not fill its memory with failed batches.
_UNREPORTED_BATCHES_MAX = 1000

_BROKER_WIDE = (Busy, NotReady, StoreNotWritable, NotLeader, NotEnoughReplicas)
_WRONG_QUEUE = (QueueNotFound, TopicNotFound)


class Sender:
    """Sends the batches of one producer, and sends them again after failures.

    Args:
        cluster: the connection, entered; its TaskGroup owns the tasks.
        clock: epoch milliseconds.
        on_route: called when the queues of a topic become known or change.
        on_topic_dropped: called when a topic does not exist or is not writable.
        hooks: called for every batch that is sent or completed.
    """

    def __init__(
        self,
        cluster: "Connection",
        settings: ProducerSettings,
        clock: Clock,
        on_route: Callable[[TopicRoute], None],
        on_topic_dropped: Callable[[str], None],
        hooks: ProducerHooks | None,
    ) -> None:
        self._sequences = SequenceBook(new_producer_id) if settings.idempotent else None
        self.accumulator = Accumulator(self._flush_now, self._sequences)
        self.completed = Changes()
        """Counts batches that were acknowledged or have failed."""
        self.routes: dict[str, TopicRoute] = {}
        """Routes of the writable topics."""
        self.drained: frozenset[str] = frozenset()
        """Names of the drained brokers."""
        tasks = cluster.tasks
        self._cluster = cluster
        self._hooks = hooks
        self._settings = settings
        self._on_route = on_route
        self._on_topic_dropped = on_topic_dropped
        self._loop = asyncio.get_running_loop()
        self._requests = AppendRequests(cluster, settings, clock, hooks)
        # Encoded, not submitted batches by shipment: broker, first request's id, batches, requests.
        self._encoded: dict[Shipment, tuple[str, int, list[ProducerBatch], list[bytes]]] = {}
        self._scheduler = BatchScheduler(
            self.accumulator, settings.in_flight_max, secrets.randbelow(1 << 16)
        )
        # `routes_changed.count` of the routes that were applied last.
        self._routes_seen = -1
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._streams: dict[str, tuple[AppendStream, asyncio.Task[None]]] = {}
        # Streams to broker processes that were replaced, for example to the former leader of a
        # log, with the task of the stream and the number of checks since. A leader that is replaced
        # as planned sends its last replies before the routes change, but the new routes may arrive
        # first. Without these replies, stored batches would be sent again and stored twice.
        self._replaced: dict[AppendStream, tuple[asyncio.Task[None], int]] = {}
        # Failed batches with messages that no task awaits, oldest first.
        self._unreported: list[ProducerBatch] = []
        # Address, epoch and start time of each broker's process in the latest routes.
        self._known_processes: dict[str, tuple[str, int, int]] = {}
        # Brokers without an address for this client that are already in the program's log.
        self._unreachable: set[str] = set()
        # Callbacks run in this context and not in the one of a sending task: hooks must not run
        # within the trace of one message.
        self._context = contextvars.copy_context()
        # False until the address of this host is known.
        self._can_send = False
        # Receives the exception with which sending failed; nothing is sent after that.
        self._send_failed: asyncio.Future[None] = self._loop.create_future()
        self._next_send: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Number of messages that were sent last, and the batches that `_TURN_BYTES` has postponed.
        self._last_count = 0
        self._postponed: Iterator[ProducerBatch] | None = None
        # Set when the loop time of the next sweep must be computed again.
        self._sweep_wanted = asyncio.Event()
        self._is_sweeping, self._swept_at = False, 0.0
        self._turn_due = 0.0
        self._tasks = [
            tasks.create_task(work, name=f"rockoon producer {name}")
            for name, work in (
                ("sends", self._enable_sends()),
                ("routes", self._follow_routes()),
                ("sweep", self._sweep_forever()),
            )
        ]

    # For the producer

    def ready(self, batch_queue: BatchQueue) -> None:
        """Schedule a batch queue that has a new or a full batch."""
        if (
            self._last_count == len(self.accumulator.pending) == 1
            and self._next_send is None
            and self._postponed is None
            and self._routes_seen == self._cluster.routes_changed.count
            and self._hooks is None
        ):
            # A program that awaits each message sends nothing else in this loop iteration, so
            # there is nothing to collect until its end. Not with hooks: their batches must be sent
            # in `_context`. Not while new routes are not applied: the topic may have been deleted
            # and created again.
            batch_queue.is_flushing = True
            self._send(batch_queue)
        else:
            self._scheduler.ready(batch_queue)
            self._send_soon()
        if not self._is_sweeping:
            self._schedule_sweep()
        if batch_queue.topic not in self.routes:
            self.resolve(batch_queue.topic)

    def add_route(self, route: TopicRoute) -> None:
        """Apply a route that the caller has looked up, unless the topic has a route already."""
        if route.name not in self.routes:
            self._apply_route(route)

    def refresh_route(self, topic: str) -> TopicRoute | None:
        """Return the current route of a topic.

        The task that follows the routes may apply a change one loop iteration later.
        """
        current = self._cluster.routes.topic(topic)
        if current is not None and current != self.routes.get(topic):
            self._apply_route(current)
        return self.routes.get(topic)

    def resolve(self, topic: str) -> None:
        """Start a lookup of a topic's route, unless one is running."""
        # Messages that wait for the route have deadlines.
        self._schedule_sweep()
        if topic not in self._resolving:
            self._resolving[topic] = self._cluster.tasks.create_task(
                self._resolve(topic), name=f"rockoon producer route of {topic}"
            )

    @property
    def is_running(self) -> bool:
        """False once one of the permanent tasks has ended: no batch will be delivered any more."""
        return not any(task.done() for task in self._tasks)

    def must_yield(self) -> bool:
        """Return whether the caller must yield to the event loop now.

        It must if unsent batches or requests need a loop iteration, or if this method last returned
        True more than `_TURN_SECONDS` ago.
        """
        now = self._loop.time()
        is_behind = self._next_send is not None or any(
            each.unwritten for each, _ in self._streams.values()
        )
        if not is_behind and now < self._turn_due:
            return False
        self._turn_due = now + _TURN_SECONDS
        return True

    def complete(self, batch: ProducerBatch, error: RockoonError) -> None:
        """Fail a batch that is not in flight."""
        self.accumulator.complete(batch, error)
        self._record_completed(batch)

    def raise_unreported(self) -> None:
        """Raise, once, the first failure of messages that no task awaits, if there is one."""
        batches, self._unreported = self._unreported, []
        # Checked again, because a task may have awaited messages after their failure.
        failed = [batch for batch in batches if batch.unseen_failures]
        if not failed:
            return
        error = failed[0].outcome
        assert isinstance(error, RockoonError)
        raised = fresh(error)
        messages = sum(batch.unseen_failures for batch in failed)
        raised.add_note(f"{messages} messages that no task awaited were not delivered")
        raise raised

    async def close(self) -> None:
        """End streams and tasks; batches that are still pending fail with Closed."""
        for stream, _ in self._streams.values():
            stream.finish()
        tasks = [task for task, _ in self._replaced.values()]
        tasks += [task for _, task in self._streams.values()]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_FINISH_SECONDS_MAX)
        finally:
            self._stop_sends()
            for task in (*self._tasks, *self._resolving.values(), *tasks):
                task.cancel()
            for batch in list(self.accumulator.pending):
                if batch.sequence is not None:
                    # Its reply may be on the way and is not read any more: the error must not say
                    # that the batch is not stored.
                    batch.sequence.may_be_stored = True
                self.complete(batch, Closed(what="the producer"))

    # Sending

    def end_pauses(self) -> None:
        """Send batches that wait for more messages: the program waits for capacity."""
        self._scheduler.end_pauses()
        self._send_soon()

    def _flush_now(self, batch_queue: BatchQueue) -> None:
        self._scheduler.ready(batch_queue)
        self._send_soon()

    async def _enable_sends(self) -> None:
        """Enable sending, then wait; raises the exception with which sending fails."""
        await self._requests.find_host()
        self._can_send = True
        self._send_soon()
        await self._send_failed

    def _stop_sends(self) -> None:
        self._can_send = False
        for handle in (self._next_send, self._timer):
            if handle is not None:
                handle.cancel()

    def _send_soon(self) -> None:
        """Send at the end of this loop iteration."""
        if self._next_send is None:
            self._next_send = self._loop.call_soon(self._send, context=self._context)

    def _send(self, single: BatchQueue | None = None) -> None:
        """Send the batches that may be sent now. `single`: the only batch queue that has a batch to
        send: handled in fewer steps."""
        if self._next_send is not None:
            self._next_send.cancel()
            self._next_send = None
        if self._can_send and not self._send_failed.done():
            try:
                if single is None:
                    self._send_all()
                    return
                batch = self._scheduler.assigned_single(single, self._loop.time())
                if batch is None:
                    self._set_timer(self._scheduler.next_alarm())
                else:
                    self._last_count = len(batch.bodies)
                    self._send_single(batch)
            except Exception as failure:  # noqa: BLE001 - `_enable_sends` raises it
                self._send_failed.set_exception(failure)

    def _send_all(self) -> None:
        turn_bytes = turn_count = 0
        assignments = self._postponed or self._scheduler.assignments(self._loop.time())
        self._postponed = None
        for batch in assignments:
            self._encode(batch)
            turn_bytes += batch.bytes
            turn_count += len(batch.bodies)
            if turn_bytes >= _TURN_BYTES:
                self._postponed = assignments
                self._send_soon()
                break
        self._submit_encoded()
        if turn_count:
            self._last_count = turn_count
        if self._postponed is None:
            self._set_timer(self._scheduler.next_alarm())

    def _set_timer(self, when: float | None) -> None:
        if self._timer is not None:
            if when == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        self._send()

    def _encode(self, batch: ProducerBatch) -> None:
        """Encode a batch and add its request to those of its shipment."""
        queue, shipment = batch.queue, batch.shipment
        try:
            request = self._requests.encode(batch, self._loop.time())
        except MalformedBatch as failure:
            self._fail(batch, failure)
            return
        assert queue is not None
        assert shipment is not None
        encoded = self._encoded.get(shipment)
        if encoded is None:
            first_id = self._requests.last_id
            encoded = self._encoded[shipment] = (queue.broker, first_id, [], [])
        encoded[2].append(batch)
        encoded[3].append(request)

    def _submit_encoded(self) -> None:
        now = self._loop.time()
        for broker, first_id, batches, requests in self._encoded.values():
            self._stream(broker).submit(batches, combined(requests), first_id, now)
        self._encoded.clear()

    def _send_single(self, batch: ProducerBatch) -> None:
        """Encode and submit a batch that is the only one of its shipment."""
        now = self._loop.time()
        try:
            request = self._requests.encode(batch, now)
        except MalformedBatch as failure:
            self._fail(batch, failure)
            return
        assert batch.queue is not None
        broker = batch.queue.broker
        known = self._streams.get(broker)
        stream = self._stream(broker) if known is None else known[0]
        stream.submit((batch,), request, self._requests.last_id, now)

    def _stream(self, broker: str) -> AppendStream:
        known = self._streams.get(broker)
        if known is not None:
            return known[0]

        def connect() -> "tuple[str, BrokerAsyncStub]":
            stub = self._cluster.broker(broker)
            return self._cluster.routes.broker_address(broker) or "", stub

        metadata: tuple[tuple[str, str | bytes], ...] = self._cluster.metadata
        metadata += self._cluster.agent.metadata()
        stream = AppendStream(broker, connect, metadata, self)
        task = self._cluster.tasks.create_task(
            stream.run(), name=f"rockoon producer stream to {broker}"
        )
        self._streams[broker] = (stream, task)
        return stream

    # Events of the streams

    def on_batches_max(self, broker: str, batches_max: int) -> None:
        """Apply the maximum of batches in a message that a broker has announced."""
        self._scheduler.set_batches_max(broker, batches_max)

    def on_answer(self, batch: ProducerBatch, answer: Answer) -> None:
        """Complete a batch that a broker has stored, or retry or fail a batch that it refused."""
        if isinstance(answer, StoredBatch) or answer.HasField("appended"):
            stored = answer if isinstance(answer, StoredBatch) else answer.appended
            self._scheduler.acknowledged(batch, stored, self._loop.time())
            if self._hooks is not None:
                self._hooks.on_completed(batch)
            self.completed.notify()
        else:
            self._retry_or_fail(batch, from_wire(answer.error))
        if self._scheduler.ready_queues:
            self._send_soon()

    def on_broken(self, broker: str, batches: list[ProducerBatch], error: RockoonError) -> None:
        """Send the batches of a broken stream again, or fail them if a retry is useless."""
        for batch in batches:
            if batch.sequence is not None:
                batch.sequence.may_be_stored = True
        is_final = isinstance(error, WrongCluster) or (
            isinstance(error, NotAuthenticated) and not may_sign_again(self._cluster.access, error)
        )
        if is_final:
            for batch in batches:
                self._fail(batch, error)
        else:
            # A broker that stops ends its streams after the last reply: no reason for a warning.
            level = logging.WARNING if batches else logging.INFO
            log.log(
                level, "stream to %s: %s; %d batches are sent again", broker, error, len(batches)
            )
            now = self._loop.time()
            # Each is put in front of its batch queue, so the newest batch comes first and the
            # oldest ends up at the head.
            for batch in reversed(batches):
                if deleted := self._deleted(batch.batch_queue):
                    self._fail(batch, deleted)
                else:
                    self._scheduler.refused(batch, error, now, blame_broker=True)
        self._send_soon()

    def _retry_or_fail(self, batch: ProducerBatch, error: RockoonError) -> None:
        # A deposed leader may have written the batch, and its followers may have copied it.
        if isinstance(error, NotLeader) and batch.sequence is not None:
            batch.sequence.may_be_stored = True
        # A broker that does not know the queue has older routes than this producer, or newer ones
        # in which the topic is deleted. After a deletion this producer's routes follow soon, and
        # all batches of the topic fail. If the broker has discarded the sequence numbers of this
        # producer, and no earlier attempt can have stored the batch, the numbering of the queue is
        # restarted, and the batch is sent again.
        is_renewed = self._sequences is not None and self._sequences.renew_if_unknown(batch, error)
        if not (error.retriable or isinstance(error, _WRONG_QUEUE) or is_renewed):
            self._fail(batch, error)
        elif deleted := self._deleted(batch.batch_queue):
            self._fail(batch, deleted)
        else:
            self._scheduler.refused(
                batch, error, self._loop.time(), blame_broker=isinstance(error, _BROKER_WIDE)
            )

    def _deleted(self, batch_queue: BatchQueue) -> RockoonError | None:
        """Return an error if the topic or queue was deleted while a batch was in flight."""
        route = self.routes.get(batch_queue.topic)
        if route is None:
            return TopicNotFound(topic=batch_queue.topic)
        if batch_queue.queue is not None and batch_queue.queue not in route.create_revisions:
            return _queue_not_found(batch_queue.queue)
        return None

    def _fail(self, batch: ProducerBatch, error: RockoonError) -> None:
        self._scheduler.failed(batch, error, self._loop.time())
        self._record_completed(batch)

    def _record_completed(self, batch: ProducerBatch) -> None:
        if isinstance(batch.outcome, RockoonError) and batch.unseen_failures:
            self._unreported.append(batch)
            del self._unreported[:-_UNREPORTED_BATCHES_MAX]
        if self._hooks is not None:
            self._hooks.on_completed(batch)
        self.completed.notify()

    # Routes

    async def _resolve(self, topic: str) -> None:
        backoff = Backoff(seconds_max=0.25)
        try:
            while True:
                try:
                    self._apply_route(await self._cluster.route(topic, retry_seconds=0))
                except RockoonError as error:
                    if not error.retriable:
                        self._drop_topic(topic, error)
                        return
                    self._scheduler.set_unknown(topic, error)
                else:
                    return
                if not self._has_pending(topic):
                    return
                await asyncio.sleep(backoff.next_seconds())
        finally:
            del self._resolving[topic]

    def _has_pending(self, topic: str) -> bool:
        return any(batch.batch_queue.topic == topic for batch in self.accumulator.pending)

    async def _follow_routes(self) -> None:
        changed = self._cluster.routes_changed
        while True:
            # Read before the routes: a change in between then causes another round.
            seen = self._routes_seen = changed.count
            routes = self._cluster.routes
            brokers = [node for node in routes.nodes if node.kind == BROKER]
            self._scheduler.set_live(
                {node.name for node in brokers if node.address},
                {
                    each.name: self._unreachable_error(each.name)
                    for each in brokers
                    if not each.address
                },
            )
            self._detect_restarts(brokers)
            self._detect_drains(routes.drained)
            for topic, route in list(self.routes.items()):
                current = routes.topic(topic)
                if current is None:
                    self._drop_topic(topic, TopicNotFound(topic=topic))
                elif current != route:
                    self._apply_route(current)
            for broker, (stream, task) in list(self._streams.items()):
                address = routes.broker_address(broker)
                if address is not None and stream.address not in (None, address):
                    del self._streams[broker]
                    self._replaced[stream] = task, 0
                    stream.mark_replaced()
                    self.on_batches_max(broker, 1)
                    self._swept_at = self._loop.time()
                    self._schedule_sweep()
            self._send_soon()
            await changed.wait(seen)

    def _detect_restarts(self, brokers: Sequence[Node]) -> None:
        # After a fail-over a new process leads the log. If the routes changed from the former
        # process to this one in one step, `set_live` has not seen the broker as absent.
        known = self._known_processes
        now = {each.name: (each.address, each.epoch, each.started_at_ms) for each in brokers}
        for name, process in now.items():
            if known.get(name, process) != process:
                self._scheduler.on_broker_restart(name)
        self._known_processes = now

    def _detect_drains(self, drained: frozenset[str]) -> None:
        if drained != self.drained:
            self.drained = drained
            self._scheduler.set_drained(drained)
            for route in self.routes.values():
                # Keys have other queues now.
                self._on_route(route)

    def _unreachable_error(self, broker: str) -> RockoonError:
        """Return why messages cannot be sent to a live broker.

        The first time the error is logged as well, because messages that go to other brokers
        instead never raise it.
        """
        error = NoExternalAddress(name=broker)
        if broker not in self._unreachable:
            self._unreachable.add(broker)
            log.warning("%s", error)
        return error

    def _apply_route(self, route: TopicRoute) -> None:
        if not route.writable:
            self._drop_topic(route.name, TopicNotWritable(topic=route.name))
            return
        known = self.routes.get(route.name)
        if self._sequences is not None and known is not None:
            for queue, create_revision in route.create_revisions.items():
                if known.create_revisions.get(queue, create_revision) != create_revision:
                    # The queue was deleted and created again. Its broker has none of the numbers,
                    # and would refuse a batch that continues them as a gap.
                    self._sequences.renew(queue)
        self.routes[route.name] = route
        self._scheduler.set_queues(route.name, route.queues)
        for batch_queue in self.accumulator.batch_queues_of(route.name):
            if batch_queue.queue is not None and batch_queue.queue not in route.create_revisions:
                queue = batch_queue.queue
                # Without this, sends would use the batch queue and never check the route.
                self.accumulator.drop(batch_queue)
                for batch in batch_queue.remove_all():
                    self.complete(batch, _queue_not_found(queue))
        # Last: messages that waited for the route go to batch queues that must find it known.
        self._on_route(route)
        self._send_soon()

    def _drop_topic(self, topic: str, error: RockoonError) -> None:
        self.routes.pop(topic, None)
        self._scheduler.drop_topic(topic)
        for batch_queue in self.accumulator.batch_queues_of(topic):
            for batch in batch_queue.remove_all():
                self.complete(batch, error)
        if self._sequences is not None:
            self._sequences.drop_topic(topic)
        self._on_topic_dropped(topic)
        # For the batch queues of the topic.
        self._schedule_sweep()

    # Deadlines

    def _schedule_sweep(self) -> None:
        self._is_sweeping = True
        self._sweep_wanted.set()

    async def _sweep_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout_at(self._next_sweep()):
                    await self._sweep_wanted.wait()
                self._sweep_wanted.clear()
            except TimeoutError:
                self._sweep()
            self.accumulator.drop_idle(self.routes)

    def _next_sweep(self) -> float | None:
        """Return the loop time at which a batch or a reply can be overdue; None: none is pending.

        Not checked at a fixed interval: the checks of a thousand producers in a program would
        cost a fifth of its CPU. Only the oldest batch and the oldest submission of each stream are
        examined: later ones have later deadlines.
        """
        now = self._loop.time()
        earliest = self._swept_at + _SWEEP_SECONDS
        if self._replaced:
            return earliest
        oldest = [stream.oldest() for stream, _ in self._streams.values()]
        since = [each[1] for each in oldest if each is not None]
        pending = next(iter(self.accumulator.pending), None)
        if pending is None and not since:
            self._is_sweeping = False
            return None
        due = min([now, *since]) + self._settings.reply_timeout_seconds
        return max(due if pending is None else min(due, pending.deadline), earliest)

    def _sweep(self) -> None:
        """Fail expired batches, and interrupt the streams of brokers that do not reply."""
        now = self._swept_at = self._loop.time()
        for batch in self._scheduler.expire(now):
            self._record_completed(batch)
        for stream, _ in self._streams.values():
            oldest = stream.oldest()
            if oldest is None:
                continue
            batch, since = oldest
            if now >= batch.deadline or now - since >= self._settings.reply_timeout_seconds:
                stream.interrupt()
        self._check_replaced()

    def _check_replaced(self) -> None:
        """Remove ended streams to replaced processes; interrupt those that do not end."""
        for stream, (task, checks) in list(self._replaced.items()):
            if task.done():
                del self._replaced[stream]
                continue
            self._replaced[stream] = task, checks + 1
            if checks + 1 >= _REPLACED_CHECKS_MAX:
                stream.interrupt()


def new_producer_id() -> int:
    """Return a unique producer id: 64 random bits, not all 0."""
    return secrets.randbits(64) or 1


def _queue_not_found(queue: MessageQueue) -> QueueNotFound:
    return QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
