"""Asks the offset service for unread messages in files that retention would delete.

Retention decides in the store, which has no network access: a pass that would delete files sets
`Store.wanted_readings`. This task determines the queue offsets of each file, asks the offset
service, and runs another pass (`Store.clean_with`). If the offset service does not answer, progress
is unknown, and files count as unread.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import grpc

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock
from rockoon_broker.cooperative import in_turns
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.store.errors import StorageError
from rockoon_broker.store.retention.retention import FileReading, UnreadBy
from rockoon_broker.store.store import Store
from rockoon_broker.topics.served_topics import ServedTopics
from rockoon_core.errors import OffsetServiceUnavailable, RockoonError
from rockoon_core.failed_call import from_rpc_error
from rockoon_format.names import is_system_topic
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.offset_pb2 import QueueSpan, UnreadReply, UnreadRequest
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.waking import Bell

if TYPE_CHECKING:
    from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceAsyncStub

log = logging.getLogger(__name__)

CALL_SECONDS_MAX = 5.0
SPANS_PER_CALL_MAX = 4096
# Readers named in a log line and in `status`.
NAMED_MAX = 8
RETRY_SECONDS = 1.0


class UnreadFiles:
    """Answers a store's requests about its oldest files, until cancelled.

    Args:
        topics: the served topics, and the address of the offset service.
        waited_groups: see the setting `retention_wait_for_groups`; may be replaced.
        store_changed: called after a pass, to wake the store's loop.
    """

    def __init__(
        self,
        broker: str,
        store: Store,
        topics: ServedTopics,
        pending: PendingIndex,
        nameservers: Nameservers,
        waited_groups: tuple[str, ...],
        clock: Clock,
        store_changed: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._store = store
        self._topics = topics
        self._pending = pending
        self._nameservers = nameservers
        self.waited_groups = waited_groups
        self._clock = clock
        self._store_changed = store_changed
        self._wanted = Bell()

    def ticked(self) -> None:
        """Wake `run` if retention waits for the unread messages of a file; call it after each tick
        of the store."""
        if self._store.wanted_readings:
            self._wanted.ring()

    async def run(self) -> None:
        """Answer requests until cancelled."""
        logged = ""
        while True:
            if not self._store.wanted_readings:
                await self._wanted.wait()
            try:
                await self.answer()
                logged = ""
            except (OSError, StorageError, RockoonError) as failure:
                if str(failure) != logged:
                    logged = str(failure)
                    log.warning(
                        "retention deletes no files until this is resolved, retrying: %s", failure
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def answer(self) -> None:
        """Determine the unread messages of requested files, and run a pass with them.

        Raises:
            OSError: the disk. StorageError, NotReady: the store has failed or is closed.
        """
        readings: dict[int, FileReading] = {}
        for end in self._store.wanted_readings:
            readings[end] = await self.reading(end)
        # No await between the last answer and the deletion.
        self._store.clean_with(readings, self._clock.now_ms())
        self._store_changed()

    async def reading(self, end: int) -> FileReading:
        """Return unread messages below a physical offset of the log. Raises: see `answer`."""
        revision = self._topics.table.revision
        spans = await self._spans(end)
        pending = self._pending.waiting_below(end)
        replies: list[UnreadReply] = []
        try:
            for first in range(0, len(spans), SPANS_PER_CALL_MAX):
                part = spans[first : first + SPANS_PER_CALL_MAX]
                replies.append(await self._ask(part, revision))
        except RockoonError as failure:
            return FileReading(is_waited_for=True, pending=pending, unknown_because=str(failure))
        return _joined(replies, pending, self._broker)

    async def _spans(self, end: int) -> list[QueueSpan]:
        """Return the offsets of each queue below a physical offset, except those in a
        generation."""
        spans: list[QueueSpan] = []
        coverages = self._store.compaction.coverages
        async for queue in in_turns(self._store.queues(), self._clock):
            topic, queue_id = queue
            if is_system_topic(topic):
                # Delayed and half messages are counted as pending instead.
                continue
            begin, first_kept = await cold_reads.answer(partial(self._store.first_at, queue, end))
            coverage = coverages.get(queue)
            if coverage is not None and coverage.covered_to >= first_kept:
                # The generation has the newest message of each key.
                continue
            if begin < first_kept:
                spans.append(QueueSpan(topic=topic, queue_id=queue_id, begin=begin, end=first_kept))
        return spans

    async def _ask(self, spans: list[QueueSpan], revision: int) -> UnreadReply:
        address = self._topics.offset_service
        if not address:
            raise OffsetServiceUnavailable
        stub: OffsetServiceAsyncStub = OffsetServiceStub(self._nameservers.channel(address))
        request = UnreadRequest(
            broker=self._broker,
            spans=spans,
            waited_groups=self.waited_groups,
            route_revision=revision,
        )
        metadata = self._nameservers.metadata
        try:
            return await stub.Unread(request, timeout=CALL_SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, OffsetServiceUnavailable) from failure


def _joined(replies: list[UnreadReply], pending: int, broker: str) -> FileReading:
    """Combine several replies about one file."""
    found = sorted(
        (each for reply in replies for each in reply.unread), key=lambda each: -each.messages
    )
    return FileReading(
        unread=tuple(
            UnreadBy(
                f"{each.group}@{each.member}" if each.member else each.group,
                f"{each.topic}@{broker}:{each.queue_id}",
                each.messages,
            )
            for each in found[:NAMED_MAX]
        ),
        messages=sum(reply.messages for reply in replies),
        is_waited_for=any(reply.is_waited_for for reply in replies),
        pending=pending,
    )
