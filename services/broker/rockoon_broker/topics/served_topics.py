"""The topics that a broker serves, updated by the routes.

Invariants:
1. `table` is replaced as a whole, only by `apply`. A topic is added only after its incarnation
   is stored: in the topic file, or for a replicated log in a committed record. Otherwise, after
   a crash, it would look like another topic, and its messages would be dropped.
2. A deleted topic is removed from the table before its messages are dropped, so that nothing is
   appended after the mark below which they are deleted.

Records in a replicated log, or in a log that was replicated, list its topics. A replica uses only
these records. Its own topic file may be from the last time it was leader. If a topic was deleted
and created again since, that file would make the broker lose new messages, or serve deleted ones.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rockoon_broker.clock import Clock
from rockoon_broker.retries.retries import GroupRetryRules
from rockoon_broker.store.errors import StoreClosed, StoreSyncFailed
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_broker.topics.topics import (
    PERMISSION_READ,
    PERMISSIONS_DEFAULT,
    RouteChange,
    ServedTopic,
    TopicPlan,
    TopicTable,
    plan,
)
from rockoon_core.errors import (
    NotEnoughReplicas,
    NotReady,
    QueueNotFound,
    RockoonError,
    RouteNotReached,
    StoreNotWritable,
    TopicNotFound,
    TopicNotReadable,
    TopicNotWritable,
)
from rockoon_core.message_queue import in_calls
from rockoon_format.log_marks import LogTopics, TopicChange
from rockoon_format.names import LITE_TOPIC_PREFIX, TRANSACTION_CHECK_MAX_TIME_TOPIC
from rockoon_node.deletions import Deletions
from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_node.store_directory import StoreCluster
from rockoon_proto.v1 import nameserver_pb2
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate

if TYPE_CHECKING:
    from rockoon_broker.append import Appends
    from rockoon_broker.store.store import Store

LISTED_SECONDS = 0.1


def as_log_topics(written: TopicTable) -> LogTopics:
    """Return the topics of a log without epochs, from the broker's file."""
    incarnations = {topic.name: topic.incarnation for topic in written.served}
    return LogTopics(written.revision, written.history, incarnations)


def table_in_log(written: TopicTable, known: LogTopics) -> TopicTable:
    """Return the topic table to compare with the next routes.

    Args:
        written: table in this replica's topic file.
        known: topics in the log; of topics missing in the file only the incarnation is known.
    """
    at_least = written.revision if written.history == known.history else 0
    topics = {
        name: replace(written.topics.get(name) or ServedTopic(name, 0), incarnation=incarnation)
        for name, incarnation in known.incarnations.items()
    }
    return TopicTable(max(at_least, known.revision), known.history, topics)


def served_before_routes(written: TopicTable, known: LogTopics) -> TopicTable:
    """Return the topics of the file that can be served before routes arrive; others must wait."""
    topics = {
        name: topic
        for name, topic in written.topics.items()
        if known.incarnations.get(name) == topic.incarnation
    }
    return replace(written, topics=topics)


def change_of(known: LogTopics, planned: TopicPlan) -> TopicChange | None:
    """Return the topic change that must be appended to the log before a plan applies; None if
    none."""
    table = planned.table
    wanted = {
        topic.name: topic.incarnation
        for topic in table.topics.values()
        if topic.queues or topic.name in known.incarnations
    }
    changed = {
        name: wanted.get(name)
        for name in known.incarnations.keys() | wanted.keys()
        if known.incarnations.get(name) != wanted.get(name)
    }
    if not changed and table.history == known.history:
        return None
    # Only topics that the log had in another incarnation: each deletion counts once.
    restarted = sorted(changed.keys() & known.incarnations.keys() & {*planned.over})
    return TopicChange(table.revision, table.history, changed, tuple(restarted))


async def record(store: "Store", appends: "Appends", planned: TopicPlan) -> Sequence[str]:
    """Append the topic change of a plan to the log; on return it is committed and applied.

    Returns:
        The topics whose messages were dropped.

    Raises:
        RockoonError: see `Appends.change_topics`; or another replica leads, or a sync has failed.
    """
    change = change_of(store.log_topics, planned)
    if change is None:
        return ()
    end, durable = appends.change_topics(change)
    failure = await durable
    if failure is not None:
        raise failure
    # Other copies may have it before this copy's disk; then it is not listed here yet.
    while store.visible_end < end:  # noqa: ASYNC110 - the next tick of the store lists it
        await asyncio.sleep(LISTED_SECONDS)
    return change.restarted


log = logging.getLogger(__name__)

CATCH_UP_SECONDS_MAX = 2.0
CATCH_UP_KNOWN_SECONDS_MAX = 0.25
RETRY_SECONDS = 1.0
NOTE_SECONDS = 10.0
# Each topic is a renamed directory; the marks of all are one write.
TOPICS_DROPPED_AT_ONCE_MAX = 100
# No route leads to it; operators must be able to read it.
GIVEN_UP = ServedTopic(TRANSACTION_CHECK_MAX_TIME_TOPIC, queues=1, permissions=PERMISSION_READ)


class ServedTopics:
    """The topics of one broker, and the consumer groups' settings in the routes.

    Args:
        broker: name of the broker in the routes.
        topic_file: topics served in the previous run.
        gone: called with each deleted topic as soon as it is no longer served.
        drop: drops the messages of deleted topics; raises StoreSyncFailed, StoreClosed, or OSError,
            after which it is called again.
        changed: called when the table was replaced.
        record: appends a plan to the log and drops messages of deleted topics; raises RockoonError.

    Attributes:
        table: the served topics.
        group_rules: retry settings of each consumer group.
        routes: follows the routes.
        change_failure: why a change of topics is delayed.
        offset_service: "host:port" of the offset service; empty while none is known.
    """

    def __init__(
        self,
        broker: str,
        topic_file: TopicFile,
        nameservers: Nameservers,
        cluster: StoreCluster,
        clock: Clock,
        *,
        gone: Callable[[str], None],
        drop: Callable[[Sequence[str]], None],
        changed: Callable[[], None],
        record: Callable[[TopicPlan], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._topic_file = topic_file
        self._cluster = cluster
        self._clock = clock
        self._gone = gone
        self._drop = drop
        self._changed = changed
        self._record = record
        self._is_in_log = False
        # The table with which routes are compared; differs from `table` before the first routes of
        # a log.
        self.table = self._compared = topic_file.read()
        self.group_rules = GroupRetryRules()
        self.offset_service = ""
        self.routes = RouteFollower(
            nameservers, self._apply_update, self._refusal, lambda: self.table.revision
        )
        # The last completely applied table, unlike `table` while topics are being dropped.
        self._applied = self.table
        # The last written table, and when it was written, in monotonic seconds.
        self._written = self.table
        self._written_at = clock.monotonic_seconds()
        self.change_failure: OSError | RockoonError | None = None
        # A wait for routes up to this revision timed out; known queues do not wait for them again.
        self._missed_revision = 0
        self._missed_seconds = -math.inf

    def use_log_topics(self, in_log: LogTopics) -> None:
        """Use the topics in the records of a log that is, or was, replicated; call before following
        routes.

        From then on `record` is called for a change instead of `drop`.
        """
        self._is_in_log = True
        written = self.table
        self.table = self._applied = served_before_routes(written, in_log)
        self._compared = table_in_log(written, in_log)

    def served(self, topic: str, queue_id: int, route_revision: int = 0) -> ServedTopic:
        """Return the topic of a queue that is served here.

        Args:
            topic, queue_id: the queue.
            route_revision: revision of the routes that the caller used, 0 for none.

        Raises:
            TopicNotFound, QueueNotFound: the queue does not exist.
            RouteNotReached: the queue is unknown here, but the caller's routes are newer.
            NotReady: the queue is unknown here, but may have been created under another leader.
        """
        found = GIVEN_UP if topic == GIVEN_UP.name else self.table.topics.get(topic)
        if found is not None and 0 <= queue_id < found.queues:
            return found
        if route_revision > self.table.revision:
            raise RouteNotReached(wanted=route_revision, revision=self.table.revision)
        self._require_routes()
        if found is None:
            raise TopicNotFound(topic=topic)
        raise QueueNotFound(topic=topic, queue=queue_id, broker=self._broker)

    def check_writable(self, topic: str, queue_id: int, route_revision: int = 0) -> None:
        """Raise if a queue may not be written to; see `served`."""
        if not self.served(topic, queue_id, route_revision).writable:
            raise TopicNotWritable(topic=topic)
        if topic.startswith(LITE_TOPIC_PREFIX):
            # The offset service deletes it only after the leader has reported it closed.
            self._require_routes()

    def check_readable(self, topic: str, queue_id: int, route_revision: int = 0) -> ServedTopic:
        """Raise if a queue may not be read; see `served`."""
        found = self.served(topic, queue_id, route_revision)
        if not found.readable:
            raise TopicNotReadable(topic=topic)
        return found

    async def catch_up(self, queues: list[tuple[str, int]], route_revision: int) -> None:
        """Wait, at most 2 s, until this broker has the routes that a caller has used.

        If all queues are known, the wait is shorter (0.25 s), and there is none while no nameserver
        answers. Known queues need the wait because a topic may have been recreated: messages
        appended to the deleted topic would be lost.
        """
        if route_revision <= self.table.revision:
            return
        known = all(self.knows(topic, queue_id) for topic, queue_id in queues)
        now = asyncio.get_running_loop().time
        given_up = route_revision <= self._missed_revision
        # A caller has waited for this revision a moment ago. Without this check, each batch of a
        # message would wait for the whole time.
        in_vain = given_up and now() < self._missed_seconds + CATCH_UP_SECONDS_MAX
        if in_vain or (known and (given_up or not self.routes.following)):
            self.routes.doubt()
            return
        seconds = CATCH_UP_KNOWN_SECONDS_MAX if known else CATCH_UP_SECONDS_MAX
        if not await self.routes.wait_revision(route_revision, seconds):
            self._missed_revision = max(self._missed_revision, route_revision)
            # For known queues the wait was shorter than for an unknown one.
            self._missed_seconds = self._missed_seconds if known else now()

    def knows(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is served here."""
        found = self.table.topics.get(topic)
        return found is not None and 0 <= queue_id < found.queues

    def knows_for_sure(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is served here, for callers that discard messages of unknown
        queues.

        Raises:
            NotReady: this broker has no routes that could prove that the queue does not exist.
        """
        known = self.knows(topic, queue_id)
        if not known:
            self._require_routes()
            if self.table.revision == 0:
                raise NotReady(service="the broker", reason="it has not received any routes")
        return known

    def lacks_routes(self) -> bool:
        """Return whether this replica is leader and has received no routes since it became
        leader."""
        return self._is_in_log and not self.routes.loaded.is_set()

    def _require_routes(self) -> None:
        """Raise NotReady if this leader has no routes yet: until then, its topic file may be
        outdated."""
        if self.lacks_routes():
            raise NotReady(
                service="the broker", reason="it has not received routes since it began to lead"
            )

    # Changes.

    def _refusal(self, update: RouteUpdate) -> str:
        try:
            return self._cluster.join(update.cluster_id)
        except OSError as failure:
            log.warning("could not write the cluster id file: %s", failure)
            return ""

    async def _apply_update(self, update: RouteUpdate) -> None:
        self.offset_service = offset_service_after(update, self.offset_service)
        is_news = update.snapshot or update.revision != self._applied.revision
        if not is_news and not self._revision_is_stale(self._applied):
            # No change, only a sign that the nameserver is alive.
            return
        await self.apply(change_from_wire(update, self._broker))
        self.group_rules.apply(update)

    async def apply(self, change: RouteChange) -> None:
        """Apply a change of the routes, durably.

        Retries until the disk accepts it, unless the store has ended: if a topic were served before
        its incarnation is stored, its messages would be dropped after a crash.
        """
        planned = plan(self._compared, change)
        if planned.another_history:
            log.error(
                "routes of revision %d do not continue those seen before, up to %d: etcd was "
                "replaced or has lost data; the messages of every topic are kept",
                change.revision,
                self._compared.revision,
            )
        self.table = self.table.without(planned.drop)
        for topic in planned.drop:
            self._gone(topic)
        while True:
            try:
                if self._is_in_log:
                    await self._record(planned)
                else:
                    await self._drop_in_turns(planned.drop)
                if planned.changed or self._revision_is_stale(planned.table):
                    await asyncio.to_thread(self._write, planned.table)
                break
            except (NotEnoughReplicas, StoreNotWritable) as failure:
                log.info("topic change delayed, retrying: %s", failure)
                self.change_failure = failure
                await asyncio.sleep(RETRY_SECONDS)
            except (StoreSyncFailed, StoreClosed, RockoonError) as failure:
                # The broker is about to end. Do not report the change as applied; wait to be
                # cancelled.
                log.info("topic change postponed to the next start: %s", failure)
                await asyncio.get_running_loop().create_future()
            except OSError as failure:
                log.error("topic change delayed by the disk, retrying: %s", failure)  # noqa: TRY400
                self.change_failure = failure
                await asyncio.sleep(RETRY_SECONDS)
        self.change_failure = None
        self.table = self._applied = self._compared = planned.table
        self._changed()

    async def _drop_in_turns(self, topics: Sequence[str]) -> None:
        for some in in_calls(topics, TOPICS_DROPPED_AT_ONCE_MAX):
            log.info("deleted: dropping the messages of %s", ", ".join(some))
            self._drop(some)
            # Let other tasks run.
            await asyncio.sleep(0)

    def _revision_is_stale(self, table: TopicTable) -> bool:
        """Return whether the revision in the topic file is too old.

        The newest revision seen shows whether etcd has lost data or topics were deleted.
        """
        age_seconds = self._clock.monotonic_seconds() - self._written_at
        return table.revision != self._written.revision and age_seconds >= NOTE_SECONDS

    def _write(self, table: TopicTable) -> None:
        self._topic_file.write(table, self._clock.now_ms())
        self._written, self._written_at = table, self._clock.monotonic_seconds()

    def write_revision(self) -> None:
        """Write the last route revision to the topic file, before the process ends."""
        if self._applied.revision != self._written.revision:
            try:
                self._write(self._applied)
            except OSError as failure:
                log.warning("could not write the route revision: %s", failure)


def change_from_wire(update: nameserver_pb2.RouteUpdate, broker: str) -> RouteChange:
    """Return the part of a route update that concerns the broker with the given name."""
    return RouteChange(
        revision=update.revision,
        snapshot=update.snapshot,
        history=update.etcd_cluster_id,
        topics=[topic_from_wire(topic, broker) for topic in update.topics],
        removed=list(update.removed_topics),
        # Deleted topics are dropped immediately, so earlier deletions need not be known.
        deletions=Deletions().after(update),
        went_back=update.etcd_went_back,
    )


def topic_from_wire(topic: nameserver_pb2.Topic, broker: str) -> ServedTopic:
    return ServedTopic(
        name=topic.config.name,
        queues=sum(block.queues for block in topic.blocks if block.broker == broker),
        incarnation=topic.incarnation,
        permissions=topic.config.permissions or PERMISSIONS_DEFAULT,
        attributes=dict(topic.config.attributes),
    )


def offset_service_after(update: nameserver_pb2.RouteUpdate, before: str) -> str:
    """Return the offset service's address after an update; empty if there is no offset service."""
    kind = nameserver_pb2.OFFSET_SERVICE
    gone = update.snapshot or any(node.kind == kind for node in update.removed_nodes)
    address = "" if gone else before
    for node in update.nodes:
        if node.kind == kind:
            address = node.address
    return address
