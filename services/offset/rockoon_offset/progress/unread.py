"""Unread messages in a range of a broker's log, by consumer group. No I/O; yields in long loops.

A broker asks before it deletes a file. For a group with progress on a queue, messages from its
committed offset on are unread. If a group has subscribed to the topic and has no progress on the
queue, the whole queue is unread, provided that this service keeps the group's progress: it has
progress on another queue, or the group has a start policy. Broadcasting groups and groups with a
custom offset store subscribe too, but never have progress here. A group reads its retry topic from
the beginning. With the policy LAST it reads no old message of a queue older than its subscription.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import NewQueueRule, StartRule
from rockoon_format.names import RETRY_TOPIC_PREFIX, is_retry_topic
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.readers import group_of, reader_of
from rockoon_offset.route_table import OffsetRoutes
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, CONSUME_FROM_UNSPECIFIED

EVERY_GROUP = "*"
NAMED_MAX = 64
# Entries of progress to read before other calls may run.
TURN_ENTRIES = 20_000


class OffsetRange(NamedTuple):
    """A range of queue offsets: [begin, end)."""

    begin: int
    end: int


class UnreadQueue(NamedTuple):
    """Number of messages of one queue that one reader (see `readers`) has not read."""

    reader: str
    queue: MessageQueue
    messages: int


class UnreadParts(NamedTuple):
    """Unread messages in all ranges of a broker's log."""

    named: list[UnreadQueue]
    """The queues and readers with most unread messages, most first."""
    messages: int
    is_waited_for: bool


async def unread_in(
    ranges: Mapping[MessageQueue, OffsetRange],
    ledger: Ledger,
    table: OffsetRoutes,
    waited_groups: Collection[str],
    cluster_rule: NewQueueRule,
) -> UnreadParts:
    """Count the messages in ranges of queues that known groups have not read.

    Args:
        waited_groups: groups whose unread messages set `is_waited_for`; `*`: every group.
        cluster_rule: new-queue rule of groups without their own.
    """
    # A heap of the entries with most messages.
    found: list[tuple[int, str, MessageQueue]] = []
    messages, seen, is_waited_for = 0, 0, False
    incarnation = table.create_revision_or_none

    def read(reader: str, queue: MessageQueue, offset: int) -> None:
        nonlocal messages, is_waited_for
        begin, end = ranges[queue]
        missing = end - max(begin, offset)
        if missing <= 0:
            return
        messages += missing
        is_waited_for |= EVERY_GROUP in waited_groups or group_of(reader) in waited_groups
        heapq.heappush(found, (missing, reader, queue))
        if len(found) > NAMED_MAX:
            heapq.heappop(found)

    for reader in list(ledger.table.readers()):
        if group_of(reader) not in table.groups:
            continue
        for queue, progress in list(ledger.table.of(reader).items()):
            # Progress on a deleted queue of the same name does not count.
            if queue in ranges and progress.incarnation == incarnation(queue):
                read(reader, queue, progress.offset)
            seen += 1
            if seen % TURN_ENTRIES == 0:
                await asyncio.sleep(0)
    for reader, queue in _not_started(ranges, ledger, table, cluster_rule):
        read(reader, queue, 0)
    named = [
        UnreadQueue(reader, queue, count) for count, reader, queue in sorted(found, reverse=True)
    ]
    return UnreadParts(named, messages, is_waited_for)


def _not_started(
    ranges: Mapping[MessageQueue, OffsetRange],
    ledger: Ledger,
    table: OffsetRoutes,
    cluster_rule: NewQueueRule,
) -> Iterator[tuple[str, MessageQueue]]:
    """Yield readers that have no progress on a queue yet, and will read its messages."""
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in ranges:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic, queues in by_topic.items():
        for group in sorted(table.readers.get(topic, set()) | retrying(topic)):
            if group not in table.groups or not _keeps_progress(group, table, ledger):
                continue
            reads = _reads_old(group, topic, table, cluster_rule)
            for queue in queues:
                created = table.create_revision_or_none(queue)
                if created is None or not reads(queue, created):
                    continue
                for reader in _readers(group, topic, table, ledger):
                    progress = ledger.find(reader, queue)
                    if progress is None or progress.incarnation != created:
                        yield reader, queue


def retrying(topic: str) -> set[str]:
    """Return a retry topic's group, which reads it without a subscription; else empty."""
    return {topic.removeprefix(RETRY_TOPIC_PREFIX)} if is_retry_topic(topic) else set()


def _keeps_progress(group: str, table: OffsetRoutes, ledger: Ledger) -> bool:
    """True if this service keeps the progress of a group, as far as it can know."""
    policy = table.groups[group].config.start_policy.consume_from
    return bool(
        ledger.table.of(group)
        # Members with their own progress.
        or ledger.known.of(group)
        or policy != CONSUME_FROM_UNSPECIFIED
    )


def _readers(group: str, topic: str, table: OffsetRoutes, ledger: Ledger) -> list[str]:
    """Return the readers of a group: the group, or its members if each has its own progress."""
    if table.groups[group].config.broadcast_progress != BROADCAST_SERVER:
        return [group]
    return [
        reader_of(group, name)
        for name, known in ledger.known.of(group).items()
        if topic in dict(known.since)
    ]


def _reads_old(
    group: str, topic: str, table: OffsetRoutes, cluster_rule: NewQueueRule
) -> Callable[[MessageQueue, int], bool]:
    """Return a function of a queue and its create revision: whether a group without progress may
    start before the end of the queue."""
    config = table.groups[group].config
    rule = NewQueueRule(config.new_queue_rule) or cluster_rule
    subscribed = table.subscriptions.get((group, topic), 0)
    starts_at_end = StartRule(config.start_policy.consume_from) is StartRule.LAST

    def reads(queue: MessageQueue, created: int) -> bool:
        # The rule CLASSIC depends on the broker's memory, so messages count as unread.
        is_new = rule is NewQueueRule.CLASSIC or created > subscribed
        return queue.is_retry or is_new or not starts_at_end

    return reads
