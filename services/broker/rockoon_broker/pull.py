"""Pulls: look, answer what is there, or wait for something to come."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock
from rockoon_broker.expressions import select
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

MESSAGES_DEFAULT = 1024
MESSAGES_MAX = 65_536
BYTES_DEFAULT = 1 << 20
BYTES_MAX = 16 << 20
# Whatever a reader asks for: it asks again, and by that shows that it is there.
WAIT_MS_MAX = 30_000
# Damage that readers have met is told for so long, and of so many files.
DAMAGE_TOLD_SECONDS = 600.0
DAMAGED_FILES_MAX = 8
# Entries examined in one look, so that a rare tag in a long queue keeps nobody else waiting.
ENTRIES_PER_LOOK = 16_384
# An expression has to read the messages themselves: for it a look is as much work as this.
COMPARISONS_PER_LOOK = 8192
BYTES_PER_LOOK = 1 << 20


@dataclass(frozen=True, slots=True)
class PullQuery:
    """What a reader asks for."""

    topic: str
    queue_id: int
    offset: int
    messages_max: int
    """0 means the default; larger than allowed is cut."""
    bytes_max: int
    """Likewise."""
    wait_ms: int
    tag_codes: NDArray[np.int64] | None = None
    """None selects every message."""
    expression: "Expression | None" = None
    """Likewise; not together with `tag_codes`."""
    group: str = ""
    """Whose reader; empty outside groups. For counting only."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Messages and bytes of one answer, at most."""
        return (
            min(self.messages_max or MESSAGES_DEFAULT, MESSAGES_MAX),
            min(self.bytes_max or BYTES_DEFAULT, BYTES_MAX),
        )


@light_dataclass
class Pulled:
    """What a pull is answered with."""

    status: GetStatus
    next_offset: int
    found: GetResult


class Pulls:
    """The way out of a store. Used by the event loop's thread alone.

    Args:
        store: open.
        waiting: who waits; shared with what wakes them.
        clock: how long a pull has waited.
    """

    def __init__(self, store: Store, waiting: WaitingPulls, clock: Clock) -> None:
        self._store = store
        self._waiting = waiting
        self._clock = clock
        self.messages = 0
        self.bytes = 0
        self.given = Flow()
        # By file: what readers met there last, and when, monotonic seconds. Bounded.
        self._damage: OrderedDict[str, tuple[StoreDamaged, float]] = OrderedDict()
        # Called with damage that a reader meets; a copy of a log repairs it.
        self.damage_met: Callable[[StoreDamaged], None] = lambda _: None

    async def pull(self, query: PullQuery, check: Callable[[], None]) -> Pulled:
        """Answer with messages, or with why there are none; waits as long as the reader wishes.

        Safe to cancel, as happens when the reader goes away: it then waits no more.

        Args:
            query: what is asked for.
            check: raises when the queue may not be read (any more).

        Raises:
            StoreCorrupt: the first message cannot be read because the store is damaged.
        """
        progress = PullProgress(asked_offset=query.offset, offset=query.offset)
        wait_seconds = min(query.wait_ms, WAIT_MS_MAX) / 1000
        deadline = self._clock.monotonic_seconds() + wait_seconds if wait_seconds else 0.0

        def look() -> GetResult:
            # Each time: while the disk was read the topic may have become another one.
            check()
            return self.look(query, progress.offset)

        while True:
            found = await cold_reads.answer(look)
            step = progress.step(found)
            if step is Step.ANSWER or not deadline:
                break
            if not await self._pause(step, (query.topic, query.queue_id), deadline):
                break
        self.count(query, found.count, len(found.frames))
        status, next_offset = progress.answer(found)
        return Pulled(status, next_offset, found)

    def look(
        self,
        query: PullQuery,
        offset: int,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> GetResult:
        """What there is now.

        Args:
            query: what is asked for.
            offset: where to look, in its place.
            messages_max, bytes_max: further bounds, 1 or more.

        Raises:
            StoreCorrupt: the first message cannot be read because the store is damaged.
            ColdRead: see `file_reads`.
        """
        of_answer = query.bounds
        messages_max, bytes_max = min(of_answer[0], messages_max), min(of_answer[1], bytes_max)
        try:
            return self._look(query, offset, messages_max, bytes_max)
        except StoreDamaged as damage:
            self.note_damage(damage)
            raise StoreCorrupt(path=damage.path, reason=damage.reason) from damage

    def count(self, query: PullQuery, messages: int, size_bytes: int) -> None:
        """Count messages that a reader gets."""
        if messages:
            self.messages += messages
            self.bytes += size_bytes
            self.given.add(query.topic, query.group, messages, size_bytes)

    def recent_damage(self) -> list[StoreDamaged]:
        """What pulls were answered with in the last minutes, one for each file."""
        since = self._clock.monotonic_seconds() - DAMAGE_TOLD_SECONDS
        return [damage for damage, at in self._damage.values() if at >= since]

    def note_damage(self, damage: StoreDamaged) -> None:
        """Report damage that a reader has met, and have it repaired if the log has copies."""
        self.damage_met(damage)
        self._damage.pop(str(damage.path), None)
        self._damage[str(damage.path)] = (damage, self._clock.monotonic_seconds())
        while len(self._damage) > DAMAGED_FILES_MAX:
            self._damage.popitem(last=False)

    def _look(self, query: PullQuery, offset: int, messages_max: int, bytes_max: int) -> GetResult:
        if query.expression is not None:
            entries = max(1, COMPARISONS_PER_LOOK // query.expression.comparisons)
            found = self._store.get(
                query.topic,
                query.queue_id,
                offset,
                messages_max=entries,
                bytes_max=max(bytes_max, BYTES_PER_LOOK),
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
            entries_max=messages_max if unfiltered else ENTRIES_PER_LOOK,
            tag_codes=query.tag_codes,
        )

    async def _pause(self, step: Step, queue: QueueKey, deadline: float) -> bool:
        """Do what stands between two looks; False when there is no time for another."""
        remaining_seconds = deadline - self._clock.monotonic_seconds()
        if remaining_seconds <= 0:
            return False
        if step is Step.LOOK_ON:
            await asyncio.sleep(0)
            return True
        return await self._wait_arrival(queue, remaining_seconds)

    async def _wait_arrival(self, queue: QueueKey, seconds: float) -> bool:
        """Wait until the queue has something new or the time is over; False if nobody may wait."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        if not self._waiting.hold(queue, wake):
            return False
        timer = loop.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.forget(queue, wake)
        return True
