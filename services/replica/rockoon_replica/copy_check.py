"""Checks a copy's records against their checksums, and repairs damaged ones from other copies.

Invariants:
- A record counts as damaged only if its own bytes fail their checks, or if two other copies agree
  on other bytes. Different bytes at the leader alone prove nothing.
- Damage is durable in the replica's facts before anything is rewritten, and is removed from them
  only when the rewritten bytes were read again.
- Bytes of another copy are used only for positions up to which both logs have the same epochs, and
  only if they pass the checks here.
"""

import asyncio
import enum
import errno
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from rockoon_core.errors import InvalidArgument, RockoonError, StoreCorrupt
from rockoon_core.replication_rules import common_end
from rockoon_replica.events import DamageFound, DamageRepaired, Event
from rockoon_replica.log import ReplicatedLog
from rockoon_replica.peers import PeerRecords, Peers

log = logging.getLogger(__name__)

PIECE_BYTES = 256 << 10
# Read from another copy for one repair.
REPAIR_BYTES = 64 << 10
# Queued ranges; refused ones are checked by the scrub.
RANGES_MAX = 1024
# Before a repair is retried that failed because no other copy had the records.
RETRY_SECONDS = 5.0
# Between the end of one scrub and the start of the next.
PAUSE_SECONDS = 600.0


class CheckResult(enum.Enum):
    """Result of a check of a record or range."""

    INTACT = "intact"
    REPAIRED = "it was damaged, and is repaired"
    DAMAGED = "damaged"


class DoubtedRange(NamedTuple):
    """A range of a log whose records may be damaged.

    Attributes:
        begin, end: positions.
        leader: id of the leader, which has other bytes there; None: no other copy is involved.
    """

    begin: int
    end: int
    leader: str | None = None


@dataclass
class CheckCounts:
    """Number of damaged records that were rewritten, and of bytes that the scrub has read."""

    repaired_records: int = 0
    scrubbed_bytes: int = 0


class CopyCheck:
    """Checks the records of one copy, and repairs damaged ones. Used by the event loop's thread
    alone.

    Args:
        post: passes an event to the member; its future completes with the member's actions.
        damaged: returns the positions of damaged records in the facts.
        not_repaired: called when a repair failed, before the retry: a leader hands over.
        counts: counters of this process, over all runs of its replica.
        bytes_per_second: reading rate of the scrub; 0: no scrub.
    """

    def __init__(
        self,
        log_name: str,
        replicated: ReplicatedLog,
        peers: Peers,
        post: Callable[[Event], "asyncio.Future[None]"],
        damaged: Callable[[], Sequence[int]],
        not_repaired: Callable[[], Awaitable[None]],
        counts: CheckCounts,
        bytes_per_second: int,
    ) -> None:
        self._log_name = log_name
        self._log = replicated
        self._peers = peers
        self._post = post
        self._damaged = damaged
        self._not_repaired = not_repaired
        self._counts = counts
        self._bytes_per_second = bytes_per_second
        # Queued ranges in order of arrival, each once.
        self._ranges: dict[DoubtedRange, None] = {}
        self._news = asyncio.Event()
        # Repairs are made one at a time.
        self._repairing = asyncio.Lock()

    def add(self, begin: int, end: int, leader: str | None = None) -> bool:
        """Queue a range for checking, see `DoubtedRange`; False if too many are queued."""
        if len(self._ranges) >= RANGES_MAX:
            return False
        self._ranges[DoubtedRange(begin, end, leader)] = None
        self._news.set()
        return True

    async def read(self, offset: int, bytes_max: int) -> bytes:
        """Return records of this copy whose checksums are correct, for another copy that repairs
        itself.

        Raises:
            StoreCorrupt: the first record is damaged here too.
            InvalidArgument: no record begins there.
        """
        if not self._log.min_offset <= offset <= self._log.end:
            reason = f"the log is from {self._log.min_offset} to {self._log.end}, not at {offset}"
            raise InvalidArgument(reason=reason)
        data, position = await self._read(offset, min(max(bytes_max, 0), PIECE_BYTES))
        if position is not None:
            self.add(position, position + 1)
        if position == offset:
            raise StoreCorrupt(path=f"log {self._log_name}", reason=f"damaged at {offset}")
        return data if position is None else data[: position - offset]

    async def run(self) -> None:
        """Check the queued ranges, and all committed records in the background, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._check_ranges(), name="checks of ranges")
            if self._bytes_per_second:
                tasks.create_task(self._scrub(), name="scrub")

    async def _check_ranges(self) -> None:
        while True:
            while self._ranges:
                doubted = next(iter(self._ranges))
                del self._ranges[doubted]
                try:
                    await self._check_range(doubted)
                except (ValueError, OSError) as failure:
                    log.warning("log %s: %s was not checked: %s", self._log_name, doubted, failure)
            for position in self._damaged():
                if not await self._repair(position, is_record=True):
                    await self._not_repaired()
            if self._ranges:
                continue
            self._news.clear()
            try:
                async with asyncio.timeout(RETRY_SECONDS if self._damaged() else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _check_range(self, doubted: DoubtedRange) -> None:
        """Check a range of this copy and repair its damaged records from other copies."""
        begin, end, leader = doubted
        if leader is not None:
            # The leader checks its own copy at the same time.
            try:
                await self._peers.ask_check(leader, begin, end)
            except RockoonError as failure:
                log.info("log %s: the leader did not check its copy: %s", self._log_name, failure)
        if begin >= self._log.end:
            return
        begin = max(begin, self._log.min_offset)
        outcome = await self._check_from(self._log.record_before(begin), end, is_record=False)
        if outcome is CheckResult.DAMAGED:
            # `begin` may not be a record but a body that looks like one.
            outcome = await self._check_from(self._log.file_begin(begin), end, is_record=True)
        if outcome is CheckResult.INTACT:
            await self._vote(begin, end)

    async def _check_from(self, at: int, end: int, *, is_record: bool) -> CheckResult:
        """Check all records up to a position, and repair the damaged ones; see `_repair`."""
        outcome = CheckResult.INTACT
        while at < min(end, self._log.end):
            data, position = await self._read(at, PIECE_BYTES)
            if position is not None:
                if not await self._repair(position, is_record=is_record):
                    return CheckResult.DAMAGED
                at, outcome = position, CheckResult.REPAIRED
            elif data:
                at += len(data)
            else:
                # Deleted or cut since the range was chosen.
                return outcome
        return outcome

    async def _read(self, at: int, bytes_max: int) -> tuple[bytes, int | None]:
        """Read this copy's records, none if deleted or cut, and where damage begins."""
        try:
            data = await self._log.fetch(at, bytes_max)
        except (ValueError, OSError) as failure:
            if isinstance(failure, OSError) and failure.errno != errno.EIO:
                raise
            if not self._log.min_offset <= at < self._log.end:
                # Deleted or cut since the range was chosen.
                return b"", None
            try:
                # The log may have been opened again since the failed read.
                data = self._log.read(at, bytes_max)
            except (ValueError, OSError):
                return b"", at
        return data, self._log.damaged_at(at, data)

    # Repairs.

    async def _repair(self, position: int, *, is_record: bool) -> bool:
        """Rewrite the record at a position from another copy; returns whether the record is intact
        now.

        Args:
            is_record: a record surely begins there. If not, it counts as damaged only if another
                copy has an intact one.
        """
        async with self._repairing:
            data, found = await self._read(position, 1)
            if found is None and not (data and position in self._damaged()):
                # Repaired already, deleted, or cut.
                await self._post(DamageRepaired(position))
                return True
            if is_record:
                await self._declare(position, "does not have its checksum")
            reasons = []
            for who in self._peers.others():
                try:
                    records = await self._peers.read(who, position, REPAIR_BYTES)
                    self._usable(position, records)
                    await self._declare(position, "does not have its checksum")
                    await self._rewrite(position, records, who)
                except (RockoonError, ValueError, OSError) as failure:
                    reasons.append(f"{who}: {failure}")
                else:
                    return True
            if is_record:
                log.warning(
                    "log %s: the damaged record at %d cannot be repaired yet, next try in %d s: %s",
                    *(self._log_name, position, RETRY_SECONDS),
                    "; ".join(reasons) or "no other copy is known",
                )
            return False

    async def _declare(self, position: int, why: str) -> None:
        """Write the position of a damaged record to the replica's facts, durably."""
        if position not in self._damaged():
            log.error("log %s: the record at %d %s: it is damaged", self._log_name, position, why)
            await self._post(DamageFound(position))

    def _usable(self, position: int, records: PeerRecords) -> bytes:
        """Return another copy's records for a position of this log; ValueError if it has none.

        Past the position up to which both logs have the same epochs, they may have other records.
        """
        common = common_end(records.boundaries, self._log.boundaries())
        data = records.data[: max(0, common - position)]
        if not data or self._log.damaged_at(position, data) is not None:
            raise ValueError(f"no intact record at {position}; both logs are the same to {common}")
        return data

    async def _rewrite(self, position: int, records: PeerRecords, who: str) -> None:
        """Replace damaged records by those of another copy.

        Raises:
            ValueError: the other copy's records are not those of this log.
            OSError: the disk.
        """
        data = self._usable(position, records)
        await self._log.repair(position, data)
        again, damaged = await self._read(position, len(data))
        if again != data or damaged is not None:
            raise ValueError("the bytes read from the disk differ from those written")
        self._counts.repaired_records += 1
        log.warning(
            "log %s: %d bytes at %d were damaged and are rewritten from copy %s",
            *(self._log_name, len(data), position, who),
        )
        await self._post(DamageRepaired(position))

    async def _vote(self, begin: int, end: int) -> None:
        """Compare a range with two other copies: if two are equal, the third is wrong.

        Checksums do not cover all bytes of a record, and miss some flipped bits.
        """
        at = self._log.record_before(max(begin, self._log.min_offset))
        while at < min(end, self._log.end):
            own, damaged = await self._read(at, REPAIR_BYTES)
            if damaged is not None or not own:
                return
            copies = []
            for who in self._peers.others():
                with suppress(RockoonError, ValueError):
                    copies.append(self._usable(at, await self._peers.read(who, at, REPAIR_BYTES)))
            # Each copy may end elsewhere: only records that all copies have are compared.
            size = min((len(own), *map(len, copies)))
            votes = Counter(data[:size] for data in copies)
            best, count = votes.most_common(1)[0] if votes else (own, 0)
            if count > 1 and best != own[:size]:
                await self._declare(at, "differs from that of two other copies")
                same = PeerRecords(best, tuple(self._log.boundaries()))
                await self._rewrite(at, same, "two other copies")
            at += size

    # Scrub.

    async def _scrub(self) -> None:
        """Check the committed records from start to end, endlessly (scrub)."""
        clock = asyncio.get_running_loop().time
        at = self._log.min_offset
        while True:
            began = clock()
            at = max(at, self._log.min_offset)
            if at >= min(self._log.committed_end, self._log.durable_end):
                await asyncio.sleep(PAUSE_SECONDS)
                at = self._log.min_offset
                continue
            try:
                data, position = await self._read(at, PIECE_BYTES)
            except OSError as failure:
                log.warning(
                    "log %s: the scrub stopped: %s; retrying in %d s",
                    *(self._log_name, failure, RETRY_SECONDS),
                )
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if position is None:
                at += len(data)
            elif await self._repair(position, is_record=True):
                at = position
            else:
                # Records after it cannot be checked: its length may be damaged.
                self._news.set()
                await asyncio.sleep(RETRY_SECONDS)
            self._counts.scrubbed_bytes += len(data)
            # The rate includes the time of reading and checking.
            await asyncio.sleep(max(0.0, began + len(data) / self._bytes_per_second - clock()))
