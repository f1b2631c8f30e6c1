"""Sender: the producer's tasks, between the batch scheduler, which is pure, and brokers' streams.

`Pump` says when batches are handed out. One task per broker sends them and takes the answers, one
follows the routes, one gives up what is overdue. All state is the event loop's: nothing is locked.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
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
from rockoon.net.append_replies import Answer, Stored
from rockoon.net.routes import TopicRoute
from rockoon.producer.accumulator import Accumulator, BatchQueue, ProducerBatch
from rockoon.producer.append_stream import AppendStream
from rockoon.producer.batch_scheduler import BatchScheduler
from rockoon.producer.left_streams import LeftStreams
from rockoon.producer.pump import Pump
from rockoon.producer.requests import AppendRequests, joined
from rockoon.producer.sequences import SequenceBook
from rockoon.producer.settings import ProducerSettings
from rockoon.producer.shipment import Shipment
from rockoon.producer.unreported_failures import UnreportedFailures
from rockoon_core.backoff import Backoff
from rockoon_core.changes import Changes
from rockoon_core.clock import Clock
from rockoon_core.failed_call import clock_corrected
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node

if TYPE_CHECKING:
    from rockoon.net.connection import Connection
    from rockoon_proto.v1.broker_pb2_grpc import BrokerAsyncStub

log = limited(logging.getLogger(__name__))

# How often batches are looked at whose time may be over.
_SWEEP_SECONDS = 0.25
# So long a sender that nothing holds back keeps the loop from answers and timers.
_TURN_SECONDS = 0.005
# A stream that is told to end has nothing left to answer; a broker that hangs must not hang us.
_FINISH_SECONDS_MAX = 1.0

_BROKER_WIDE = (Busy, NotReady, StoreNotWritable, NotLeader, NotEnoughReplicas)
_WRONG_QUEUE = (QueueNotFound, TopicNotFound)


class Sender:
    """Carries batches to brokers.

    Args:
        cluster: the connection, entered; its TaskGroup owns the tasks.
        settings: the producer's.
        clock: epoch milliseconds.
        on_route: called when a topic's queues become known, or others.
        on_topic_dropped: called when a topic turns out not to be there, or not writable.
        hooks: told of every batch that goes out and comes back.
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
        """Counts batches acknowledged or given up."""
        self.routes: dict[str, TopicRoute] = {}
        """Routes of the topics that can be written to."""
        tasks = cluster.tasks
        self._cluster = cluster
        self._hooks = hooks
        self._settings = settings
        self._on_route = on_route
        self._on_topic_dropped = on_topic_dropped
        self._loop = asyncio.get_running_loop()
        self._requests = AppendRequests(cluster, settings, clock, hooks)
        # Of each shipment what is not submitted yet.
        self._packed: dict[Shipment, tuple[str, int, list[ProducerBatch], list[bytes]]] = {}
        self._scheduler = BatchScheduler(
            self.accumulator, settings.in_flight_max, secrets.randbelow(1 << 16)
        )
        # How many changes of the routes have been looked at.
        self._routes_seen = -1
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._streams: dict[str, tuple[AppendStream, asyncio.Task[None]]] = {}
        self._left = LeftStreams()
        self.unreported = UnreportedFailures()
        # The process that stands for each broker, as the routes told last.
        self._known_processes: dict[str, tuple[str, int, int]] = {}
        # Brokers of which the log says that this client has no address for them.
        self._unreachable: set[str] = set()
        self._pump = Pump(self._scheduler, self._pack, self._ship, self._send_alone)
        # Set when there is something whose time can run out.
        self._sweep_wanted = asyncio.Event()
        self._turn_due = 0.0
        self._tasks = [
            tasks.create_task(work, name=f"rockoon producer {name}")
            for name, work in (
                ("pump", self._watch_pump()),
                ("routes", self._follow_routes()),
                ("sweep", self._sweep_forever()),
            )
        ]

    # For the producer

    def ready(self, batch_queue: BatchQueue) -> None:
        """A batch queue has a new or a full batch."""
        self._scheduler.ready(batch_queue)
        self._pump.run_soon()
        self._sweep_wanted.set()
        if batch_queue.topic not in self.routes:
            self.resolve(batch_queue.topic)

    def know(self, route: TopicRoute) -> None:
        """Somebody has the route already."""
        if route.name not in self.routes:
            self._learn(route)

    def look(self, topic: str) -> TopicRoute | None:
        """Return a topic's route as it is this moment; the task that follows may be a turn late."""
        current = self._cluster.routes.topic(topic)
        if current is not None and current != self.routes.get(topic):
            self._learn(current)
        return self.routes.get(topic)

    def resolve(self, topic: str) -> None:
        """Learn a topic's route, unless that is under way."""
        if topic not in self._resolving:
            self._resolving[topic] = self._cluster.tasks.create_task(
                self._resolve(topic), name=f"rockoon producer route of {topic}"
            )

    @property
    def is_running(self) -> bool:
        """False once a task has ended that never should: nothing will be delivered any more."""
        return not any(task.done() for task in self._tasks)

    def wants_turn(self) -> bool:
        """Whether there is work that only wants the event loop's turn, or it had none for long."""
        now = self._loop.time()
        is_behind = self._pump.is_waiting or any(
            each.unwritten for each, _ in self._streams.values()
        )
        if not is_behind and now < self._turn_due:
            return False
        self._turn_due = now + _TURN_SECONDS
        return True

    def complete(self, batch: ProducerBatch, error: RockoonError) -> None:
        """Give up a batch that is not out."""
        self.accumulator.complete(batch, error)
        self._note_completed(batch)

    async def close(self) -> None:
        """End streams and tasks; what is still pending fails with Closed."""
        for stream, _ in self._streams.values():
            stream.finish()
        tasks = [*self._left.tasks, *(task for _, task in self._streams.values())]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_FINISH_SECONDS_MAX)
        finally:
            self._pump.close()
            for task in (*self._tasks, *self._resolving.values(), *tasks):
                task.cancel()
            for batch in list(self.accumulator.pending):
                if batch.sequence is not None:
                    # Its answer may be on the way and is not heard any more: the error must not say
                    # that it is not stored.
                    batch.sequence.may_be_stored = True
                self.complete(batch, Closed(what="the producer"))

    # Handing out

    def end_pauses(self) -> None:
        """The sender waits for room: what is there need not wait for more."""
        self._scheduler.end_pauses()
        self._pump.run_soon()

    def _flush_now(self, batch_queue: BatchQueue) -> None:
        if not batch_queue.is_ready:
            self._scheduler.ready(batch_queue)
        pump = self._pump
        if (
            pump.last_count == len(self.accumulator.pending) == 1
            and self._routes_seen == self._cluster.routes_changed.count
            and self._hooks is None
            and pump.rest is None
        ):
            # Who awaits each of its messages has sent nothing else in this turn. Hooks are told of
            # batches outside of anybody's context. Routes that nobody has looked at yet may say
            # that the topic is another one now.
            pump.run(batch_queue)
        else:
            pump.run_soon()

    async def _watch_pump(self) -> None:
        """Have batches handed out; ends by what that fails with."""
        await self._requests.find_host()
        self._pump.open()
        await self._pump.failed

    def _pack(self, batch: ProducerBatch) -> None:
        """Make a batch's request, and put it to those of its shipment."""
        queue, shipment = batch.queue, batch.shipment
        try:
            request = self._requests.of(batch, self._loop.time())
        except MalformedBatch as failure:
            self._fail(batch, failure)
            return
        assert queue is not None
        assert shipment is not None
        packed = self._packed.get(shipment)
        if packed is None:
            first_id = self._requests.last_id
            packed = self._packed[shipment] = (queue.broker, first_id, [], [])
        packed[2].append(batch)
        packed[3].append(request)

    def _ship(self) -> None:
        """Submit what is packed."""
        now = self._loop.time()
        for broker, first_id, batches, requests in self._packed.values():
            self._stream(broker).submit(batches, joined(requests), first_id, now)
        self._packed.clear()

    def _send_alone(self, batch: ProducerBatch) -> None:
        """Both, for a batch that has its shipment for itself."""
        now = self._loop.time()
        try:
            request = self._requests.of(batch, now)
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

        stream = AppendStream(broker, connect, self._cluster.metadata, self)
        task = self._cluster.tasks.create_task(
            stream.run(), name=f"rockoon producer stream to {broker}"
        )
        self._streams[broker] = (stream, task)
        return stream

    # Answers

    def takes_batches(self, broker: str, batches_max: int) -> None:
        """The broker takes several batches in one message."""
        self._scheduler.set_batches_max(broker, batches_max)

    def answered(self, batch: ProducerBatch, answer: Answer) -> None:
        """The broker answered for a batch: stored, or refused."""
        if isinstance(answer, Stored) or answer.HasField("appended"):
            stored = answer if isinstance(answer, Stored) else answer.appended
            self._scheduler.acknowledged(batch, stored, self._loop.time())
            self._note_completed(batch)
        else:
            self._refused(batch, from_wire(answer.error))
        if self._scheduler.line:
            self._pump.run_soon()

    def broken(self, broker: str, batches: list[ProducerBatch], error: RockoonError) -> None:
        """The stream broke; these batches, oldest first, have no answer."""
        for batch in batches:
            if batch.sequence is not None:
                batch.sequence.may_be_stored = True
        is_final = isinstance(error, WrongCluster) or (
            isinstance(error, NotAuthenticated) and not clock_corrected(self._cluster.access, error)
        )
        if is_final:
            for batch in batches:
                self._fail(batch, error)
        else:
            # A broker that leaves ends its streams when everything is answered.
            level = logging.WARNING if batches else logging.INFO
            log.log(
                level, "stream to %s: %s; %d batches are sent again", broker, error, len(batches)
            )
            now = self._loop.time()
            # Each is put in front of its batch queue: the youngest first, so that the oldest ends
            # up foremost.
            for batch in reversed(batches):
                if gone := self._gone(batch.batch_queue):
                    self._fail(batch, gone)
                else:
                    self._scheduler.refused(batch, error, now, blame_broker=True)
        self._pump.run_soon()

    def _refused(self, batch: ProducerBatch, error: RockoonError) -> None:
        # A leader that was deposed may have written it, and followers may have it.
        if isinstance(error, NotLeader) and batch.sequence is not None:
            batch.sequence.may_be_stored = True
        # A broker that knows no such queue has not heard of it yet, or has heard of a deletion
        # before us: then the routes are about to say so, and everything for the topic fails.
        # One that has forgotten this producer does not have a batch that it never got before.
        forgotten = self._sequences is not None and self._sequences.begin_anew(batch, error)
        if not (error.retriable or isinstance(error, _WRONG_QUEUE) or forgotten):
            self._fail(batch, error)
        elif gone := self._gone(batch.batch_queue):
            self._fail(batch, gone)
        else:
            self._scheduler.refused(
                batch, error, self._loop.time(), blame_broker=isinstance(error, _BROKER_WIDE)
            )

    def _gone(self, batch_queue: BatchQueue) -> RockoonError | None:
        """Say why a batch queue is over: while a batch was out, its topic or queue was deleted."""
        route = self.routes.get(batch_queue.topic)
        if route is None:
            return TopicNotFound(topic=batch_queue.topic)
        if batch_queue.queue is not None and batch_queue.queue not in route.create_revisions:
            return _queue_not_found(batch_queue.queue)
        return None

    def _fail(self, batch: ProducerBatch, error: RockoonError) -> None:
        self._scheduler.failed(batch, error, self._loop.time())
        self._note_completed(batch)

    def _note_completed(self, batch: ProducerBatch) -> None:
        if isinstance(batch.outcome, RockoonError):
            self.unreported.note(batch)
        if self._hooks is not None:
            self._hooks.on_completed(batch)
        self.completed.note()

    # Routes

    async def _resolve(self, topic: str) -> None:
        backoff = Backoff(seconds_max=0.25)
        try:
            while True:
                try:
                    self._learn(await self._cluster.route(topic, retry_seconds=0))
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
            # Before the routes are read: a change in between is then looked at right after.
            seen = self._routes_seen = changed.count
            routes = self._cluster.routes
            brokers = [node for node in routes.nodes if node.kind == BROKER]
            self._scheduler.set_live(
                {node.name for node in brokers if node.address},
                {
                    each.name: self._told_unreachable(each.name)
                    for each in brokers
                    if not each.address
                },
            )
            self._note_restarts(brokers)
            for topic, route in list(self.routes.items()):
                current = routes.topic(topic)
                if current is None:
                    self._drop_topic(topic, TopicNotFound(topic=topic))
                elif current != route:
                    self._learn(current)
            for broker, (stream, task) in list(self._streams.items()):
                address = routes.broker_address(broker)
                if address is not None and stream.address not in (None, address):
                    del self._streams[broker]
                    self._left.add(stream, task)
                    self.takes_batches(broker, 1)
                    self._sweep_wanted.set()
            self._pump.run_soon()
            await changed.wait(seen)

    def _note_restarts(self, brokers: Sequence[Node]) -> None:
        # After a fail-over the log has its name still, and was never seen to be away.
        known = self._known_processes
        now = {each.name: (each.address, each.epoch, each.started_at_ms) for each in brokers}
        for name, process in now.items():
            if known.get(name, process) != process:
                self._scheduler.restarted(name)
        self._known_processes = now

    def _told_unreachable(self, broker: str) -> RockoonError:
        """Why messages cannot go to a live broker; the first time in the log as well, since others
        may do instead."""
        error = NoExternalAddress(name=broker)
        if broker not in self._unreachable:
            self._unreachable.add(broker)
            log.warning("%s", error)
        return error

    def _learn(self, route: TopicRoute) -> None:
        if not route.writable:
            self._drop_topic(route.name, TopicNotWritable(topic=route.name))
            return
        known = self.routes.get(route.name)
        if self._sequences is not None and known is not None:
            for queue, create_revision in route.create_revisions.items():
                if known.create_revisions.get(queue, create_revision) != create_revision:
                    # Made again under its name: it knows none of the numbers, and a batch that
                    # goes on with them would be refused as a gap.
                    self._sequences.renew(queue)
        self.routes[route.name] = route
        self._scheduler.set_queues(route.name, route.queues)
        for batch_queue in self.accumulator.batch_queues_of(route.name):
            if batch_queue.queue is not None and batch_queue.queue not in route.create_revisions:
                queue = batch_queue.queue
                # Found, it would be used without a look at the route.
                self.accumulator.forget(batch_queue)
                for batch in batch_queue.take_all():
                    self.complete(batch, _queue_not_found(queue))
        # Last: messages that waited for the route go to batch queues that have to find it known.
        self._on_route(route)
        self._pump.run_soon()

    def _drop_topic(self, topic: str, error: RockoonError) -> None:
        self.routes.pop(topic, None)
        self._scheduler.drop_topic(topic)
        for batch_queue in self.accumulator.batch_queues_of(topic):
            for batch in batch_queue.take_all():
                self.complete(batch, error)
        if self._sequences is not None:
            self._sequences.forget_topic(topic)
        self._on_topic_dropped(topic)

    # Time

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._loop.time()
            for batch in self._scheduler.expire(now):
                self._note_completed(batch)
            for stream, _ in self._streams.values():
                oldest = stream.oldest()
                if oldest is None:
                    continue
                batch, since = oldest
                if now >= batch.deadline or now - since >= self._settings.reply_timeout_seconds:
                    stream.interrupt()
            self._left.look()
            self.accumulator.forget_idle(self.routes)
            if (
                self.accumulator.is_idle
                and not self._left
                and not any(stream.oldest() for stream, _ in self._streams.values())
            ):
                self._sweep_wanted.clear()
                await self._sweep_wanted.wait()


def new_producer_id() -> int:
    """Return an id that no other producer has: 64 random bits, not all 0."""
    return secrets.randbits(64) or 1


def _queue_not_found(queue: MessageQueue) -> QueueNotFound:
    return QueueNotFound(topic=queue.topic, queue=queue.queue_id, broker=queue.broker)
