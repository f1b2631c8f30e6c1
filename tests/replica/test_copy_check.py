"""Comparison of one copy, whose checksums prove nothing, with two other copies."""

import asyncio

import pytest

from rockoon_replica import events
from rockoon_replica.copy_check import RANGES_MAX, CheckCounts, CopyCheck, DoubtedRange
from rockoon_replica.peers import PeerRecords
from support.byte_log import ByteLog


class UncheckedLog(ByteLog):
    """A log whose records have no checksums."""

    def damaged_at(self, offset: int, data: bytes) -> int | None:
        del offset, data
        return None


class Others:
    """Other copies, in memory; replaces `Peers`."""

    def __init__(self, *logs: ByteLog) -> None:
        self._logs = {str(number): log for number, log in enumerate(logs)}
        self.others = lambda: list(self._logs)

    async def read(self, replica: str, offset: int, bytes_max: int) -> PeerRecords:
        log = self._logs[replica]
        return PeerRecords(log.read(offset, bytes_max), tuple(log.boundaries()))


def log_of(records: int) -> UncheckedLog:
    log = UncheckedLog()
    log.open_epoch(1)
    for number in range(records):
        log.append(b"record %d" % number)
    return log


async def found_by_vote(own: ByteLog, *others: ByteLog) -> list[object]:
    """Return the events that a copy sends to its member when its whole range is in doubt."""
    told: list[object] = []

    def post(event: object) -> "asyncio.Future[None]":
        told.append(event)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def not_repaired() -> None:
        raise AssertionError

    peers: object = Others(*others)
    check = CopyCheck("log", own, peers, post, tuple, not_repaired, CheckCounts(), 0)  # type: ignore[arg-type]
    await check._check_range(DoubtedRange(0, own.end))
    # Other copies can request checks; the number of waiting ranges is bounded.
    added = [check.add(number, own.end) for number in range(RANGES_MAX + 1)]
    assert added == [True] * RANGES_MAX + [False]
    return told


@pytest.mark.parametrize("records", [4, 9])
async def test_two_copies_that_end_elsewhere_do_not_make_an_intact_one_damaged(
    records: int,
) -> None:
    assert not await found_by_vote(log_of(6), log_of(records), log_of(records))


async def test_a_copy_with_other_bytes_than_two_others_is_damaged_and_repaired() -> None:
    own = log_of(6)
    own.flips.add(own.end - 1)
    found = await found_by_vote(own, log_of(6), log_of(6))
    assert [type(each) for each in found] == [events.DamageFound, events.DamageRepaired]
    assert not own.flips


async def test_one_other_copy_proves_nothing() -> None:
    own = log_of(6)
    own.flips.add(own.end - 1)
    assert not await found_by_vote(own, log_of(6))
    assert own.flips
