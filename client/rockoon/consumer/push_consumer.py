"""Push consumer: calls a handler for each message. The members of a group share the queues of its
topics, or each member reads all queues (`broadcasting`).

    await cluster.push_consumer("billing", {"orders": "*"}, handle).run()

A message is consumed when the handler has returned. Progress of a queue is the smallest offset that
is not consumed. So after a crash some messages are delivered again and none is lost.

Components: `GroupMembership` sends heartbeats and knows the members of the group. `Assignment`
computes the queues of this member, resolves their start positions and creates a `QueueReader` for
each, which pulls into its process queue. `HandlerDelivery` calls the handler. `commit` stores
progress. `QueueRevocation` releases queues that another member gets.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal, Self, TypedDict

from rockoon.allocation import AVERAGE, AllocationStrategy
from rockoon.bounds import check_bounds, check_group_text, check_text
from rockoon.callbacks import is_being_cancelled
from rockoon.consumer.assignment import FATAL, Assignment, QueueReaderSettings, cancel
from rockoon.consumer.consume_result import Order
from rockoon.consumer.delivery import CONSUME_TIMEOUT_SECONDS, Handler, HandlerDelivery
from rockoon.consumer.membership import GroupMembership
from rockoon.consumer.process_queue import FlowLimits
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.pull_loop import PullRules
from rockoon.consumer.queue_reader import (
    PULL_EXPIRED_SECONDS,
    PullStatistics,
    QueueReader,
    ReadRules,
)
from rockoon.consumer.queue_revocation import QueuesFunction, RebalanceListener
from rockoon.consumer.redelivery import Redelivery
from rockoon.consumer.retry import RetryPolicy, RetryStatistics, RetryTopic, redelivery_of
from rockoon.consumer.statistics import ConsumerStatistics, QueueView, view_of
from rockoon.consumer.stop_signals import loop_signals
from rockoon.errors import Closed, InvalidArgument, RockoonError
from rockoon.net.connection import Connection
from rockoon.offsets.local_offsets import (
    Mode,
    join_seconds_max,
    member_id_of,
    mode_named,
    pass_group_config,
    store_of,
)
from rockoon.offsets.offset_store import OffsetStore, Persisted
from rockoon.offsets.start import ConsumeFrom, Start, StartName
from rockoon.subscription import MissingTopics, MissingTopicsRule, parsed
from rockoon_core.changes import Changes
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import loggable, valid_text
from rockoon_format.names import retry_topic
from rockoon_proto.v1 import nameserver_pb2 as nameserver_pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals and time limits of a push consumer, in seconds.

    Raises:
        InvalidArgument: a time is less than 0.01 s, or `drain_seconds` less than 0.
    """

    consume_timeout_seconds: float = CONSUME_TIMEOUT_SECONDS
    """Time limit of a handler call, after which it has failed. If a broker has then stored its
    messages for redelivery, the result of the call is ignored. Not for orderly consumers."""
    commit_seconds: float = 5.0
    """Time between commits."""
    rebalance_seconds: float = 20.0
    """Time between rebalances without a known change."""
    drain_seconds: float = 10.0
    """Time limit for running handler calls when the consumer is closed or a queue is revoked; the
    hand-over time of the offset service may be shorter."""
    pull_expired_seconds: float = PULL_EXPIRED_SECONDS
    """Time without a reply to pulls after which a queue is resolved again."""

    def __post_init__(self) -> None:
        times = (
            "consume_timeout_seconds",
            "commit_seconds",
            "rebalance_seconds",
            "pull_expired_seconds",
        )
        # Shorter intervals would be a busy loop.
        bounds = dict.fromkeys(times, (0.01, inf)) | {"drain_seconds": (0, inf)}
        check_bounds(self, bounds)


log = limited(logging.getLogger(__name__))
OnDamaged = Literal["stop", "skip"]


class PushOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.push_consumer` except `batch_max`, which decides the handler's
    type."""

    mode: Mode
    consume_from: ConsumeFrom | StartName
    concurrency: int
    orderly: bool | Order
    allocation: AllocationStrategy
    member_id: str | None
    offset_store: OffsetStore | None
    redelivery: Redelivery | RetryPolicy | None
    pull_limits: PullLimits | None
    flow_limits: FlowLimits | None
    timing: Timing | None
    create_group: bool
    check_crcs: bool
    on_damaged: OnDamaged
    missing_topics: MissingTopicsRule
    on_assigned: QueuesFunction | None
    on_revoked: QueuesFunction | None


class PushConsumer:
    """A member of a consumer group that calls `handler` for each message of its queues.

    If the handler raises, or returns `ConsumeResult.LATER` or False, the consumer sends the message
    back to the broker, which delivers it again after 10 s, 30 s, 1 min, ...; other messages do not
    wait for it. After 16 redeliveries it is a dead letter. `redelivery` changes these rules;
    `orderly` and broadcasting consumers have other rules. A message that this consumer redelivers
    locally blocks the committed offset of its queue: later messages are handled up to the flow
    limits, then the queue stops. `queues()` shows the blocking message.

    While its group is paused (`rockoon group pause`), the consumer stays a member, has no queues
    and calls no handler. When the group is resumed, it continues at the committed offsets.

    Args:
        cluster: the connection, which closes the consumer when it is closed.
        subscriptions: topic to expression: "*", tags as in "TagA || TagB", or an `Sql`. All members
            of a group should have the same.
        handler: async, or plain (then run in a thread); gets a Message.
        mode: "clustering": the members share the queues; "broadcasting": each member reads all
            queues and has its own progress under its `member_id`, which must be the same at each
            start: by default the connection's `client_id`, ROCKOON_MEMBER, or a host name that
            ends in an ordinal. The group defines where that progress is stored
            (`broadcast_progress`).
        offset_store: stores progress instead of the offset service (clustering) or
            `~/.rockoon_offsets` (broadcasting), for example a `CustomOffsetStore`. With a custom
            store, two clustering members may read a queue at the same time during a hand-over.
        consume_from: "first", "last" or a `ConsumeFrom`: start position on a queue without progress
            if the group has no policy. The default is the cluster's policy, which is "last":
            messages sent before the group existed are not read.
        concurrency: maximum number of concurrent handler calls.
        batch_max: maximum number of messages per handler call. If it is more than 1, the handler
            gets a list of messages of one queue, and its result applies to all.
        orderly: the messages of a queue are handled one after the other, by one member at a time;
            queues are handled concurrently. A failed message is delivered again after a second,
            and its queue waits; an `Order` sets that pause, and the number of failed deliveries
            after which the message is a dead letter and the queue continues. No call starts while
            another member may own the queue, so no message is handled if the offset service is
            unavailable for longer than its lease.
        allocation: how members share the queues; must be the same on all members.
        member_id: unique in the group; the connection's client id by default.
        redelivery: how failed messages are redelivered. A `RetryPolicy`, the default of clustering
            consumers: they are sent back to the broker and read again from the group's retry
            topic, or are dead letters after 16 redeliveries. A `LocalRedelivery`: this consumer
            redelivers them until they succeed. Broadcasting consumers deliver a message at most 16
            times by default, then drop it.
        pull_limits: size of one pull, and how long a broker may hold it.
        flow_limits: how much one queue may hold.
        timing: commit interval and other times.
        create_group: create the group if it does not exist.
        check_crcs: compare bodies with their stored CRCs.
        on_damaged: "stop": a damaged message ends the consumer with StoreCorrupt once all earlier
            messages are handled; reset the group past it. "skip": it is logged with queue and
            offset, counted and skipped, unless a thousand in a row are damaged.
        missing_topics: if a topic is deleted, "wait": the consumer reads its other topics, and the
            topic when it is created again, as a new topic; "end": it ends with TopicNotFound. At
            the start each topic must exist.
        on_assigned: called with the queues that this member gets, before it reads them.
        on_revoked: called with the queues that it loses, after their handler calls and before
            another member gets them, for example to flush buffered results. Both functions are
            async, or plain and quick; their exceptions are logged, and each has five seconds.

    Raises:
        InvalidArgument: an argument is out of its bounds.
    """

    def __init__(
        self,
        cluster: Connection,
        group: str,
        subscriptions: Mapping[str, str],
        handler: Handler,
        *,
        mode: Mode = "clustering",
        consume_from: ConsumeFrom | StartName = ConsumeFrom.GROUP,
        concurrency: int = 16,
        batch_max: int = 1,
        orderly: bool | Order = False,
        allocation: AllocationStrategy = AVERAGE,
        member_id: str | None = None,
        offset_store: OffsetStore | None = None,
        redelivery: Redelivery | RetryPolicy | None = None,
        pull_limits: PullLimits | None = None,
        flow_limits: FlowLimits | None = None,
        timing: Timing | None = None,
        create_group: bool = True,
        check_crcs: bool = True,
        on_damaged: OnDamaged = "stop",
        missing_topics: MissingTopicsRule = "wait",
        on_assigned: QueuesFunction | None = None,
        on_revoked: QueuesFunction | None = None,
    ) -> None:
        self._timing = timing or Timing()
        order = Order.of(orderly)
        _check_settings(handler, concurrency, batch_max, on_damaged)
        self._orderly = order is not None
        self.group = check_group_text(group)
        self._mode = mode_named(mode)
        self.member_id = check_text("member_id", member_id_of(cluster, self._mode, member_id))
        self._cluster = cluster
        retries = RetryStatistics()
        chosen = redelivery_of(cluster, group, self._mode, redelivery, retries)
        # An orderly consumer sends no message back: a failed message waits in its queue.
        reads_retries = isinstance(chosen, RetryTopic) and order is None
        self._retry_topic = retry_topic(group) if reads_retries else None
        self._subscriptions = parsed(subscriptions, self._retry_topic)
        self._listener = RebalanceListener(on_assigned, on_revoked, self._retry_topic)
        self._create_group = create_group
        self._changes = Changes()
        self._membership = self._membership_with(allocation)
        self._store = offset_store or store_of(cluster, group, self._mode, self.member_id)
        hooks = cluster.hooks
        self._delivery = HandlerDelivery(
            handler if hooks is None else hooks.around_handler(group, handler),
            concurrency=concurrency,
            batch_max=batch_max,
            redelivery=chosen,
            order=order,
            timeout_seconds=self._timing.consume_timeout_seconds,
        )
        self.statistics = ConsumerStatistics(PullStatistics(), self._delivery.statistics, retries)
        pull_rules = PullRules(pull_limits or PullLimits(), check_crcs, group)
        self._assignment = self._assignment_with(
            ConsumeFrom.of(consume_from),
            allocation,
            ReadRules(pull_rules, on_damaged == "skip", self._timing.pull_expired_seconds),
            flow_limits or FlowLimits(),
            MissingTopics(missing_topics, f"the consumer of group {group}"),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._failure_was_raised = False
        self._state = "new"

    def _membership_with(self, allocation: AllocationStrategy) -> GroupMembership:
        return GroupMembership(
            self._cluster,
            self.group,
            self.member_id,
            list(self._subscriptions.values()),
            changes=self._changes,
            on_reset=lambda queues: self._assignment.on_reset(queues),
            mode=self._mode,
            orderly=self._orderly,
            allocation=allocation,
        )

    def _assignment_with(
        self,
        consume_from: ConsumeFrom,
        allocation: AllocationStrategy,
        read_rules: ReadRules,
        flow_limits: FlowLimits,
        missing_topics: MissingTopics,
    ) -> Assignment:
        return Assignment(
            self._cluster,
            self.group,
            QueueReaderSettings(
                subscriptions=self._subscriptions,
                mode=self._mode,
                consume_from=consume_from,
                allocation=allocation,
                read_rules=read_rules,
                flow_limits=flow_limits,
                rebalance_seconds=self._timing.rebalance_seconds,
                drain_seconds=self._timing.drain_seconds,
                missing_topics=missing_topics,
            ),
            membership=self._membership,
            changes=self._changes,
            store=self._store,
            delivery=self._delivery,
            statistics=self.statistics,
            start_task=self._start_task,
            listener=self._listener,
            subscribe=lambda topic: self._subscribe(topic, create_group=False),
        )

    # Start and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        await self.close()
        if failure is None and self._failure is not None and not self._failure_was_raised:
            raise self._failure

    async def start(self) -> None:
        """Join the group and start to consume.

        Raises:
            TopicNotFound: a topic of the subscriptions does not exist.
            GroupNotFound: the group does not exist, and `create_group` is false.
            MemberIdTaken: a live process has the member id.
            StoreLocked, StoreCorrupt, StoreNotWritable: the offset store cannot store progress.
            RockoonError: the cluster did not answer within `retry_seconds`.
        """
        if self._state != "new":
            raise Closed(what="a consumer that was started before")
        self._state = "running"
        self._cluster.adopt(self)
        try:
            for topic in self._subscriptions:
                if topic != self._retry_topic:
                    await self._subscribe(topic, create_group=self._create_group)
            if self._retry_topic:
                # Last, because it exists only after the group is created.
                request = nameserver_pb.ProvideGroupTopicRequest(
                    group=self.group, topic=nameserver_pb.GROUP_RETRY
                )
                provided = await self._cluster.call_nameserver("ProvideGroupTopic", request)
                await self._subscribe(
                    self._retry_topic, provided.revision, create_group=self._create_group
                )
            await self._store.load()
            await self._join()
        except BaseException:
            self._state = "closed"
            self._cluster.release(self)
            await self._store.close()
            raise
        self._delivery.start(lambda work: self._start_task(work, "worker"))
        for name, work in {
            "heartbeats": self._membership.keep_alive,
            "clock": self._membership.watch_clock,
            "group": self._membership.watch,
            "routes": self._follow_routes,
            "rebalance": self._assignment.keep_balanced,
            "commits": self._keep_committed,
            **({} if self._orderly else {"timeouts": self._delivery.watch_overdue}),
        }.items():
            self._tasks.append(self._start_task(work, name))

    async def _subscribe(self, topic: str, min_revision: int = 0, *, create_group: bool) -> None:
        await self._cluster.route(topic, min_revision)
        reply = await self._cluster.call_nameserver(
            "Subscribe",
            nameserver_pb.SubscribeRequest(
                group=self.group, topic=topic, create_group=create_group
            ),
        )
        self._assignment.route_revision = max(self._assignment.route_revision, reply.revision)
        # `Subscribe` may have created the group again after its deletion.
        self._membership.group_incarnation = reply.group.incarnation
        pass_group_config(self._store, reply.group.config)

    def _start_task(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        return self._cluster.tasks.create_task(
            self._guard(work), name=f"rockoon {self.group} {name}"
        )

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        backoff = Backoff()
        while True:
            try:
                await self._membership.send_heartbeat()
            except RockoonError as error:
                pause = backoff.next_seconds()
                seconds_max = join_seconds_max(error, self._mode, self._cluster.retry_seconds)
                if loop.time() + pause > began_at + seconds_max:
                    raise
            else:
                return
            await asyncio.sleep(pause)

    async def run(self) -> None:
        """Consume until SIGINT, SIGTERM or a failure; then drain, commit and leave the group.

        Starts the consumer if it was not started. The first signal ends this call after the drain
        (`close`); later signals have their former effect. Only the main thread gets signals.
        If several consumers run in one event loop, a signal ends each.

        Raises:
            RockoonError: see `start` and `wait`.
        """
        stop = asyncio.Event()
        with loop_signals(stop.set):
            await self.run_until(stop)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Like `run`, until an event is set."""
        if self._state == "new":
            await self.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(stop.wait(), name=f"rockoon {self.group} stop")
                ended = tasks.create_task(self._ended.wait(), name=f"rockoon {self.group} end")
                try:
                    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    asked.cancel()
                    ended.cancel()
        finally:
            # Outside of the TaskGroup, which would wrap its error in an ExceptionGroup.
            await self.close()
        await self.wait()

    async def wait(self) -> None:
        """Wait until the consumer is closed. Cancelling it is safe.

        Raises:
            GroupNotFound: the group was deleted.
            TopicNotFound: a topic was deleted, and `missing_topics` is "end".
            MemberIdTaken: another process joined under the member id.
            Exception: a bug in the consumer.
        """
        if self._state == "new":
            raise RuntimeError("the consumer was not started: enter it with `async with`")
        await self._ended.wait()
        if self._failure is not None:
            self._failure_was_raised = True
            raise self._failure

    async def close(self) -> None:
        """Stop pulling, wait for running handler calls, store progress, leave the group.

        Lasts at most `drain_seconds`, and about ten seconds more for the last commit if the offset
        service does not answer. Cancelling it ends the waiting.
        """
        if self._state != "running":
            return
        self._state = "closed"
        self._cluster.release(self)
        try:
            await cancel(self._tasks)
            await self._assignment.stop_pulls()
            if not await self._delivery.drain(self._timing.drain_seconds):
                log.warning(
                    "handlers of group %s still ran after %.1f s: their messages are redelivered",
                    self.group,
                    self._timing.drain_seconds,
                )
            await self._assignment.store_last()
            await self._membership.leave()
        finally:
            # These have an effect only if closing was cancelled.
            self._cancel_tasks()
            self._delivery.abandon()
            self._assignment.drop()
            self._ended.set()
            await self._store.close()

    def refuse_in_child(self, reason: str) -> None:
        """Refuse calls in a forked child; see `Forkable.refuse_in_child`. Handlers run in the
        parent only."""
        self._state, self._failure = "closed", Closed(reason)
        self._ended = asyncio.Event()  # the parent's belongs to the parent's loop
        self._ended.set()

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the consumer; its error ends the consumer, and `wait` raises it."""
        try:
            await work()
        except asyncio.CancelledError as cancelled:
            if is_being_cancelled():
                raise
            # This task was not cancelled: a function of the program that it called was. Without a
            # failure, the consumer would silently do nothing.
            stopped = RuntimeError("code that the consumer called was cancelled")
            stopped.__cause__ = cancelled
            self._fail(stopped)
        except Exception as failure:
            if not isinstance(failure, FATAL):
                log.exception(
                    "unexpected error in a consumer of group %s (bug)",
                    self.group,
                    exc_info=loggable(failure),
                )
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        if self._failure is None:
            log.error("the consumer of group %s stops: %s", self.group, valid_text(failure))
            self._failure = failure
        self._delivery.stop()
        self._cancel_tasks()
        self._ended.set()

    def _cancel_tasks(self) -> None:
        readers = self._assignment.readers.values()
        for task in (*self._tasks, *(reader.task for reader in readers)):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    # State

    @property
    def assignment(self) -> list[MessageQueue]:
        """Queues of the subscriptions that this member owns; `queues` includes the retry topic's
        queues."""
        return sorted(q for q in self._assignment.readers if q.topic != self._retry_topic)

    @property
    def starts(self) -> dict[MessageQueue, Start]:
        """Start position of each queue of the subscriptions, with the reason."""
        starts = self._assignment.starts
        return {queue: start for queue, start in starts.items() if queue.topic != self._retry_topic}

    def queues(self) -> dict[MessageQueue, QueueView]:
        """Return the state of each queue of this member."""
        return {q: view_of(reader) for q, reader in sorted(self._assignment.readers.items())}

    @property
    def is_paused(self) -> bool:
        """True if the group is paused, by the last reply of the offset service."""
        return self._membership.is_paused

    @property
    def members(self) -> list[str]:
        """Ids of the group's members, by the last reply of the offset service."""
        return sorted(self._membership.topics_of)

    # Routes and progress

    async def _follow_routes(self) -> None:
        """Rebalance when a route of the subscriptions or the set of nodes has changed.

        Changes of other topics are ignored, because there may be hundreds of topics.
        """
        routes, changes = self._cluster.routes, self._cluster.routes_changed

        def known() -> tuple[object, ...]:
            return (routes.node_changes, *map(routes.topic, self._subscriptions))

        seen, before = changes.count, known()
        while True:
            seen = await changes.wait(seen)
            if (now := known()) != before:
                before = now
                self._changes.notify()

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(self._timing.commit_seconds)
            await self.commit()

    async def commit(self) -> None:
        """Store the progress of all queues now, in addition to the periodic commits.

        Progress that cannot be stored now is stored by a later call.
        """
        for reader in self._assignment.readers.values():
            self._update(reader)
        self._apply_persisted(await self._store.persist_all())

    def _update(self, reader: QueueReader) -> None:
        if not reader.process_queue.dropped:
            self._store.update(reader.queue, reader.process_queue.commit_offset)

    def _apply_persisted(self, persisted: Persisted) -> None:
        self.statistics.count_persisted(persisted)
        if persisted.kept:
            queue, error = next(iter(persisted.kept.items()))
            log.warning(
                "progress of %d queues not stored, next try at the next commit; %s: %s",
                len(persisted.kept),
                queue,
                error,
            )
        if persisted.lost:
            for queue, error in persisted.lost.items():
                log.warning("progress of %s not stored, resolving again: %s", queue, error)
            self._assignment.resolve_again(
                r for q in persisted.lost if (r := self._assignment.readers.get(q))
            )


def _check_settings(handler: Handler, concurrency: int, batch_max: int, on_damaged: str) -> None:
    if not callable(handler):
        raise InvalidArgument(reason=f"the handler is {handler!r}, not a function")
    if concurrency < 1 or batch_max < 1:
        raise InvalidArgument(reason="concurrency and batch_max must be 1 or more")
    if on_damaged not in ("stop", "skip"):
        raise InvalidArgument(reason=f"on_damaged is {on_damaged!r}, not stop or skip")
