"""Two and three copies of a log over real streams: all of them have each acknowledged record."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from rockoon_core.errors import NotLeader
from rockoon_replica import replica as replica_module
from rockoon_replica.actions import HandOver, Reopen, ReportLog
from rockoon_replica.events import RepeatDue
from rockoon_replica.member import Role
from rockoon_replica.replica import Replica
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from support.eventually import eventually
from support.holding_disk import HoldingDisk
from support.log_copies import Copies, Copy, copies
from support.store_directory import FailingDisk, healthy, no_space_in
from support.waiting import DEADLINE_SECONDS, hold_up


def unanswered(copy: Copy, payload: bytes) -> None:
    """Append without a wait for the commit."""
    copy.log.append(payload)
    copy.replica.written()


async def test_what_a_leader_takes_is_in_every_copy_byte_for_byte(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        leader = await logs.start()
        sent = [b"message %d" % number for number in range(100)]
        end = await leader.send(*sent)
        await logs.equal(end)
        assert all(copy.log.payloads() == sent for copy in logs.all.values())
        assert leader.established == [leader.replica.epoch]
        await eventually(lambda: {copy.committed for copy in logs.all.values()} == {end})


async def test_a_copy_that_was_away_or_is_new_catches_up_from_files(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        a, b, c = logs.all.values()
        await a.start()
        await b.start()
        leader = await logs.leader()
        # More than a chunk and a window, and a record that is larger than a chunk.
        await leader.send(*[bytes([number]) * 100_000 for number in range(100)], b"x" * 3_000_000)
        await c.start()
        await logs.equal(leader.log.end)
        await c.stop()
        end = await leader.send(*[b"behind" * 100] * 1000)
        await c.start()
        await logs.equal(end)
        assert not any(copy.log.truncated for copy in logs.all.values())


async def test_a_killed_leader_is_followed_by_one_that_has_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False) as logs:
        # No timeout of silence is needed: connections to its port are refused.
        logs.silent_seconds = 1e9
        first = await logs.start()
        acknowledged = [b"one", b"two", b"three"]
        await first.send(*acknowledged)
        await first.stop()
        second = await logs.leader(other_than=first)
        assert second.replica.epoch > 1
        acknowledged.append(b"four")
        end = await second.send(b"four")
        await first.start()
        await logs.equal(end)
        assert all(copy.log.payloads() == acknowledged for copy in logs.all.values())


async def test_a_tail_that_nobody_else_had_is_cut_when_its_leader_returns(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        first = await logs.start()
        await first.send(b"committed")
        for follower in logs.followers(first):
            await follower.stop()
        await eventually(lambda: not first.is_leading)
        unanswered(first, b"on one disk only")
        await eventually(lambda: first.log.durable_end == first.log.end)
        await first.stop()
        for follower in logs.followers(first):
            await follower.start()
        second = await logs.leader(other_than=first)
        end = await second.send(b"after")
        await first.start()
        await logs.equal(end)
        assert first.log.truncated
        assert all(copy.log.payloads() == [b"committed", b"after"] for copy in logs.all.values())


async def test_a_silent_leader_is_deposed_commits_nothing_and_reopens_its_log(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path) as logs:
        first = await logs.start()
        await first.send(b"before")
        former: Replica = first.replica
        logs.freeze(first)
        logs.register.unreachable.add(first.name)
        lost = asyncio.ensure_future(first.send(b"into silence"))  # noqa: TID251
        asked = asyncio.ensure_future(former.round())  # noqa: TID251
        second = await logs.leader(other_than=first)
        end = await second.send(b"behind it")
        assert not lost.done()
        assert not asked.done(), "a deposed leader does not know that it still leads"
        logs.register.reconnect(first.name)
        with pytest.raises(NotLeader):
            await lost
        with pytest.raises(NotLeader):
            await asked
        await eventually(lambda: first.ends == [Reopen()])
        logs.freeze(first, frozen=False)
        await logs.equal(end)
        assert first.log.payloads() == [b"before", b"behind it"]


async def test_a_leader_that_one_follower_does_not_reach_stays(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        leader = await logs.start()
        await leader.send(b"before")
        lonely, other = logs.followers(leader)
        gate = logs.gate(lonely.name, leader.name)
        await gate.cut()
        await eventually(lambda: lonely.name in logs.register.suspects)
        end = await leader.send(b"without the one")
        await eventually(lambda: other.log.committed_end == end)
        assert leader.is_leading
        await gate.open()
        await logs.equal(end)
        await eventually(lambda: not logs.register.suspects)
        assert len(leader.established) == 1


async def test_a_follower_whose_disk_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        a, b, c = logs.all.values()
        disk = HoldingDisk(everything=True)
        c.disk = disk
        await a.start()
        await b.start()
        leader = await logs.leader()
        await c.start()
        await logs.equal(await leader.send(b"before"))
        disk.hold()
        try:
            end = await leader.send(*[b"x" * 1000] * 100)
            # Its written and unsynced records are not acknowledged by it, but readers see them:
            # they are committed, on the disks of two other copies.
            await eventually(lambda: c.log.committed_end == end)
            assert c.log.durable_end < end
        finally:
            disk.release()
        await eventually(lambda: c.log.durable_end == end)


async def test_a_follower_without_room_keeps_nobody_waiting_and_catches_up_once_it_has(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False) as logs:
        c = logs.all["c"]
        c.disk = disk = FailingDisk()
        leader = await logs.start()
        if leader is c:
            await c.replica.hand_over(10)
            leader = await logs.leader(other_than=c)
        await logs.equal(await leader.send(b"before"))
        disk.fail_write = no_space_in(lambda _: True)
        end = await leader.send(b"no room for this")
        refused = await eventually(lambda: c.log.end < end)
        assert refused
        disk.fail_write = healthy
        await logs.equal(end)
        assert leader.is_leading


async def test_a_question_that_decides_is_answered_by_a_round_of_the_followers(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path) as logs:
        leader = await logs.start()
        await leader.send(b"before")
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(leader.replica.round())
        with pytest.raises(NotLeader):
            await logs.followers(leader)[0].replica.round()


async def test_a_lost_call_to_the_nameservers_is_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The periodic repetition would be too late for all waits of this test.
    monkeypatch.setattr(replica_module, "REPEAT_SECONDS", 100 * DEADLINE_SECONDS)
    async with copies(tmp_path) as logs:
        logs.register.lost = [ReportLog]
        first = await logs.start()
        await first.send(b"before")
        logs.register.lost = [HandOver, HandOver]
        assert await first.replica.hand_over(DEADLINE_SECONDS)
        await logs.equal(await (await logs.leader(other_than=first)).send(b"after"))
        assert not logs.register.lost


async def test_one_repetition_at_most_waits_while_a_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_seconds = 0.01
    monkeypatch.setattr(replica_module, "REPEAT_SECONDS", repeat_seconds)
    hangs, released = threading.Event(), threading.Event()
    write, posted = ReplicaFile.write, []

    def hang(file: ReplicaFile, facts: ReplicaFacts) -> None:
        hangs.set()
        released.wait(DEADLINE_SECONDS)
        write(file, facts)

    def repeat_due() -> RepeatDue:
        posted.append(RepeatDue())
        return posted[-1]

    monkeypatch.setattr(ReplicaFile, "write", hang)
    monkeypatch.setattr(replica_module, "RepeatDue", repeat_due)
    loop = asyncio.get_running_loop()
    async with copies(tmp_path) as logs:
        first, *_ = logs.all.values()
        await first.start()
        try:
            await eventually(hangs.is_set)
            before, end = len(posted), loop.time() + 50 * repeat_seconds
            await eventually(lambda: loop.time() > end)
            assert len(posted) <= before + 1
        finally:
            released.set()
        await eventually(lambda: len(posted) > before + 1)


async def test_one_repetition_at_a_time_waits_while_no_nameserver_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short, so that many repetitions are due.
    repeat_seconds = 0.02
    monkeypatch.setattr(replica_module, "REPEAT_SECONDS", repeat_seconds)
    loop = asyncio.get_running_loop()
    async with copies(tmp_path) as logs:
        calls = 60
        logs.register.lost = [ReportLog] * calls
        begun = loop.time()
        first, *_ = logs.all.values()
        await first.start()
        # A slow disk delays the start of a replica: repetitions can be due before its first call.
        await eventually(lambda: len(logs.register.lost) < calls)
        most = 0

        def all_lost() -> bool:
            nonlocal most
            names = [task.get_name() for task in asyncio.all_tasks()]
            most = max(most, sum(name.endswith(ReportLog.__name__) for name in names))
            return not logs.register.lost

        await eventually(all_lost)
        assert most <= 1
        # The first call is no repetition. A pause is at least half its limit, which REPEAT_SECONDS
        # bounds.
        assert loop.time() - begun >= (calls - 1) * repeat_seconds / 2


async def test_a_leader_hands_over_and_the_next_one_has_everything(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        first = await logs.start()
        await first.send(b"before")
        assert await first.replica.hand_over(10)
        second = await logs.leader(other_than=first)
        end = await second.send(b"after")
        await logs.equal(end)
        assert logs.register.suspects == set()
        assert [copy.log.truncated for copy in logs.all.values()] == [[], [], []]


async def test_a_leader_that_has_yet_to_hear_so_is_asked_again_without_long_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the new leader knows that it leads, senders would wait only for these pauses."""
    caplog.set_level(logging.INFO, "rockoon_replica.following")
    async with copies(tmp_path, gated=False) as logs:
        first = await logs.start()
        await logs.equal(await first.send(b"before"))
        second = logs.followers(first)[0]
        logs.register.unreachable.add(second.name)
        begun = asyncio.get_running_loop().time()
        epoch = logs.register.state.epoch + 1
        logs.register.change(epoch=epoch, leader=second.name, reports={}, confirmed=False)
        # Of two followers. With pauses up to a second these would need more than seven.
        await eventually(lambda: caplog.text.count("does not lead") >= 40)
        assert asyncio.get_running_loop().time() - begun < 6
        logs.register.reconnect(second.name)
        assert await logs.leader(other_than=first) is second
        await logs.equal(await second.send(b"after"))


async def test_a_process_that_did_not_run_suspects_nobody_of_silence(tmp_path: Path) -> None:
    async with copies(tmp_path) as logs:
        leader = await logs.start()
        await leader.send(b"before")
        calls = len(logs.register.calls)
        # All of them; each copies the new records when it continues.
        hold_up(2 * logs.silent_seconds)
        await leader.send(b"after")
        assert logs.register.calls[calls:] == []


async def test_two_copies_need_each_other(tmp_path: Path) -> None:
    async with copies(tmp_path, ("a", "b")) as logs:
        leader = await logs.start()
        await leader.send(b"on both")
        other = logs.followers(leader)[0]
        await other.stop()
        await eventually(lambda: not leader.replica.appends_allowed)
        assert leader.replica.role is Role.LEADING
        await other.start()
        await eventually(lambda: leader.replica.appends_allowed)
        await logs.equal(await leader.send(b"again on both"))


async def test_leaders_are_killed_again_and_again_and_nothing_acknowledged_is_missing(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False) as logs:
        leader = await logs.start()
        acknowledged = []
        for number in range(4):
            payload = b"message %d" % number
            await leader.send(payload)
            acknowledged.append(payload)
            await leader.stop()
            former, leader = leader, await logs.leader(other_than=leader)
            await former.start()
        await logs.equal(await leader.send(b"last"))
        assert set(acknowledged) <= set(leader.log.payloads())
        assert_epochs(logs)


def assert_epochs(logs: Copies) -> None:
    led = [epoch for copy in logs.all.values() for epoch in copy.established]
    assert len(led) == len(set(led)), "an epoch has one leader"


async def test_a_copy_that_votes_alone_hands_over_to_nobody_and_waits_for_nobody(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, ("a",)) as logs, asyncio.timeout(DEADLINE_SECONDS):
        leader = await logs.start()
        assert not await leader.replica.hand_over(10 * DEADLINE_SECONDS)
        await leader.send(b"it leads on")
