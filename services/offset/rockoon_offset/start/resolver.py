"""Resolver of start positions: collects the facts, decides, and stores the decision.

The subscription of a group to a topic is a fact: it has the revision since which the group reads
the topic.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rockoon_core.errors import (
    Busy,
    ConsumeDisabled,
    InvalidArgument,
    QueueHeld,
    QueueNotFound,
    RockoonError,
    RouteNotReached,
    TopicNotFound,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import (
    Decision,
    Facts,
    NewQueueRule,
    QueueState,
    StartPolicy,
    StartReason,
    StoredProgress,
    decide,
    is_new_queue,
    new_queue,
    rules_from_wire,
    search_timestamp_ms,
)
from rockoon_node.nameservers import Nameservers
from rockoon_offset.brokers import Brokers
from rockoon_offset.groups import Groups
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import group_of, member_of, reader_of
from rockoon_offset.route_table import OffsetRoutes
from rockoon_offset.routes import FollowedRoutes
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, Group, GroupConfig, SubscribeRequest

CALL_SECONDS_MAX = 3.0


class GroupSubscription(NamedTuple):
    """Subscription of a group to a topic, with the etcd revision at which the group subscribed."""

    group: Group
    revision: int


class Subscriptions:
    """Finds groups' subscriptions, and has nameservers record missing ones."""

    def __init__(self, table: OffsetRoutes, nameservers: Nameservers) -> None:
        self._table = table
        self._nameservers = nameservers

    def find(self, group: str, topic: str) -> GroupSubscription | None:
        revision = self._table.subscriptions.get((group, topic))
        known = self._table.groups.get(group)
        if revision is None or known is None:
            return None
        return GroupSubscription(known, revision)

    async def find_or_record(
        self, group: str, topic: str, *, create_group: bool = False
    ) -> GroupSubscription:
        """Return a subscription; if it is not in the routes, a nameserver records it. Raises
        RockoonError: no nameserver could record the subscription, or a nameserver refused it."""
        found = self.find(group, topic)
        if found is not None:
            return found
        request = SubscribeRequest(group=group, topic=topic, create_group=create_group)
        reply = await self._nameservers.call(
            lambda stub: stub.Subscribe(
                request, timeout=CALL_SECONDS_MAX, metadata=self._nameservers.metadata
            )
        )
        return GroupSubscription(reply.group, reply.subscription.revision)


log = logging.getLogger(__name__)

# Rounds of broker calls for one Resolve. If progress or routes change during a round, the affected
# queues get another round.
ROUNDS_MAX = 4
OUT_OF_RANGE = (StartReason.BELOW_MIN, StartReason.ABOVE_MAX, StartReason.OTHER_INCARNATION)


class ResolvedStart(NamedTuple):
    """Start position of a reader on a queue, and the epoch of its commits."""

    decision: Decision
    epoch: int


class QueryResult(NamedTuple):
    """Result of Query: a decision, or None and the reason."""

    decision: Decision | None
    explanation: str
    rule: NewQueueRule


class ProgressBefore(NamedTuple):
    """Progress on a queue and its incarnation, read before the call to its broker."""

    stored: StoredProgress | None
    create_revision: int


class Resolver:
    """Decides where readers start on queues, and stores the decision.

    Args:
        store: progress; decisions are durable before they are returned.
        subscriptions: revisions at which groups subscribed.
        cluster_rule: new-queue rule of groups without their own.
        route_wait_seconds: how long to wait for the route revision of the reader.
        now_ms: wall clock.
    """

    def __init__(
        self,
        store: ProgressStore,
        routes: FollowedRoutes,
        subscriptions: Subscriptions,
        groups: Groups,
        brokers: Brokers,
        cluster_rule: NewQueueRule,
        route_wait_seconds: float,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._routes = routes
        self._subscriptions = subscriptions
        self._groups = groups
        self._brokers = brokers
        self._cluster_rule = cluster_rule
        self._route_wait_seconds = route_wait_seconds
        self._now_ms = now_ms
        # Decisions since the start.
        self.starts: Counter[StartReason] = Counter()

    async def resolve(
        self,
        group: str,
        member_id: str,
        queues: Sequence[MessageQueue],
        reader: StartPolicy,
        route_revision: int,
        *,
        own: bool = False,
    ) -> dict[MessageQueue, ResolvedStart | RockoonError]:
        """Return the start position of a reader on each queue. Every result is durable.

        Args:
            member_id: id of the member; empty for a reader without membership.
            reader: start policy of the reader.
            route_revision: revision of the routes that the reader uses.
            own: the member has its own progress.

        Raises:
            Busy, StoreFailed: nothing was decided.
            NotReady: the nameservers changed to another etcd; the reader must retry.
        """
        # Before any decision: a decision is applied immediately and must then be written.
        self._store.require_writable()
        # A client that has just created a topic can know a newer revision than this service.
        reached = await self._routes.wait_revision(route_revision, self._route_wait_seconds)
        answers: dict[MessageQueue, ResolvedStart | RockoonError] = {}
        reader_name = reader_of(group, member_id) if own else group
        # Optimistic: no queue is locked during a broker call. A queue whose progress or routes
        # changed during the call gets another round.
        for _ in range(ROUNDS_MAX):
            waiting = [queue for queue in queues if queue not in answers]
            if not waiting:
                break
            # In each round: the group may have been deleted and created again.
            subscribed = await self._subscribed(group, waiting, answers)
            if own:
                self._subscribe_member(group, member_id, waiting, subscribed, answers)
            waiting = [queue for queue in waiting if queue not in answers]
            await self._round(reader_name, member_id, waiting, reader, subscribed, answers)
        if not reached:
            # The routes are older than the reader's, so the topic or queue may exist.
            for queue, answer in answers.items():
                if isinstance(answer, TopicNotFound | QueueNotFound):
                    answers[queue] = RouteNotReached(
                        wanted=route_revision, revision=self._routes.table.revision
                    )
        for queue in queues:
            reason = f"progress of queue {queue} changed repeatedly during the call"
            answers.setdefault(queue, Busy(reason=reason))
        await self._store.durable()
        return answers

    async def query(self, group: str, queue: MessageQueue, member: str = "") -> QueryResult:
        """Return the offset of a queue like RocketMQ's QUERY_CONSUMER_OFFSET.

        Args:
            member: id of a member with its own progress; empty for the group's progress.

        Raises:
            TopicNotFound, QueueNotFound: the topic or queue is not in the routes.
            BrokerUnavailable: the rule needs the queue's ends, and the broker did not answer.
        """
        create_revision = self._routes.table.create_revision(queue)
        subscription = self._subscriptions.find(group, queue.topic)
        config = GroupConfig() if subscription is None else subscription.group.config
        rules = rules_from_wire(config, StartPolicy(), self._cluster_rule)
        stored = self._store.ledger.stored(reader_of(group, member), queue)
        if member and subscription is not None:
            since = self._since(group, member, queue.topic)
            subscription = None if since is None else subscription._replace(revision=since)
        await self._store.durable()
        if (
            stored is not None
            and stored.offset is not None
            and stored.incarnation == create_revision
        ):
            text = f"the stored offset is {stored.offset}"
            return QueryResult(
                Decision(stored.offset, StartReason.COMMITTED, text), text, rules.rule
            )
        if stored is not None:
            text = "the stored offset belongs to a deleted queue of the same name"
            return QueryResult(None, text, rules.rule)
        # A group without a subscription counts as subscribed after all existing queues.
        revision = create_revision if subscription is None else subscription.revision
        state: QueueState | RockoonError = QueueState(0, 0)
        facts = Facts(queue, QueueState(0, 0), create_revision, revision, rules)
        if rules.rule is NewQueueRule.CLASSIC or is_new_queue(facts):
            state = (await self._brokers.queue_states([queue]))[queue]
            if isinstance(state, RockoonError):
                raise state
            facts = Facts(queue, state, create_revision, revision, rules)
            if is_new_queue(facts):
                decision = new_queue(facts)
                return QueryResult(decision, decision.explanation, rules.rule)
        text = (
            f"no offset is stored, and the queue is not new to the group (rule {rules.rule.name})"
        )
        return QueryResult(None, text, rules.rule)

    async def _subscribed(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        answers: dict[MessageQueue, ResolvedStart | RockoonError],
    ) -> dict[str, GroupSubscription]:
        """Return the group's subscription to each topic; errors go into `answers`."""
        subscribed: dict[str, GroupSubscription] = {}
        refused: dict[str, RockoonError] = {}
        for queue in queues:
            topic = queue.topic
            try:
                self._routes.table.create_revision(queue)
                if topic in refused:
                    raise refused[topic]
                if topic not in subscribed:
                    found = await self._subscriptions.find_or_record(group, topic)
                    if found.group.config.consume_disabled:
                        raise ConsumeDisabled(group=group)
                    subscribed[topic] = found
            except RockoonError as reason:
                answers[queue] = reason
                if self._routes.table.create_revision_or_none(queue) is not None:
                    refused[topic] = reason
        return subscribed

    def _since(self, group: str, member: str, topic: str) -> int | None:
        known = self._store.ledger.known.of(group).get(member)
        return None if known is None else dict(known.since).get(topic)

    def _subscribe_member(
        self,
        group: str,
        member: str,
        queues: Sequence[MessageQueue],
        subscribed: dict[str, GroupSubscription],
        answers: dict[MessageQueue, ResolvedStart | RockoonError],
    ) -> None:
        """Replace the group's subscription revisions by those of a member with its own progress.

        The queues of a member's first request count as older than the member. Queues with a higher
        create revision are new to it, even if they existed and the member did not know them yet.
        """
        for topic, found in list(subscribed.items()):
            asked = [queue for queue in queues if queue.topic == topic]
            create_revisions = [
                self._routes.table.create_revision_or_none(queue) or 0 for queue in asked
            ]
            try:
                if found.group.config.broadcast_progress != BROADCAST_SERVER:
                    raise InvalidArgument(
                        reason=f"group {group!r} does not keep its members' progress on the offset "
                        "service (broadcast_progress)"
                    )
                known = self._store.ledger.known.reads(
                    group,
                    found.group.incarnation,
                    member,
                    topic,
                    max(create_revisions),
                    self._now_ms(),
                )
                self._store.write(self._store.ledger.members_changed(*known))
            except RockoonError as reason:
                del subscribed[topic]
                answers.update(dict.fromkeys(asked, reason))
                continue
            since = self._since(group, member, topic)
            assert since is not None
            subscribed[topic] = found._replace(revision=since)

    async def _round(
        self,
        group: str,
        member_id: str,
        queues: list[MessageQueue],
        reader: StartPolicy,
        subscribed: dict[str, GroupSubscription],
        answers: dict[MessageQueue, ResolvedStart | RockoonError],
    ) -> None:
        """Call the brokers once, and decide every queue whose progress and routes did not change.

        `group` is the name of the reader: the group or `group@member` (see `readers`).
        """
        asked: dict[MessageQueue, ProgressBefore] = {}
        for queue in queues:
            try:
                create_revision = self._routes.table.create_revision(queue)
                self._store.ledger.require_reached(group, queue, self._routes.table.revision)
                # Before the broker call: the member's wait for the queue starts even if the broker
                # does not answer.
                self._groups.require_free(group, queue, create_revision, member_id)
            except RockoonError as reason:
                answers[queue] = reason
                continue
            asked[queue] = ProgressBefore(self._store.ledger.stored(group, queue), create_revision)
        rules = {
            topic: rules_from_wire(each.group.config, reader, self._cluster_rule)
            for topic, each in subscribed.items()
        }
        # Only this rule needs to know whether the first message of a queue is in memory.
        offsets_only = all(each.rule is not NewQueueRule.CLASSIC for each in rules.values())
        facts: dict[MessageQueue, Facts] = {}
        for queue, state in (await self._states(asked, offsets_only=offsets_only)).items():
            if isinstance(state, RockoonError):
                answers[queue] = state
                continue
            subscription = subscribed[queue.topic]
            facts[queue] = Facts(
                queue=queue,
                state=state,
                create_revision=asked[queue].create_revision,
                subscription_revision=subscription.revision,
                rules=rules[queue.topic],
                stored=asked[queue].stored,
                who=f"member {member_of(group)}" if member_of(group) else "the group",
            )
        times = {queue: search_timestamp_ms(known) for queue, known in facts.items()}
        found = await self._brokers.search(
            {queue: time for queue, time in times.items() if time is not None}
        )
        # No await from here on: progress cannot change between the decision and the write.
        for queue, known in facts.items():
            offset = found.get(queue)
            if isinstance(offset, RockoonError):
                answers[queue] = offset
                continue
            answer = self._decide(
                group, subscribed[queue.topic].group.incarnation, member_id, queue, known, offset
            )
            if answer is not None:
                answers[queue] = answer

    async def _states(
        self, asked: Mapping[MessageQueue, ProgressBefore], *, offsets_only: bool
    ) -> dict[MessageQueue, QueueState | RockoonError]:
        """Return the queues' ends, with the deletion reason where unread messages are missing."""
        states = await self._brokers.queue_states(asked, offsets_only=offsets_only)
        lost: dict[MessageQueue, int] = {}
        for queue, state in states.items():
            stored = asked[queue].stored
            if stored is None or stored.offset is None or isinstance(state, RockoonError):
                continue
            if stored.offset < state.min_offset:
                lost[queue] = stored.offset
        reasons = await self._brokers.deletion_reasons(lost) if lost else {}
        return {
            queue: replace(state, asked_deletion=reasons[queue])
            if queue in reasons and isinstance(state, QueueState)
            else state
            for queue, state in states.items()
        }

    def _decide(
        self,
        group: str,
        group_incarnation: int,
        member_id: str,
        queue: MessageQueue,
        facts: Facts,
        offset_at_time: int | None,
    ) -> ResolvedStart | RockoonError | None:
        """Decide and store a start position; None if the state changed: decide again."""
        decision = self._judge(group, group_incarnation, queue, facts, offset_at_time)
        if decision is None or isinstance(decision, RockoonError):
            return decision
        try:
            # Another member may have become the owner during the broker call.
            self._groups.require_free(group, queue, facts.create_revision, member_id)
        except QueueHeld as reason:
            return reason
        ledger = self._store.ledger
        # Before the write, which replaces the owner.
        before = ledger.table.owning_progress(group, queue)
        if decision.reason in OUT_OF_RANGE:
            log.warning("group %s, queue %s: %s", group, queue, decision.explanation)
        self._store.write(
            ledger.start(
                group,
                group_incarnation,
                queue,
                facts.create_revision,
                decision,
                member_id,
                self._now_ms(),
            )
        )
        self.starts[decision.reason] += 1
        progress = ledger.find(group, queue)
        assert progress is not None
        if before is not None and before.owner != progress.owner:
            self._groups.owner_changed(group, queue)
        self._groups.record_owner(group, queue, progress.owner)
        return ResolvedStart(decision, progress.epoch)

    def _judge(
        self,
        group: str,
        group_incarnation: int,
        queue: MessageQueue,
        facts: Facts,
        offset_at_time: int | None,
    ) -> Decision | RockoonError | None:
        """Decide a start position from the current progress. None: the queue must be decided again.

        During the broker call, progress may have been created, or have moved past the end that the
        broker reported. Then the log is not truncated and the queue is not unread.
        """
        ledger = self._store.ledger
        # During the call, the nameservers may have changed to another etcd, and the subscription
        # may come from it.
        self._routes.require()
        table = self._routes.table
        # The facts belong to a deleted queue: it was created again during the call.
        if table.create_revision_or_none(queue) != facts.create_revision:
            return None
        if table.is_over(group_of(group), group_incarnation):
            # Progress of the deleted group would pass for that of a new group of the same name,
            # until a snapshot of the routes drops it.
            return None
        stored = ledger.stored(group, queue)
        moved = stored != facts.stored
        now = Facts(
            queue,
            facts.state,
            facts.create_revision,
            facts.subscription_revision,
            facts.rules,
            stored,
            facts.who,
        )
        # Progress was removed during the call. A start by policy may need an offset for a time,
        # which was not requested.
        if moved and stored is None:
            return None
        try:
            decision = decide(now, offset_at_time)
        except RockoonError as reason:
            return None if moved else reason
        # The queue's ends are older than this progress, so it may only seem out of range.
        if moved and decision.reason is not StartReason.COMMITTED:
            return None
        return decision
