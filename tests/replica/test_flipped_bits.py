"""One flipped bit in one copy, then a restart: the log continues, and the copy is repaired."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replica.test_store_copies import FILE_BYTES, StoreCopy
from rockoon_format.record import AT_BODY_V4, AT_MAGIC, AT_QUEUE_OFFSET
from rockoon_format.scan import scan
from rockoon_replica import copy_check
from support.eventually import eventually
from support.log_copies import Copies, Copy, copies
from support.waiting import DEADLINE_SECONDS

# Of a record without keys, tags and topic attributes: topic "T", then properties.
AT_BODY_CRC = 8
BODY = b"message %05d" % 7 + bytes(200)
PLACES = {
    "size": 3,
    "size, a large one": 0,
    "magic": AT_MAGIC,
    "CRC of the body": AT_BODY_CRC,
    "queue offset": AT_QUEUE_OFFSET + 7,
    "body": AT_BODY_V4 + 5,
    "topic": AT_BODY_V4 + len(BODY) + 1,
    "properties": AT_BODY_V4 + len(BODY) + 5,
    "checksum": -3,
}
# After the last message of the first file.
BLANKS = {"head of a blank": 4, "padding": 100}


def flip(copy: Copy, position: int) -> None:
    """Flip one bit of a CommitLog file on the disk; the store does not see it."""
    path = copy.directory / "commitlog" / f"{position - position % FILE_BYTES:020}"
    with path.open("r+b") as file:
        file.seek(position % FILE_BYTES)
        byte = file.read(1)[0]
        file.seek(position % FILE_BYTES)
        file.write(bytes((byte ^ 1,)))


def record_at(copy: Copy, number: int) -> tuple[int, int]:
    """Return start and size of a record of the first file; -1 is the last one."""
    data = copy.log.read(0, FILE_BYTES)
    found = scan(data, 0, len(data))
    return int(found.offsets[number]), int(found.sizes[number])


@asynccontextmanager
async def three(path: Path, *, scrub: bool = False) -> AsyncIterator[tuple[Copies, Copy]]:
    """Three copies that are level, and their leader."""
    async with copies(path, gated=False, open_log=StoreCopy) as logs:
        logs.scrub_bytes_per_second = 64 << 20 if scrub else 0
        leader = await logs.start()
        # A file, and the beginning of the next one.
        end = await leader.send(*[BODY] * 20, *[bytes(7000)] * 7, *[BODY] * 40)
        await logs.equal(end)
        yield logs, leader


async def restart(copy: Copy) -> None:
    await copy.stop()
    await copy.start()


async def continues(logs: Copies) -> None:
    """The log accepts a message, all copies are equal again, and none is damaged or unsound."""
    leader = await logs.leader()
    await logs.equal(await leader.send(b"one more"))
    facts = [copy.replica.member.facts for copy in logs.all.values()]
    await eventually(lambda: not any(c.replica.member.facts.damaged for c in logs.all.values()))
    assert all(each.sound for each in facts)


def declared(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often a copy was declared damaged."""
    return sum("it is damaged" in each.getMessage() for each in caplog.records)


def repaired(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often damaged records were rewritten."""
    return sum("are rewritten from copy" in each.getMessage() for each in caplog.records)


async def test_a_bit_flips_in_the_preferred_follower_and_the_leader_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The damaged copy is elected, because its damage is not known yet. Both intact copies find
    bytes that differ from their leader's, and must not be declared damaged."""
    async with three(tmp_path) as (logs, leader):
        damaged = next(iter(logs.followers(leader)))
        # Among the bytes that a follower compares with its leader's.
        flip(damaged, damaged.log.end - len(BODY))
        await leader.stop()
        await eventually(lambda: repaired(caplog))
        await leader.start()
        await continues(logs)
        assert declared(caplog) == repaired(caplog) == 1


async def test_a_record_damaged_in_both_living_copies_is_repaired_when_the_third_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_check, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(copy_check, "RETRY_SECONDS", 0.2)
    async with three(tmp_path, scrub=True) as (logs, leader):
        follower, third = logs.followers(leader)
        await third.stop()
        at, _ = record_at(leader, 7)
        for copy in (leader, follower):
            flip(copy, at + PLACES["body"])
        await eventually(lambda: all(c.replica.member.facts.damaged for c in (leader, follower)))
        # The leader may hand over while the follower's damage is not known. When both are damaged,
        # neither replaces the other, and the log accepts messages.
        leader = await logs.leader()
        await leader.send(b"meanwhile")
        await logs.leader()
        assert not repaired(caplog)
        await third.start()
        await continues(logs)
        assert repaired(caplog) == 2


def position_of(copy: Copy, place: str) -> int:
    """Return the position of a bit of this kind; blanks and epochs' records have one position
    each."""
    if place == "record of an epoch":
        # It begins the second file.
        return FILE_BYTES + 100
    if place in BLANKS:
        at, size = record_at(copy, -1)
        return at + size + BLANKS[place]
    at, size = record_at(copy, 7)
    return at + PLACES[place] % size


CASES = [
    (place, damaged, restarted)
    for place in (*PLACES, *BLANKS, "record of an epoch")
    for damaged in ("leader", "follower")
    for restarted in ("leader", "follower", "other follower")
    # A copy that cannot open its log is repaired around it: `test_damaged_copies.py`.
    if place != "record of an epoch" or damaged != restarted
]
# The other cases run in soak tests.
SHORT = {
    ("size", "follower", "leader"),
    ("checksum", "leader", "follower"),
    ("padding", "follower", "follower"),
    ("head of a blank", "leader", "follower"),
}


@pytest.mark.parametrize(
    ("place", "damaged", "restarted"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.soak) for case in CASES],
)
async def test_a_bit_flips_in_one_copy_and_one_copy_restarts(
    place: str,
    damaged: str,
    restarted: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_check, "PAUSE_SECONDS", 0.05)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        three(tmp_path, scrub=True) as (logs, leader),
    ):
        follower, other = logs.followers(leader)
        named = {"leader": leader, "follower": follower, "other follower": other}
        copy = named[damaged]
        flip(copy, position_of(copy, place))
        await restart(named[restarted])
        await eventually(lambda: repaired(caplog))
        await continues(logs)
        # Twice if the process ended between the log line and the write of its facts.
        assert declared(caplog) in (1, 2)
        assert repaired(caplog) == 1
        assert copy.log.content() == other.log.content()
