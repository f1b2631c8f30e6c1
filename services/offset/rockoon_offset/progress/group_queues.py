"""Creation of queues of %RETRY%GROUP and %DLQ%GROUP for imported progress.

Nameservers create these topics at their first use, so they may not exist when progress is imported
from another cluster. If an import skipped their offsets, the group would handle every message of
its retry topic again.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rockoon_core.errors import (
    BrokerUnavailable,
    GroupNotFound,
    NameserverUnavailable,
    NotReady,
    RockoonError,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_format.names import (
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    group_fault,
    is_dlq_topic,
    is_retry_topic,
)
from rockoon_node.nameservers import Nameservers
from rockoon_offset.progress.progress_files import Entry
from rockoon_offset.progress.readers import group_of
from rockoon_offset.routes import FollowedRoutes
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    CreateGroupRequest,
    GroupConfig,
    ProvideGroupTopicRequest,
)

SLICE_SECONDS = 0.01


class LoopShare:
    """Yields to the event loop when a slice of time is used up."""

    def __init__(self) -> None:
        self._end_seconds = time.monotonic() + SLICE_SECONDS

    async def pause_when_used(self) -> None:
        """Yield if the slice is used up. Call it between steps of the work."""
        if time.monotonic() >= self._end_seconds:
            await asyncio.sleep(0)
            self._end_seconds = time.monotonic() + SLICE_SECONDS


# Queues of a topic on one broker: the bound of the nameservers.
QUEUES_MAX = 4_096
CALL_SECONDS_MAX = 3.0
# Concurrent calls to nameservers.
CALLS_MAX = 16


class BrokerTopic(NamedTuple):
    """A retry or dead-letter topic on one broker."""

    topic: str
    broker: str


class GroupQueuesMade(NamedTuple):
    """Missing retry and dead-letter queues that an import created, or would create.

    Attributes:
        queues: number of queues that each topic has after the import on a broker.
        refused: errors of topics that could not be created.
    """

    queues: Mapping[BrokerTopic, int]
    refused: Mapping[BrokerTopic, RockoonError]

    def refusal(self, queue: MessageQueue) -> RockoonError | None:
        return self.refused.get(BrokerTopic(queue.topic, queue.broker))

    def includes(self, queue: MessageQueue) -> bool:
        topic = BrokerTopic(queue.topic, queue.broker)
        return topic not in self.refused and queue.queue_id < self.queues.get(topic, 0)


class GroupQueues:
    """Creates missing retry and dead-letter queues of an import.

    Args:
        route_wait_seconds: how long to wait for the routes of a created topic.
    """

    def __init__(
        self, routes: FollowedRoutes, nameservers: Nameservers, route_wait_seconds: float
    ) -> None:
        self._routes = routes
        self._nameservers = nameservers
        self._route_wait_seconds = route_wait_seconds

    async def make(
        self, entries: Sequence[Entry], share: LoopShare, *, dry_run: bool
    ) -> GroupQueuesMade:
        """Create the missing queues of import entries, and their groups.

        Args:
            dry_run: only compute which queues are missing.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        table = self._routes.table
        lacking: dict[BrokerTopic, int] = {}
        groups: set[str] = set()
        for entry in entries:
            await share.pause_when_used()
            groups.add(group_of(entry.group))
            queue = entry.queue
            if is_of_a_group(queue) and table.create_revision_or_none(queue) is None:
                topic = BrokerTopic(queue.topic, queue.broker)
                lacking[topic] = max(lacking.get(topic, 0), queue.queue_id + 1)
        refused: dict[BrokerTopic, RockoonError] = {}

        async def make_one(wanted: BrokerTopic, queues: int) -> None:
            try:
                await self._make_one(wanted, queues, groups, dry_run=dry_run)
            except NameserverUnavailable:
                raise
            except RockoonError as reason:
                refused[wanted] = reason

        await run_calls(make_one(wanted, queues) for wanted, queues in lacking.items())
        return GroupQueuesMade(lacking, refused)

    async def _make_one(
        self, wanted: BrokerTopic, queues: int, groups: set[str], *, dry_run: bool
    ) -> None:
        table, group = self._routes.table, owner_of(wanted.topic)
        if wanted.broker not in table.brokers:
            # A nameserver would create the queues, and a misspelt broker name would keep them.
            raise BrokerUnavailable(broker=wanted.broker)
        if group not in table.groups and group not in groups:
            raise GroupNotFound(group=group)
        if dry_run:
            return
        nameservers = self._nameservers
        timeout, metadata = CALL_SECONDS_MAX, nameservers.metadata
        if group not in table.groups:
            new = CreateGroupRequest(config=GroupConfig(name=group), if_absent=True)
            await nameservers.call(
                lambda stub: stub.CreateGroup(new, timeout=timeout, metadata=metadata)
            )
        request = ProvideGroupTopicRequest(
            group=group,
            topic=GROUP_RETRY if is_retry_topic(wanted.topic) else GROUP_DEAD_LETTERS,
            broker=wanted.broker,
            queues=queues,
        )
        reply = await nameservers.call(
            lambda stub: stub.ProvideGroupTopic(request, timeout=timeout, metadata=metadata)
        )
        if not await self._routes.wait_revision(reply.revision, self._route_wait_seconds):
            reason = f"the routes of the new topic {wanted.topic} did not arrive; import again"
            raise NotReady(service="the offset service", reason=reason)


def is_of_a_group(queue: MessageQueue) -> bool:
    """True for a retry or dead-letter topic and an id in range: nameservers can create it."""
    is_own = is_retry_topic(queue.topic) or is_dlq_topic(queue.topic)
    return is_own and queue.queue_id < QUEUES_MAX and not group_fault(owner_of(queue.topic))


def owner_of(topic: str) -> str:
    """Return the group of a retry or dead-letter topic."""
    return topic.removeprefix(RETRY_TOPIC_PREFIX if is_retry_topic(topic) else DLQ_TOPIC_PREFIX)


async def run_calls(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls, at most `CALLS_MAX` at a time. The iterable is advanced when a call starts.

    Raises:
        NameserverUnavailable: a call failed. Calls that were not started are skipped, because each
            would wait until its time limit.
    """
    waiting = iter(calls)
    failures: list[NameserverUnavailable] = []

    async def work(waiting: Iterator[Coroutine[Any, Any, None]]) -> None:
        while not failures and (call := next(waiting, None)) is not None:
            try:
                await call
            except NameserverUnavailable as failure:
                failures.append(failure)

    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLS_MAX):
            tasks.create_task(work(waiting), name=f"call {number} of an import")
    if failures:
        raise failures[0]
