"""Readiness of a copy of a log: its time, the reasons against it, and the lag of the copy."""

import asyncio
from pathlib import Path

from rockoon_replica.standing import CopyRecord, FollowerProgress, lagging, trouble
from support.eventually import eventually
from support.log_copies import copies
from support.store_directory import FailingDisk, healthy, no_space_in


async def test_a_copy_is_ready_once_it_leads_or_is_level_and_not_while_it_is_away(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path) as logs:
        a, b, c = logs.all.values()
        await a.start()
        assert not a.replica.is_ready
        await b.start()
        leader = await logs.leader()
        assert leader.replica.is_ready
        await leader.send(b"x" * 1000)
        now = asyncio.get_running_loop().time
        # This leader has never received a message from it.
        assert ("c", False, None, None, None) in [*lagging(leader.replica, now())]
        await c.start()
        await logs.equal(leader.log.end)
        await eventually(lambda: c.replica.is_ready)
        assert trouble(c.replica) == ""
        level = ("c", True, leader.log.end, 0, 0.0)
        await eventually(lambda: level in [*lagging(leader.replica, now())])
        await c.stop()
        await eventually(lambda: not leader.replica.progress["c"].session)
        await leader.send(b"y" * 1000)
        behind = {each.replica: each for each in [*lagging(leader.replica, now())]}["c"]
        assert not behind.connected
        assert (behind.bytes or 0) > 1000
        assert (behind.seconds or 0) > 0


async def test_a_copy_is_not_ready_while_two_of_three_are_away_and_says_why(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path) as logs:
        leader = await logs.start()
        follower, other = logs.followers(leader)
        await logs.equal(await leader.send(b"before"))
        await eventually(lambda: follower.replica.is_ready)
        await leader.stop()
        await other.stop()
        await eventually(lambda: not follower.replica.is_ready)
        assert trouble(follower.replica) in ("an election is on", "not connected to the leader")
        assert follower.readiness[-2:] == [True, False]


async def test_a_copy_without_room_says_so_until_it_has(tmp_path: Path) -> None:
    async with copies(tmp_path, gated=False) as logs:
        c = logs.all["c"]
        c.disk = disk = FailingDisk()
        leader = await logs.start()
        if leader is c:
            await c.replica.hand_over(10)
            leader = await logs.leader(other_than=c)
        await eventually(lambda: c.is_up and c.replica.is_ready)
        disk.fail_write = no_space_in(lambda _: True)
        end = await leader.send(*[b"x" * 1000] * 100)
        await eventually(lambda: "it cannot write" in trouble(c.replica))
        disk.fail_write = healthy
        await eventually(lambda: c.log.end == end and c.replica.is_ready)


def test_a_follower_is_behind_since_it_last_had_all_that_its_leader_had_then() -> None:
    progress = FollowerProgress(now=10.0)
    progress.opened(1, 0)
    assert progress.behind_seconds(100, now=12.0) == 2.0
    progress.acknowledged(50, leader_end=100, now=13.0)
    progress.acknowledged(100, leader_end=150, now=14.0)
    # At 13 s the leader had 100, and now the copy has these.
    assert progress.behind_seconds(150, now=15.0) == 2.0
    progress.acknowledged(150, leader_end=150, now=16.0)
    assert progress.behind_seconds(150, now=20.0) == 0.0
    progress.closed(1)
    assert progress.session is None
    assert progress.behind_seconds(151, now=20.0) == 6.0


def test_time_without_a_leader_is_counted_over_all_lives() -> None:
    record = CopyRecord(now=0.0)
    assert record.set_ready(is_ready=True, now=2.0)
    assert not record.set_ready(is_ready=True, now=3.0)
    assert record.unready_seconds(10.0) == 2.0
    assert record.set_ready(is_ready=False, now=10.0)
    assert record.unready_seconds(11.0) == 3.0
