"""Queues of groups' own topics, %RETRY%GROUP and %DLQ%GROUP, that imported progress is on.

Nameservers make these topics when they are first needed, so they do not exist yet when progress
comes from another cluster. An import that skipped their offsets would have the group handle every
message of its retry topic again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
from rockoon_offset.progress.bounded_calls import run_calls
from rockoon_offset.progress.loop_share import LoopShare
from rockoon_offset.progress.progress_files import Entry
from rockoon_offset.progress.readers import group_of
from rockoon_offset.routes import Routes
from rockoon_proto.v1.nameserver_pb2 import (
    GROUP_DEAD_LETTERS,
    GROUP_RETRY,
    CreateGroupRequest,
    GroupConfig,
    ProvideGroupTopicRequest,
)

# On one broker, as nameservers bound it.
QUEUES_MAX = 4_096
CALL_SECONDS_MAX = 3.0


class Place(NamedTuple):
    """A group's own topic on one broker."""

    topic: str
    broker: str


class GroupQueuesMade(NamedTuple):
    """Which queues of groups' own topics an import lacked.

    Attributes:
        queues: how many queues each topic has or would have on a broker.
        refused: why they could not be made.
    """

    queues: Mapping[Place, int]
    refused: Mapping[Place, RockoonError]

    def refusal(self, queue: MessageQueue) -> RockoonError | None:
        return self.refused.get(Place(queue.topic, queue.broker))

    def includes(self, queue: MessageQueue) -> bool:
        place = Place(queue.topic, queue.broker)
        return place not in self.refused and queue.queue_id < self.queues.get(place, 0)


class GroupQueues:
    """Makes the queues that an import lacks.

    Args:
        routes: groups and queues that exist.
        nameservers: make groups and topics.
        route_wait_seconds: how long to wait for the routes of a topic that was made.
    """

    def __init__(self, routes: Routes, nameservers: Nameservers, route_wait_seconds: float) -> None:
        self._routes = routes
        self._nameservers = nameservers
        self._route_wait_seconds = route_wait_seconds

    async def make(
        self, entries: Sequence[Entry], share: LoopShare, *, dry_run: bool
    ) -> GroupQueuesMade:
        """Make the queues that entries are on and that do not exist; groups, too.

        Args:
            entries: names and numbers that were checked.
            share: of the event loop.
            dry_run: only find out which queues are missing.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        table = self._routes.table
        lacking: dict[Place, int] = {}
        groups: set[str] = set()
        for entry in entries:
            await share.pause_when_used()
            groups.add(group_of(entry.group))
            queue = entry.queue
            if is_of_a_group(queue) and table.create_revision_or_none(queue) is None:
                place = Place(queue.topic, queue.broker)
                lacking[place] = max(lacking.get(place, 0), queue.queue_id + 1)
        refused: dict[Place, RockoonError] = {}

        async def make_one(place: Place, queues: int) -> None:
            try:
                await self._make_place(place, queues, groups, dry_run=dry_run)
            except NameserverUnavailable:
                raise
            except RockoonError as reason:
                refused[place] = reason

        await run_calls(make_one(place, queues) for place, queues in lacking.items())
        return GroupQueuesMade(lacking, refused)

    async def _make_place(
        self, place: Place, queues: int, groups: set[str], *, dry_run: bool
    ) -> None:
        table, group = self._routes.table, owner_of(place.topic)
        if place.broker not in table.brokers:
            # A nameserver would make the queues, and a misspelt broker would have them for ever.
            raise BrokerUnavailable(broker=place.broker)
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
            topic=GROUP_RETRY if is_retry_topic(place.topic) else GROUP_DEAD_LETTERS,
            broker=place.broker,
            queues=queues,
        )
        reply = await nameservers.call(
            lambda stub: stub.ProvideGroupTopic(request, timeout=timeout, metadata=metadata)
        )
        if not await self._routes.wait_revision(reply.revision, self._route_wait_seconds):
            reason = f"the routes of the new topic {place.topic} did not arrive; import again"
            raise NotReady(service="the offset service", reason=reason)


def is_of_a_group(queue: MessageQueue) -> bool:
    """Whether nameservers can make a queue: of a retry or dead-letter topic, with a possible id."""
    is_own = is_retry_topic(queue.topic) or is_dlq_topic(queue.topic)
    return is_own and queue.queue_id < QUEUES_MAX and not group_fault(owner_of(queue.topic))


def owner_of(topic: str) -> str:
    """The group of a retry or dead-letter topic."""
    return topic.removeprefix(RETRY_TOPIC_PREFIX if is_retry_topic(topic) else DLQ_TOPIC_PREFIX)
