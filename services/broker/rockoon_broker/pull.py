"""Pulls: read messages of a queue, filter them by expressions, or wait until messages arrive.

Source of the filter: ExpressionMessageFilter#isMatchedByCommitLog.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock
from rockoon_broker.long_poll import PullProgress, Step, WaitingPulls
from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_broker.store.store import Store
from rockoon_broker.traffic import Flow
from rockoon_core.errors import StoreCorrupt
from rockoon_core.light_dataclass import light_dataclass

if TYPE_CHECKING:
    from rockoon_format.sql92 import Expression
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from rockoon_core.errors import InvalidExpression
from rockoon_format.columns import decode_columns
from rockoon_format.frames import slices

if TYPE_CHECKING:
    from rockoon_format.sql92 import Expression

EXPRESSIONS_MAX = 256


@lru_cache(maxsize=EXPRESSIONS_MAX)
def expression_of(text: str) -> "Expression":
    """Return the compiled expression, cached if recently used.

    Raises:
        InvalidExpression: the text is invalid; the message has the position.
    """
    # Most clusters filter only by tags, and the import of the language needs 7 ms.
    from rockoon_format import sql92

    try:
        return sql92.compile(text)
    except sql92.Sql92Error as failure:
        # Errors are sent in metadata, which is short: quote only the text around the position.
        around, _, _ = failure.pointer.partition("\n")
        raise InvalidExpression(
            expression=around, reason=str(failure), position=failure.position
        ) from failure


def select(
    found: GetResult, expression: "Expression", messages_max: int, bytes_max: int
) -> GetResult:
    """Filter found messages by an expression.

    Args:
        found: result of a read; returned unchanged if it has no messages.
        expression: keeps messages for which it is True. Damaged messages are kept too, so that the
            consumer notices the damage.
        messages_max: maximum number of messages; the next offset is that of the first one left out.
        bytes_max: maximum size; the first message is always included.
    """
    if found.status is not GetStatus.FOUND:
        return found
    columns = decode_columns(found.frames, found.lengths)
    answer = expression.matches_encoded
    selected = [index for index, raw in enumerate(columns.properties_bytes) if answer(raw) is True]
    wanted = np.union1d(np.array(selected, np.int64), columns.damaged)
    nothing = np.zeros(0, np.uint32)
    if len(wanted) == 0:
        return replace(found, status=GetStatus.NO_MATCHED_MESSAGE, frames=b"", lengths=nothing)
    sizes = columns.lengths[wanted]
    fitting = int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))
    taken = max(1, min(fitting, messages_max))
    next_offset = found.next_offset
    if taken < len(wanted):
        next_offset = int(columns.queue_offsets[wanted[taken]])
        wanted, sizes = wanted[:taken], sizes[:taken]
    if len(wanted) == len(columns):
        return replace(found, next_offset=next_offset)
    starts = (np.cumsum(columns.lengths) - columns.lengths)[wanted]
    frames = b"".join(slices(found.frames, starts, sizes))
    return replace(found, next_offset=next_offset, frames=frames, lengths=sizes.astype(np.uint32))


MESSAGES_DEFAULT = 1024
MESSAGES_MAX = 65_536
BYTES_DEFAULT = 1 << 20
BYTES_MAX = 16 << 20
# Upper limit of the requested wait: by its next request a reader shows that it is alive.
WAIT_MS_MAX = 30_000
# Time for which damage is reported after a reader has found it, and maximum of damaged files.
DAMAGE_REPORT_SECONDS = 600.0
DAMAGED_FILES_MAX = 8
# Entries examined in one read, so that a rare tag in a long queue does not block other readers.
ENTRIES_PER_READ = 16_384
# Limits of one read with an expression, which must read the messages themselves.
COMPARISONS_PER_READ = 8192
BYTES_PER_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class PullQuery:
    """A pull request."""

    topic: str
    queue_id: int
    offset: int
    messages_max: int
    """0: the default; larger values are reduced to the maximum."""
    bytes_max: int
    """As `messages_max`."""
    wait_ms: int
    tag_codes: NDArray[np.int64] | None = None
    """None selects every message."""
    expression: "Expression | None" = None
    """None selects every message; not together with `tag_codes`."""
    group: str = ""
    """Consumer group of the reader, for counters only; empty outside groups."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Maximum of messages and bytes of one reply."""
        return (
            min(self.messages_max or MESSAGES_DEFAULT, MESSAGES_MAX),
            min(self.bytes_max or BYTES_DEFAULT, BYTES_MAX),
        )


@light_dataclass
class PullResult:
    """Result of a pull."""

    status: GetStatus
    next_offset: int
    found: GetResult


class Pulls:
    """Pulls from a store. Used by the event loop's thread only.

    Args:
        store: open.
        waiting: the waiting pulls; its other users wake them.
        clock: measures the waits.
    """

    def __init__(self, store: Store, waiting: WaitingPulls, clock: Clock) -> None:
        self._store = store
        self._waiting = waiting
        self._clock = clock
        self.messages = 0
        self.bytes = 0
        self.sent = Flow()
        # By file: the newest damage that a reader has found, and its time in monotonic seconds.
        # Bounded.
        self._damage: OrderedDict[str, tuple[StoreDamaged, float]] = OrderedDict()
        # Called with damage that a reader has found; a replicated log repairs it.
        self.on_damage: Callable[[StoreDamaged], None] = lambda _: None

    async def pull(self, query: PullQuery, check: Callable[[], None]) -> PullResult:
        """Return messages, or a status that says why there are none; waits at most as requested.

        Safe to cancel, for example when the reader disconnects.

        Args:
            query: the request.
            check: raises if the queue may not be read.

        Raises:
            StoreCorrupt: the first message cannot be read because the store is damaged.
        """
        progress = PullProgress(asked_offset=query.offset, offset=query.offset)
        wait_seconds = min(query.wait_ms, WAIT_MS_MAX) / 1000
        deadline = self._clock.monotonic_seconds() + wait_seconds if wait_seconds else 0.0

        def read() -> GetResult:
            # Each time: the topic may have been created again while the disk was read.
            check()
            return self.read(query, progress.offset)

        while True:
            found = await cold_reads.answer(read)
            step = progress.step(found)
            if step is Step.ANSWER or not deadline:
                break
            remaining_seconds = deadline - self._clock.monotonic_seconds()
            if remaining_seconds <= 0:
                break
            if step is Step.CONTINUE:
                await asyncio.sleep(0)
            elif not await self._wait((query.topic, query.queue_id), remaining_seconds):
                break
        self.count(query, found.count, len(found.frames))
        status, next_offset = progress.answer(found)
        return PullResult(status, next_offset, found)

    def read(
        self,
        query: PullQuery,
        offset: int,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> GetResult:
        """Return the messages that are there now.

        Args:
            query: the request.
            offset: offset to read from; the query's own offset is ignored.
            messages_max, bytes_max: further limits, 1 or more.

        Raises:
            StoreCorrupt: the first message cannot be read because the store is damaged.
            ColdRead: see `file_reads`.
        """
        bounds = query.bounds
        messages_max, bytes_max = min(bounds[0], messages_max), min(bounds[1], bytes_max)
        try:
            return self._read(query, offset, messages_max, bytes_max)
        except StoreDamaged as damage:
            self.record_damage(damage)
            raise StoreCorrupt(path=damage.path, reason=damage.reason) from damage

    def count(self, query: PullQuery, messages: int, size_bytes: int) -> None:
        """Count messages that are sent to a reader."""
        if messages:
            self.messages += messages
            self.bytes += size_bytes
            self.sent.add(query.topic, query.group, messages, size_bytes)

    def recent_damage(self) -> list[StoreDamaged]:
        """Return the newest damage of each file that readers have found in the last ten minutes."""
        since = self._clock.monotonic_seconds() - DAMAGE_REPORT_SECONDS
        return [damage for damage, at in self._damage.values() if at >= since]

    def record_damage(self, damage: StoreDamaged) -> None:
        """Record damage that a reader has found, and have it repaired if the log has copies."""
        self.on_damage(damage)
        self._damage.pop(str(damage.path), None)
        self._damage[str(damage.path)] = (damage, self._clock.monotonic_seconds())
        while len(self._damage) > DAMAGED_FILES_MAX:
            self._damage.popitem(last=False)

    def _read(self, query: PullQuery, offset: int, messages_max: int, bytes_max: int) -> GetResult:
        if query.expression is not None:
            entries = max(1, COMPARISONS_PER_READ // query.expression.comparisons)
            found = self._store.get(
                query.topic,
                query.queue_id,
                offset,
                messages_max=entries,
                bytes_max=max(bytes_max, BYTES_PER_READ),
                entries_max=entries,
            )
            return select(found, query.expression, messages_max, bytes_max)
        unfiltered = query.tag_codes is None
        return self._store.get(
            query.topic,
            query.queue_id,
            offset,
            messages_max=messages_max,
            bytes_max=bytes_max,
            entries_max=messages_max if unfiltered else ENTRIES_PER_READ,
            tag_codes=query.tag_codes,
        )

    async def _wait(self, queue: QueueKey, seconds: float) -> bool:
        """Wait for a message or the end of the time; False if no more pulls may wait."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        wake = partial(_wake, woken)
        if not self._waiting.add(queue, wake):
            return False
        timer = loop.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.remove(queue, wake)
        return True


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
