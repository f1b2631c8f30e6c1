"""Copies of a broker's store over real streams: equal bytes, and equal ConsumeQueues."""

from pathlib import Path

import pytest

from rockoon_broker.replication.store_log import StoreLog
from rockoon_broker.store.settings import Flush
from rockoon_broker.store.store import Store
from rockoon_core.disk import Disk
from rockoon_core.replication_rules import Config
from rockoon_format.batch import encode_batch
from rockoon_replica import actions, messages
from rockoon_replica.copying import Copying
from rockoon_replica.leadership import Leadership
from support.eventually import eventually
from support.log_copies import copies
from support.store_check import verify_store
from support.store_directory import BORN_HOST, NOW_MS, FailingDisk, FixedClock, batch_of, settings

FILE_BYTES = 64 << 10


class StoreCopy(StoreLog):
    """A store with additional methods for tests."""

    def __init__(self, root: Path, disk: Disk) -> None:
        configured = settings(root, flush=Flush.SYNC, commit_log_file_bytes=FILE_BYTES)
        self.failures: list[OSError] = []
        self.disk = disk if isinstance(disk, FailingDisk) else FailingDisk()
        super().__init__(
            root.name,
            lambda synced, failed: Store.open(
                configured,
                disk=self.disk,
                on_synced=synced,
                on_failed=failed,
                by_quorum=True,
            ),
            FixedClock(),
            advanced=lambda _: None,
            failed=self.failures.append,
        )

    def append(self, payload: bytes) -> int:
        return append(self.store, payload)

    def content(self) -> bytes:
        found = b""
        while data := self.read(self.min_offset + len(found), 1 << 20):
            found += data
        return found


async def test_a_tail_that_lies_where_the_next_leader_has_closed_a_file_is_cut(
    tmp_path: Path,
) -> None:
    """The record of its epoch did not fit there, and a message did."""
    async with copies(tmp_path, gated=False, open_log=StoreCopy) as logs:
        first = await logs.start()
        mark_bytes = first.log.end
        end = await first.send(b"x")
        message_bytes = end - mark_bytes - 1
        assert message_bytes + 8 < mark_bytes
        await first.send(bytes(FILE_BYTES - end - message_bytes - mark_bytes))
        await logs.equal(first.log.end)
        followers = logs.followers(first)
        for follower in followers:
            await follower.stop()
        await eventually(lambda: not first.is_leading)
        first.log.append(b"")
        first.replica.written()
        await eventually(lambda: first.log.durable_end == first.log.end < FILE_BYTES)
        await first.stop()
        for follower in followers:
            await follower.start()
        second = await logs.leader(other_than=first)
        assert second.log.boundaries()[-1].first == FILE_BYTES
        await second.send(b"kept")
        await first.start()
        await logs.equal(await second.send(b"last"))
        assert first.replica.member.facts.sound


@pytest.mark.parametrize("tail_bytes", [messages.TAIL_BYTES, 8], ids=["all", "of_a_blank"])
@pytest.mark.parametrize("leads_with_more", [False, True])
async def test_logs_whose_files_were_closed_behind_different_records_go_on_where_they_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads_with_more: bool, tail_bytes: int
) -> None:
    """Each had its own epoch, whose record did not fit at the end of their file; they may compare
    only bytes of their blanks."""
    monkeypatch.setattr(messages, "TAIL_BYTES", tail_bytes)
    longer, shorter = (StoreCopy(tmp_path / name, Disk()) for name in "ab")
    longer.open_epoch(1)
    mark_bytes = longer.end
    message_bytes = longer.append(b"x") - mark_bytes - 1
    longer.append(bytes(FILE_BYTES - longer.end - message_bytes - mark_bytes))
    shorter.write(0, longer.read(0, FILE_BYTES))
    agreed = shorter.end
    longer.append(b"")
    leader, follower = (longer, shorter) if leads_with_more else (shorter, longer)
    follower.open_epoch(2)
    leader.open_epoch(3)
    assert [log.boundaries()[-1].first for log in (leader, follower)] == [FILE_BYTES] * 2
    cuts = []
    is_matched = False
    while not is_matched:
        decided: list[actions.Action] = []
        copying = Copying("b", follower, decided)
        copying.follow("a", 3)
        copying.opened(1)
        hello = next(each for each in decided if isinstance(each, actions.SayHello)).hello
        said: list[actions.Action] = []
        Leadership("a", 3, Config(frozenset({"a", "b"}), 2), leader, said, 0).hello(1, hello)
        (answer,) = (each for each in said if isinstance(each, actions.SayWelcome))
        is_matched = copying.welcome(1, answer.welcome)
        cuts += [each.offset for each in decided if isinstance(each, actions.Truncate)]
        follower.truncate(cuts[-1])
    assert cuts == ([agreed] if leads_with_more else [agreed + message_bytes, agreed])
    for log in (longer, shorter):
        log.close()


async def test_stores_stay_equal_through_catch_up_cuts_and_changes_of_leader(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False, open_log=StoreCopy) as logs:
        first = await logs.start()
        # Over some files.
        for number in range(40):
            end = await first.send(b"message %d " % number + bytes(4000))
        await logs.equal(end)
        followers = logs.followers(first)
        for follower in followers:
            await follower.stop()
        await eventually(lambda: not first.is_leading)
        # On one disk only.
        first.log.append(b"lost")
        first.replica.written()
        await eventually(lambda: first.log.durable_end == first.log.end)
        await first.stop()
        for follower in followers:
            await follower.start()
        second = await logs.leader(other_than=first)
        await second.send(b"kept")
        await first.start()
        end = await second.send(b"last")
        await logs.equal(end)
        queues = [copy.log.store.queues() for copy in logs.all.values()]
        assert queues[0] == queues[1] == queues[2]
        messages = {copy.log.store.max_offset("T", 0) for copy in logs.all.values()}
        assert messages == {42}
    for name in logs.all:
        assert verify_store(tmp_path / name) == []


async def test_copies_leave_out_what_was_deleted_before_there_were_any(tmp_path: Path) -> None:
    async with copies(tmp_path, gated=False, open_log=StoreCopy) as logs:
        with a_single_copy(tmp_path / "a") as store:
            for number in range(3):
                append(store, b"of the former topic %d" % number)
            store.drop_topics("T", "U")
            append(store, b"first")
            mark = store.dropped_marks
        first = await logs.start()
        assert first.name == "a"
        await logs.equal(await first.send(b"second"))
        # A restart loses records after its log's end, never records before it.
        for follower in logs.followers(first):
            await follower.stop()
            await follower.start()
        await logs.equal(await first.send(b"third"))
        for copy in logs.all.values():
            assert copy.log.store.max_offset("T", 0) == 3
            assert copy.log.store.dropped_marks == mark
    for name in logs.all:
        assert verify_store(tmp_path / name) == []


def append(store: Store, payload: bytes) -> int:
    frames, lengths = encode_batch(b"T", 0, [payload], [b""], NOW_MS, BORN_HOST)
    return store.append(batch_of("T", 0, frames, lengths), NOW_MS).end_offset


def a_single_copy(root: Path) -> Store:
    configured = settings(root, flush=Flush.SYNC, commit_log_file_bytes=FILE_BYTES)
    return Store.open(configured, clock=FixedClock())
