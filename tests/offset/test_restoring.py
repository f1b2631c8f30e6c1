"""Progress of a backup in a new store: offsets are limited to the restored log."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from rockoon_core.errors import StoreCorrupt
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartReason
from rockoon_offset.journal import frames
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import (
    Acquired,
    Counters,
    Progress,
    ProgressPut,
    Record,
    ResetApplied,
    ResetStep,
    Settled,
    WindowPut,
    encode,
)
from rockoon_offset.restoring import NUMBERS_SKIPPED, RestoredOffset, restore

QUEUE, OTHER = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
STORE_ID = "0" * 31 + "1"
NOW_MS = 1_800_000_000_000
SOURCE = "restored from backup B"
COUNTERS = Counters(epoch=9, starts=3, route_revision=50, etcd_cluster_id=7, acquisition=5)


def progress(offset: int, queue: MessageQueue = QUEUE, group: str = "billing") -> Progress:
    return Progress(
        group=group, queue=queue, offset=offset, epoch=9, incarnation=20, group_incarnation=21,
        owner="host@1", committer="host@1", stored_at_ms=1, metadata="", start_offset=0,
        start_reason=StartReason.FIRST, start_explanation="first", started_at_ms=1, gap_total=4,
    )  # fmt: skip


def state(*records: Record) -> bytes:
    """Content of a backup with these records."""
    return frames.pack(map(encode, (*records, COUNTERS)))


async def restored(
    tmp_path: Path,
    content: bytes,
    ends: dict[str, dict[tuple[str, int], int]],
    now_ms: int = NOW_MS,
    created_again: Collection[str] = (),
) -> tuple[list[RestoredOffset], Ledger]:
    root = tmp_path / "offset"
    offsets = await asyncio.to_thread(
        restore, root, STORE_ID, content, ends, created_again, SOURCE, now_ms
    )
    store = JournalStore(root, lambda failure: pytest.fail(str(failure)))
    try:
        assert store.store_id == STORE_ID
        return offsets, store.ledger
    finally:
        store.close()


def found(ledger: Ledger, queue: MessageQueue = QUEUE) -> Progress:
    entry = ledger.find("billing", queue)
    assert entry is not None
    return entry


async def test_progress_within_the_log_keeps_its_offset_and_gets_a_new_epoch(
    tmp_path: Path,
) -> None:
    ends = {"broker-a": {("orders", 0): 100}}
    offsets, ledger = await restored(tmp_path, state(ProgressPut(progress(100))), ends)
    after = found(ledger)
    assert (after.offset, after.start_reason, after.start_explanation) == (
        100, StartReason.RESTORED, SOURCE,
    )  # fmt: skip
    assert after.epoch > COUNTERS.epoch
    assert ledger.counters.epoch >= after.epoch
    assert ledger.counters.acquisition > COUNTERS.acquisition
    # The etcd is new, and its routes have the former revisions.
    assert (ledger.counters.etcd_cluster_id, ledger.counters.route_revision) == (0, 50)
    assert (after.gap_total, after.incarnation, after.owner) == (4, 20, "")
    assert [(each.before, each.offset) for each in offsets] == [(100, 100)]


async def test_progress_of_a_former_topic_does_not_count_for_the_new_one(tmp_path: Path) -> None:
    content = state(
        ProgressPut(progress(4)),
        ProgressPut(progress(4, OTHER)),
        WindowPut("billing", QUEUE, 6, 4, 0b10, 0),
    )
    ends = {"broker-a": {("orders", 0): 100}, "broker-b": {("orders", 0): 2}}
    offsets, ledger = await restored(tmp_path, content, ends, created_again={"orders"})
    assert [(each.before, each.offset) for each in offsets] == [(4, 0), (4, 0)]
    assert found(ledger).start_explanation.endswith("reads it from its first message")
    assert ledger.windows.find("billing", QUEUE) is None


async def test_a_second_restore_of_a_backup_refuses_clients_of_the_first_one(
    tmp_path: Path,
) -> None:
    content, ends = state(ProgressPut(progress(100))), {"broker-a": {("orders", 0): 100}}
    _, first = await restored(tmp_path / "first", content, ends)
    # One acquisition each millisecond, until the second restore one second later.
    used = first.counters.epoch + 1000, first.counters.acquisition + 1000
    _, second = await restored(tmp_path / "second", content, ends, NOW_MS + 1000)
    assert found(second).epoch > used[0]
    assert second.counters.acquisition > used[1]
    # The clock is behind that of the former cluster.
    backup = frames.pack([encode(ProgressPut(progress(100))), encode(second.counters)])
    _, third = await restored(tmp_path / "third", backup, ends, 1000)
    assert found(third).epoch > second.counters.epoch + NUMBERS_SKIPPED
    assert third.counters.acquisition >= second.counters.acquisition + NUMBERS_SKIPPED


async def test_progress_beyond_the_log_continues_at_its_end(tmp_path: Path) -> None:
    reset = ResetApplied(
        "r1", "billing", "orders", "op", 1, (ResetStep(QUEUE, 90, 10, 0, 90, False, 20, 9),),
        undone=False,
    )  # fmt: skip
    content = state(
        ProgressPut(progress(90)),
        ProgressPut(progress(70, OTHER)),
        WindowPut("billing", QUEUE, 96, 90, 0b10, 0),
        Acquired("billing", QUEUE, 5, 0, 90, 0b1, 1, NOW_MS),
        reset,
    )
    ends = {"broker-a": {("orders", 0): 60}}
    offsets, ledger = await restored(tmp_path, content, ends)
    after = found(ledger)
    assert after.offset == 60
    assert "30 messages are lost" in after.start_explanation
    # Messages from 91 on will be other ones.
    assert ledger.windows.find("billing", QUEUE) is None
    # An undo would set offset 90.
    assert ledger.resets.get("r1") is None
    # Of a broker whose log was not restored.
    assert found(ledger, OTHER).offset == 70
    assert "broker-b was not restored" in found(ledger, OTHER).start_explanation
    assert [(each.before, each.offset) for each in offsets] == [(90, 60), (70, 70)]


async def test_a_queue_without_messages_in_the_restored_log_ends_at_0(tmp_path: Path) -> None:
    _, ledger = await restored(tmp_path, state(ProgressPut(progress(5))), {"broker-a": {}})
    assert found(ledger).offset == 0


async def test_acknowledged_messages_above_the_offset_stay_acknowledged(tmp_path: Path) -> None:
    content = state(
        ProgressPut(progress(90)),
        WindowPut("billing", QUEUE, 96, 90, 0b10, 0),
        Acquired("billing", QUEUE, 5, 0, 92, 0b1, 1, NOW_MS),
        Settled("billing", QUEUE, 5, 92, 0b1, NOW_MS),
    )
    _, ledger = await restored(tmp_path, content, {"broker-a": {("orders", 0): 96}})
    window = ledger.windows.find("billing", QUEUE)
    assert window is not None
    assert (window.floor, window.acquired_to) == (90, 96)
    # The log ends within the window: other messages get these offsets.
    (tmp_path / "offset").rename(tmp_path / "first")
    offsets, ledger = await restored(tmp_path, content, {"broker-a": {("orders", 0): 93}})
    assert ledger.windows.find("billing", QUEUE) is None
    assert found(ledger).offset == 90
    assert "delivered again" in offsets[0].explanation


def test_a_state_that_this_version_cannot_read_is_refused(tmp_path: Path) -> None:
    for content in (b"\xff\xff", frames.pack([b'["unheard-of", 1]'])):
        with pytest.raises(StoreCorrupt):
            restore(tmp_path / "offset", STORE_ID, content, {}, (), SOURCE, NOW_MS)
        assert not (tmp_path / "offset").exists()
