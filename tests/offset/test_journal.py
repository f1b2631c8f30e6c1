"""The journal of one copy: acknowledged changes survive every crash, or the start is refused."""

import asyncio
import errno
import itertools
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offset.journals import FaultyDisk, found, frame_after, newest, numbers, opened, put, write

from rockoon_core.disk import Disk
from rockoon_core.errors import Busy, StoreCorrupt, StoreFailed
from rockoon_offset.journal import frames
from rockoon_offset.journal import store as journal_store
from rockoon_offset.journal.store import JournalStore
from rockoon_replica.replica_file import ACKNOWLEDGED, AcknowledgedEnd
from support.crashing_disk import CrashingDisk
from support.eventually import eventually
from support.holding_disk import HoldingDisk
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

HEADER = frames.FILE_HEADER_BYTES


async def test_records_come_back_after_a_restart(tmp_path: Path) -> None:
    await write(tmp_path, [(0, 1), (2,)])
    await write(tmp_path, [(3, 4, 5, 6)])
    assert found(tmp_path) == list(range(7))


async def test_what_waits_when_the_store_is_closed_is_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(50):
        put(store, [number])
    store.close()
    assert found(tmp_path) == list(range(50))
    before = newest(tmp_path).read_bytes()
    # Callbacks that wait in the loop find the store closed.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not store._is_syncing
    assert newest(tmp_path).read_bytes() == before


def test_a_store_is_closed_after_the_end_of_its_loop(tmp_path: Path) -> None:
    """As after an exception that ends the process's loop: written changes are not lost."""
    disk = HoldingDisk(everything=True)

    async def leave() -> JournalStore:
        store = opened(tmp_path, disk)
        disk.hold()
        put(store, [0])
        # A caller waits.
        store.durable().send(None).add_done_callback(print)
        await eventually(lambda: store._is_syncing)
        # The next write follows the running sync.
        put(store, [1])
        return store

    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(leave())
    loop.close()
    disk.release()
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_SECONDS)
    assert not closing.is_alive()
    assert found(tmp_path) == [0, 1]


async def test_many_waiting_changes_share_one_sync(tmp_path: Path) -> None:
    disk = HoldingDisk(everything=True)
    store = opened(tmp_path, disk)
    before = len(disk.syncs)
    disk.hold()
    put(store, [0])
    waiting = store.durable()
    for number in range(1, 101):
        put(store, [number])
    disk.release()
    await waiting
    put(store, [101])
    put(store, [102])
    await store.durable()
    assert len(disk.syncs) - before == 2
    store.close()
    assert found(tmp_path) == list(range(103))


async def test_a_write_torn_at_any_byte_costs_only_what_was_not_acknowledged(
    tmp_path: Path,
) -> None:
    await write(tmp_path, [(0, 1, 2), (3, 4)])
    path = newest(tmp_path)
    acknowledged, torn = path.read_bytes(), frame_after(path, [5, 6])
    for cut in range(len(torn)):
        path.write_bytes(acknowledged + torn[:cut])
        assert found(tmp_path) == list(range(5)), cut
    path.write_bytes(acknowledged + torn)
    assert found(tmp_path) == list(range(7))


async def test_any_byte_of_an_unfinished_write_may_be_wrong(tmp_path: Path) -> None:
    """Of several frames in one unfinished sync, the last may be complete."""
    await write(tmp_path, [(0, 1, 2)])
    path = newest(tmp_path)
    acknowledged, torn = path.read_bytes(), frame_after(path, [3])
    path.write_bytes(acknowledged + torn)
    last = bytearray(frame_after(path, [4]))
    # Written before the sync of the previous frame.
    end = len(acknowledged) - HEADER
    last = bytearray(
        frames.encode(frames.FrameKind.RECORDS, end + len(torn), end, bytes(last[32:]))
    )
    for position, bit in itertools.product(range(len(torn)), (0x01, 0x80)):
        bad = bytearray(torn)
        bad[position] ^= bit
        path.write_bytes(acknowledged + bad + last)
        assert found(tmp_path) == [0, 1, 2], position


async def test_the_torn_end_is_cut_before_anything_is_appended(tmp_path: Path) -> None:
    await write(tmp_path, [(0, 1, 2)])
    path = newest(tmp_path)
    acknowledged = path.read_bytes()
    path.write_bytes(acknowledged + frame_after(path, range(3, 60))[:-1])
    await write(tmp_path, [(3,)])
    assert path.read_bytes()[HEADER:].startswith(acknowledged[HEADER:])
    assert len(path.read_bytes()) < len(acknowledged) + 500
    assert found(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("power_cut", [True, False])
async def test_damage_to_what_was_acknowledged_is_refused_and_names_the_place(
    tmp_path: Path, *, power_cut: bool
) -> None:
    """A power cut may lose the record of the acknowledged end: the newest frame proves the rest."""
    await write(tmp_path, [(0,), (1,), (2,)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    last = len(frame_after(path, [2]))
    if power_cut:
        (tmp_path / ACKNOWLEDGED).unlink()
    # If the position of the synced end is damaged, it proves less.
    places = [*range(28), *range(HEADER, len(whole) - last * power_cut)]
    for position in places:
        bad = bytearray(whole)
        bad[position] ^= 0x10
        path.write_bytes(bytes(bad))
        with pytest.raises(StoreCorrupt, match=path.name) as refused:
            opened(tmp_path)
        assert "header" in str(refused.value) or "no valid frame at" in str(refused.value)
        assert path.read_bytes() == bytes(bad), "a refused store is not touched"


async def test_a_frame_is_acknowledged_in_a_file_before_anybody_is_told_of_it(
    tmp_path: Path,
) -> None:
    """So that damage of the newest frame is recognised as damage, also after a kill at any
    moment."""
    store = opened(tmp_path)
    for number in range(3):
        put(store, [number])
        await store.durable()
        end = newest(tmp_path).stat().st_size - HEADER
        assert AcknowledgedEnd(tmp_path, Disk()).end == end
    store.close()


async def test_a_start_acknowledges_what_it_found(tmp_path: Path) -> None:
    """It has written and synced everything."""
    await write(tmp_path, [(0, 1, 2)])
    acknowledged = AcknowledgedEnd(tmp_path, Disk()).end
    (tmp_path / ACKNOWLEDGED).unlink()
    opened(tmp_path).close()
    assert AcknowledgedEnd(tmp_path, Disk()).end == acknowledged


async def test_a_missing_frame_is_refused(tmp_path: Path) -> None:
    await write(tmp_path, [(0,), (1,), (2,)])
    path = newest(tmp_path)
    whole = path.read_bytes()
    size = len(frame_after(path, [1]))
    for without in (whole[: -2 * size] + whole[-size:], whole[:-size], whole[:HEADER]):
        path.write_bytes(without)
        with pytest.raises(StoreCorrupt, match="no valid frame at"):
            opened(tmp_path)
    path.unlink()
    with pytest.raises(StoreCorrupt, match="no valid frame at 0"):
        opened(tmp_path)


async def test_a_journal_whose_first_write_was_torn_holds_nothing(tmp_path: Path) -> None:
    await write(tmp_path, [])
    (tmp_path / ACKNOWLEDGED).unlink()
    path = newest(tmp_path)
    # Its state before its first sync.
    whole = frames.encode_header(frames.LogFileHeader(1, 0, 0)) + path.read_bytes()[HEADER:]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert found(tmp_path) == [], cut
    path.write_bytes(b"")
    await write(tmp_path, [(0, 1)])
    assert found(tmp_path) == [0, 1]


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
async def test_nothing_is_acknowledged_after_the_disk_failed_once(
    tmp_path: Path, call: str
) -> None:
    disk, failures = FaultyDisk(call, 1 << 30), list[StoreFailed]()
    store = JournalStore(tmp_path, failures.append, disk=disk)
    for number in range(2):
        put(store, [number])
        await store.durable()
    disk._left = 1
    put(store, [2])
    with pytest.raises(StoreFailed, match="Input/output error"):
        await store.durable()
    with pytest.raises(StoreFailed):
        store.require_writable()
    put(store, [99])
    with pytest.raises(StoreFailed):
        store.close()
    assert len(failures) == 1
    assert found(tmp_path)[:2] == [0, 1]
    assert 99 not in found(tmp_path)


@pytest.mark.parametrize("call", ["fdatasync", "pwrite", "unlink"])
@pytest.mark.parametrize("at", range(1, 30, 2))
async def test_a_disk_that_fails_at_any_call_loses_nothing_acknowledged(
    tmp_path: Path, call: str, at: int
) -> None:
    acknowledged = written = 0
    failures: list[StoreFailed] = []
    store = None
    try:
        disk = FaultyDisk(call, at)
        store = JournalStore(tmp_path, failures.append, disk=disk, journal_bytes_max=1)
        for number in range(6):
            store.require_writable()
            put(store, [number])
            written = number + 1
            await store.durable()
            acknowledged = written
    except (OSError, StoreFailed):
        pass
    if store is not None:
        with suppress(OSError, StoreFailed):
            store.close()
    if (tmp_path / "journal").exists():
        assert acknowledged <= len(found(tmp_path)) <= written
        assert found(tmp_path) == list(range(len(found(tmp_path))))


@pytest.mark.parametrize("seed", seeds(1))
async def test_the_power_goes_at_each_operation_and_nothing_acknowledged_is_lost(
    tmp_path: Path, seed: int
) -> None:
    """Over some files, with a state that is written in parts."""
    choose = random.Random(seed)
    crash_at, is_over = 0, False
    while not is_over:
        root, left = tmp_path / f"{crash_at}", tmp_path / f"{crash_at}-left"
        root.mkdir()
        disk = CrashingDisk(root, crash_at)
        disk.fail_allocate = lambda _: errno.EOPNOTSUPP
        acknowledged = written = 0
        store = None
        # Not `pytest.fail`: the power is lost.
        with suppress(OSError, StoreFailed):
            store = JournalStore(root, lambda _: None, disk=disk, journal_bytes_max=300)
            for number in range(9):
                put(store, [number])
                written += 1
                await store.durable()
                acknowledged = written
        is_over = acknowledged == 9
        disk.cut(left, choose)
        if store is not None:
            with suppress(OSError, StoreFailed):
                store.close()
        again = opened(left)
        present = numbers(again.ledger)
        assert acknowledged <= len(present) <= written, crash_at
        assert present == list(range(len(present)))
        put(again, [99])
        await again.durable()
        again.close()
        assert found(left) == [*present, 99]
        crash_at += 1
    assert crash_at > 30


async def test_too_much_that_waits_for_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_store, "WAITING_BYTES_MAX", 100)
    disk = HoldingDisk(everything=True)
    store = opened(tmp_path, disk)
    disk.hold()
    put(store, [0], 200)
    with pytest.raises(Busy):
        store.require_writable()
    disk.release()
    await store.durable()
    store.require_writable()
    store.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), data=st.data())
async def test_whatever_happens_to_the_tail_the_acknowledged_prefix_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("journal")
    last = 0
    batches = [range(last, last := last + size) for size in sizes]
    await write(root, batches)
    path = newest(root)
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        # A power cut loses the record of the acknowledged end.
        (root / ACKNOWLEDGED).unlink()
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(whole))
    try:
        present = found(root)
    except StoreCorrupt:
        return
    assert present == list(range(len(present)))
    if (root / ACKNOWLEDGED).exists():
        assert len(present) == last
    # Everything before the damaged frame.
    position, intact = HEADER, 0
    data_bytes = path.read_bytes()
    while frame := frames.decode(data_bytes, position, position - HEADER):
        if frame.kind is frames.FrameKind.RECORDS and frame.end + HEADER <= at:
            intact += len(list(frames.unpack(frame.payload)))
        position = frame.end + HEADER
    assert len(present) >= intact
