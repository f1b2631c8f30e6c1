"""The topics that a broker serves, kept in step with the routes.

Invariants:
1. `table` is replaced as a whole, by `apply` alone. A topic comes into it only once its incarnation
   is written down, in a log with copies by a committed record of it: served before that, it would
   after a crash be taken for another one, and what was stored for it dropped.
2. A deleted topic is in the table no more before anything of it is dropped, so nothing is appended
   behind the mark below which its records go.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence

from rockoon_broker.clock import Clock
from rockoon_broker.retries.retries import GroupRules
from rockoon_broker.store.errors import StoreClosed, StoreFailed
from rockoon_broker.topics.log_topics import served_before_routes, table_in_log
from rockoon_broker.topics.routes import change_from_wire, offset_service_after
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_broker.topics.topics import (
    PERMISSION_READ,
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
from rockoon_format.log_marks import LogTopics
from rockoon_format.names import LITE_TOPIC_PREFIX, TRANSACTION_CHECK_MAX_TIME_TOPIC
from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_node.store_cluster import StoreCluster
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate

log = logging.getLogger(__name__)

CATCH_UP_SECONDS_MAX = 2.0
CATCH_UP_KNOWN_SECONDS_MAX = 0.25
RETRY_SECONDS = 1.0
NOTE_SECONDS = 10.0
# Each is a directory that is moved; the marks of all are one write.
TOPICS_DROPPED_AT_ONCE_MAX = 100
# No route leads there; people have to get at what is in it.
GIVEN_UP = ServedTopic(TRANSACTION_CHECK_MAX_TIME_TOPIC, queues=1, permissions=PERMISSION_READ)


class ServedTopics:
    """The topics of one broker, and what the routes say of consumer groups.

    Args:
        broker: its name in the routes.
        topic_file: what was served when the broker ran last.
        nameservers: whose routes to follow.
        cluster: whose the store is.
        clock: for how long ago the table was written down.
        gone: told of each deleted topic as soon as it is served no more.
        drop: drops the messages of deleted topics; raises StoreFailed, StoreClosed, or OSError, to
            be called again.
        changed: called when another table is in force.
        record: has that log say what is planned, and drop what is over; raises RockoonError.

    Attributes:
        table: what is served now.
        group_rules: what each consumer group says of messages that fail.
        routes: follows the routes.
        change_failure: why a change of topics is not in force yet.
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
        # What the next routes are compared with: the table but before the first of a log's topics.
        self.table = self._compared = topic_file.read()
        self.group_rules = GroupRules()
        self.offset_service = ""
        self.routes = RouteFollower(
            nameservers, self._take, self._refusal, lambda: self.table.revision
        )
        # The last table whose change is complete, unlike `table` while topics are being dropped.
        self._applied = self.table
        # The table as it was last written down, and when, in monotonic seconds.
        self._written = self.table
        self._written_at = clock.monotonic_seconds()
        self.change_failure: OSError | RockoonError | None = None
        # Revisions up to here were waited for in vain; known queues do not wait for them again.
        self._given_up_revision = 0
        self._given_up_seconds = -math.inf

    def believe(self, in_log: LogTopics) -> None:
        """Go by what a log that has, or had, copies says of topics; before routes are followed.

        From here on `record` is called for a change, and not `drop`.
        """
        self._is_in_log = True
        written = self.table
        self.table = self._applied = served_before_routes(written, in_log)
        self._compared = table_in_log(written, in_log)

    def served(self, topic: str, queue_id: int, route_revision: int = 0) -> ServedTopic:
        """The topic of a queue that is served here.

        Args:
            topic, queue_id: the queue.
            route_revision: routes that the caller has seen the queue in, 0 for none.

        Raises:
            TopicNotFound, QueueNotFound: none such.
            RouteNotReached: none such that this broker has heard of, but it is behind the caller.
            NotReady: likewise, but another copy may have led when it was created.
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
        """Raise if a queue may not be written; see `served`."""
        if not self.served(topic, queue_id, route_revision).writable:
            raise TopicNotWritable(topic=topic)
        if topic.startswith(LITE_TOPIC_PREFIX):
            # Whoever deletes it goes by what the leader before has said: that it is closed.
            self._require_routes()

    def check_readable(self, topic: str, queue_id: int, route_revision: int = 0) -> ServedTopic:
        """Raise if a queue may not be read; see `served`."""
        found = self.served(topic, queue_id, route_revision)
        if not found.readable:
            raise TopicNotReadable(topic=topic)
        return found

    async def catch_up(self, queues: list[tuple[str, int]], route_revision: int) -> None:
        """Wait, at most 2 s, for routes that a caller has seen and this broker has not.

        A queue that is known is waited for as well: its topic may be another one by now, and what
        is appended to the old one goes with it. But only for a moment, because mostly it is the
        same, and not while no nameserver could tell.
        """
        if route_revision <= self.table.revision:
            return
        known = all(self.knows(topic, queue_id) for topic, queue_id in queues)
        now = asyncio.get_running_loop().time
        given_up = route_revision <= self._given_up_revision
        # Somebody has waited for it a moment ago: of many batches in a message not each one waits.
        in_vain = given_up and now() < self._given_up_seconds + CATCH_UP_SECONDS_MAX
        if in_vain or (known and (given_up or not self.routes.following)):
            self.routes.doubt()
            return
        seconds = CATCH_UP_KNOWN_SECONDS_MAX if known else CATCH_UP_SECONDS_MAX
        if not await self.routes.wait_revision(route_revision, seconds):
            self._given_up_revision = max(self._given_up_revision, route_revision)
            # A known queue is given up long before an unknown one would be.
            self._given_up_seconds = self._given_up_seconds if known else now()

    def knows(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is served here."""
        found = self.table.topics.get(topic)
        return found is not None and 0 <= queue_id < found.queues

    def knows_for_sure(self, topic: str, queue_id: int) -> bool:
        """Likewise, for who gives up what has no queue.

        Raises:
            NotReady: this broker has seen no routes that could say that there is none.
        """
        known = self.knows(topic, queue_id)
        if not known:
            self._require_routes()
            if self.table.revision == 0:
                raise NotReady(service="the broker", reason="it has not seen any routes")
        return known

    @property
    def lacks_routes(self) -> bool:
        """Whether this is a copy that leads and has not heard any routes since."""
        return self._is_in_log and not self.routes.loaded.is_set()

    def _require_routes(self) -> None:
        """Of a log with copies, what was written down here is of when this copy led last."""
        if self.lacks_routes:
            raise NotReady(service="the broker", reason="it has seen no routes since it leads")

    # What changes.

    def _refusal(self, update: RouteUpdate) -> str:
        try:
            return self._cluster.join(update.cluster_id)
        except OSError as failure:
            log.warning("which cluster this store belongs to is not written down: %s", failure)
            return ""

    async def _take(self, update: RouteUpdate) -> None:
        self.offset_service = offset_service_after(update, self.offset_service)
        is_news = update.snapshot or update.revision != self._applied.revision
        if not is_news and not self._revision_is_stale(self._applied):
            # A sign of life. Whoever is told of a change is woken by it.
            return
        await self.apply(change_from_wire(update, self._broker))
        self.group_rules.take(update)

    async def apply(self, change: RouteChange) -> None:
        """Put a change of the routes into force, durably.

        Tried again until the disk takes it, unless the store has ended: serving a topic whose
        incarnation is not written down would, after a crash, drop what was stored for it.
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
                log.info("a change of topics waits for the log: %s", failure)
                self.change_failure = failure
                await asyncio.sleep(RETRY_SECONDS)
            except (StoreFailed, StoreClosed, RockoonError) as failure:
                # The broker is about to end. Until it is cancelled it must not say that the
                # change is in force.
                log.info("a change of topics is left to the next start: %s", failure)
                await asyncio.get_running_loop().create_future()
            except OSError as failure:
                log.error("a change of topics waits for the disk: %s", failure)  # noqa: TRY400
                self.change_failure = failure
                await asyncio.sleep(RETRY_SECONDS)
        self.change_failure = None
        self.table = self._applied = self._compared = planned.table
        self._changed()

    async def _drop_in_turns(self, topics: Sequence[str]) -> None:
        for some in in_parts(topics, TOPICS_DROPPED_AT_ONCE_MAX):
            log.info("deleted: dropping the messages of %s", ", ".join(some))
            self._drop(some)
            # Others have their turn.
            await asyncio.sleep(0)

    def _revision_is_stale(self, table: TopicTable) -> bool:
        """Whether what is written down is far behind.

        The newest revision seen is how a lost etcd is told from one in which topics were deleted.
        """
        age_seconds = self._clock.monotonic_seconds() - self._written_at
        return table.revision != self._written.revision and age_seconds >= NOTE_SECONDS

    def _write(self, table: TopicTable) -> None:
        self._topic_file.write(table, self._clock.now_ms())
        self._written, self._written_at = table, self._clock.monotonic_seconds()

    def note_revision(self) -> None:
        """At the end: write down how far the routes were followed."""
        if self._applied.revision != self._written.revision:
            try:
                self._write(self._applied)
            except OSError as failure:
                log.warning("the route revision was not written down: %s", failure)


def in_parts(names: Sequence[str], count_max: int) -> Iterator[Sequence[str]]:
    """Some at a time, in their order."""
    for first in range(0, len(names), count_max):
        yield names[first : first + count_max]
