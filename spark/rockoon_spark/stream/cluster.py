"""Calls to the cluster by the driver of a stream, when it plans a batch."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rockoon.admin.reads import list_topics
from rockoon.errors import (
    BrokerUnavailable,
    OffsetServiceUnavailable,
    QueueNotFound,
    RockoonError,
    TopicNotFound,
)
from rockoon.net.connection import Connection
from rockoon.offsets.offset_lookup import OffsetLookup
from rockoon.offsets.start import ConsumeFrom
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import LogColumn, PullRequest
from rockoon_proto.v1.nameserver_pb2 import GetRouteRequest
from rockoon_spark.endpoint import open_connection
from rockoon_spark.records.selection import QueueKey
from rockoon_spark.records.sent_columns import numbers_of
from rockoon_spark.source.log_source import (
    BrokerAway,
    existing_queues,
    keys_of,
)
from rockoon_spark.source.options import no_such_queue, no_such_topic
from rockoon_spark.source.queue_partition import BatchRange, QueuePartition
from rockoon_spark.stream.group_progress import AFTER_FENCE, GroupProgress
from rockoon_spark.stream.options import OFFSET_EARLIEST, OFFSET_LATEST, StreamOptions
from rockoon_spark.stream.plan import StreamQueue

# For how long calls are repeated: long enough for a restart of a broker.
PLAN_RETRY_SECONDS = 10.0
# The mean message size of a queue is estimated from its next messages.
_SAMPLE_MESSAGES = 64
_SAMPLE_BYTES = 64 << 10
_SAMPLES_AT_ONCE_MAX = 16

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class StreamCluster:
    """Connection of a stream's driver to the cluster. Used by one thread; the constructor may
    block.

    Args:
        options: of the stream.
        after_fence: see `GroupProgress`.

    Raises:
        NameserverUnavailable: no nameserver answers.
    """

    def __init__(self, options: StreamOptions, after_fence: str = AFTER_FENCE) -> None:
        self._options = options
        self._blocking = open_connection(options.endpoint)
        self._blocking.__enter__()
        self._cluster: Connection = self._blocking.asyncio
        self._progress = (
            GroupProgress(self._cluster, options.group, after_fence) if options.group else None
        )

    def close(self) -> None:
        """Close the connection to the cluster."""
        self._blocking.__exit__(None, None, None)

    def queues(self) -> dict[MessageQueue, StreamQueue]:
        """Return the current state of all queues that the stream reads.

        Raises:
            BrokerAway: a broker does not answer.
            RockoonError: no nameserver answers.
        """
        return self._call(self._queues)

    async def _queues(self) -> dict[MessageQueue, StreamQueue]:
        selection = self._options.selection
        create_revisions = {
            queue: at
            for queue, at in (await self._create_revisions(await self._topics())).items()
            if selection.wants_queue(*queue)
        }
        ends = await OffsetLookup(self._cluster).ends(create_revisions)
        return {
            queue: StreamQueue(create_revisions[queue], *ends[queue])
            for queue in sorted(create_revisions)
        }

    async def _topics(self) -> Sequence[str]:
        if self._options.topics:
            return sorted(self._options.topics)
        includes_internal = self._options.selection.includes_internal
        listed = await list_topics(self._cluster, include_system=includes_internal)
        return [
            route.name
            for route in listed
            if route.readable and self._options.selection.wants_topic(route.name)
        ]

    def cluster_id(self) -> int:
        """Return the number that identifies the cluster; 0 if its nameservers do not report it."""
        request = GetRouteRequest(topics=sorted(self._options.topics))
        reply = self._call(lambda: self._cluster.call_nameserver("GetRoute", request))
        return int(reply.cluster_id)

    def check_names(self, now: Mapping[MessageQueue, StreamQueue]) -> None:
        """Check that the topics and queues that options name exist; `now` is the result of
        `queues`.

        Raises:
            OptionError: one does not exist.
        """
        topics, assigned = self._options.topics, self._options.selection.assigned
        found = {queue.topic for queue in now}
        absent = [name for name in sorted(topics) if name not in found]
        keys = {key for queue in now for key in keys_of(queue)}
        if not absent and assigned <= keys:
            return
        routes = self._call(lambda: list_topics(self._cluster, include_system=True))
        existing = existing_queues(routes)
        for name in absent:
            if name not in existing.topics:
                raise no_such_topic(topics[name], name, existing.topics)
        for key in sorted(assigned - keys):
            raise no_such_queue("assign", key, existing.queues)
        for name in absent:
            raise no_such_topic(topics[name], name, ())

    def starting(self, now: Mapping[MessageQueue, StreamQueue]) -> dict[MessageQueue, int]:
        """Return the start offset of each queue, by the options; `now` is the result of `queues`.

        Raises:
            OptionError: an option names a queue that does not exist.
        """
        policy = self._options.starting.policy
        if policy == ConsumeFrom.GROUP:
            assert self._progress is not None
            found = self._progress.starts()
        elif policy == ConsumeFrom.LAST:
            found = {queue: each.end for queue, each in now.items()}
        elif policy == ConsumeFrom.FIRST:
            found = {queue: each.min_offset for queue, each in now.items()}
        else:
            chosen = self._call(lambda: OffsetLookup(self._cluster).choose(now, policy))
            found = {queue: start.offset for queue, start in chosen.items()}
        starting = self._options.starting
        named = dict(_named(now, "startingOffsets", starting.offsets))
        for queue, offset in named.items():
            special = {OFFSET_LATEST: now[queue].end, OFFSET_EARLIEST: now[queue].min_offset}
            named[queue] = special.get(offset, offset)
        times_ms = _named(now, "startingOffsetsByTimestamp", starting.times_ms)
        if times_ms:
            named |= self._call(lambda: OffsetLookup(self._cluster).search(times_ms))
        return {**found, **named}

    def join_group(self, now: Mapping[MessageQueue, StreamQueue]) -> None:
        """Join the consumer group, if there is one; see `GroupProgress.join`."""
        progress = self._progress
        if progress is None:
            return
        try:
            self._call(
                lambda: progress.join({queue: each.create_revision for queue, each in now.items()})
            )
        except OffsetServiceUnavailable as error:
            if not progress.starts():
                raise
            log.warning(
                "group %s could not join new queues, next try with the next batch: %s",
                self._options.group,
                error,
            )

    def commit(self, finished: Mapping[MessageQueue, int]) -> None:
        """Store progress, if there is a consumer group; see `GroupProgress.store`."""
        if self._progress is not None:
            self._blocking.call(self._progress.store(finished))

    def message_bytes(self, begins: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the mean size in bytes of the next messages of each queue.

        Args:
            begins: offset of the next message of each queue.
        """
        return self._call(lambda: self._message_bytes(begins))

    async def _message_bytes(self, begins: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        slots = asyncio.Semaphore(_SAMPLES_AT_ONCE_MAX)
        found: dict[MessageQueue, int] = {}

        async def sample(queue: MessageQueue, offset: int) -> None:
            async with slots:
                reply = await self._cluster.call(
                    self._cluster.broker(queue.broker).Pull,
                    PullRequest(
                        topic=queue.topic,
                        queue_id=queue.queue_id,
                        offset=offset,
                        max_messages=_SAMPLE_MESSAGES,
                        max_bytes=_SAMPLE_BYTES,
                    ),
                    unavailable=BrokerUnavailable,
                    broker=queue.broker,
                )
            count = len(reply.record_lengths) // 4
            found[queue] = len(reply.frames) // count if count else _SAMPLE_BYTES

        failures: Sequence[BaseException] = ()
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue, offset in begins.items():
                    tasks.create_task(sample(queue, offset), name=f"sample {queue}")
        except* RockoonError as group:
            failures = group.exceptions
        if failures:
            raise failures[0]
        return found

    def create_revisions(self, topics: Iterable[str]) -> dict[MessageQueue, int]:
        """Return the create revisions of the queues of the topics that exist."""
        return self._call(lambda: self._create_revisions(topics))

    async def _create_revisions(self, topics: Iterable[str]) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for topic in topics:
            try:
                found.update((await self._cluster.route(topic)).create_revisions)
            except TopicNotFound:
                continue
        return found

    def partitions(
        self, ranges: Iterable[BatchRange], columns: Sequence[str]
    ) -> list[QueuePartition]:
        """Return the input of a task for each range of a queue's offsets.

        Args:
            columns: the only columns that the reader needs.

        Raises:
            BrokerAway: a broker has no address.
        """
        return self._call(lambda: self._partitions(list(ranges), numbers_of(columns)))

    async def _partitions(
        self, ranges: list[BatchRange], columns: Sequence[LogColumn]
    ) -> list[QueuePartition]:
        routes = self._cluster.routes
        found = []
        for each in ranges:
            address = self._cluster.broker_address(each.queue.broker)
            revision = routes.needed_revision(each.queue.topic)
            options = self._options
            found.append(
                QueuePartition(
                    each, address, revision, options.fails_on_data_loss, options.endpoint, columns
                )
            )
        return found

    def _call(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run `attempt`; repeat it after temporary failures, for PLAN_RETRY_SECONDS."""
        deadline = time.monotonic() + PLAN_RETRY_SECONDS
        backoff = Backoff()

        async def once() -> Answer:
            return await attempt()

        while True:
            try:
                return self._blocking.call(once())
            except RockoonError as error:
                pause = backoff.next_seconds()
                # A topic that was just deleted is still in the routes for a moment.
                can_pass = error.retriable or isinstance(error, TopicNotFound | QueueNotFound)
                if not can_pass or time.monotonic() + pause > deadline:
                    if isinstance(error, BrokerUnavailable):
                        raise BrokerAway(
                            f"the cluster at {self._options.endpoint} cannot be read: {error}"
                        ) from error
                    raise
            time.sleep(pause)


def _named(
    now: Iterable[MessageQueue], option: str, given: Mapping[QueueKey, int]
) -> dict[MessageQueue, int]:
    """Return the value of an option for each queue that it names.

    Raises:
        OptionError: a queue does not exist.
    """
    existing = list(now)
    named: dict[MessageQueue, int] = {}
    # Sorted: values for one broker follow those for all brokers, and override them.
    for key, value in sorted(given.items()):
        topic, broker, number = key
        meant = [
            queue
            for queue in existing
            if (queue.topic, queue.queue_id) == (topic, number) and broker in ("", queue.broker)
        ]
        if not meant:
            raise no_such_queue(option, key, {key for queue in existing for key in keys_of(queue)})
        named.update(dict.fromkeys(meant, value))
    return named
