"""Settled queues over a real store: waiting records are known again after any end."""

import logging
import random
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from rockoon_broker.pending import pending_index as pending_index_module
from rockoon_broker.pending.pending_index import (
    SNAPSHOT_FILE,
    SNAPSHOT_SECONDS,
    CapturedState,
    PendingIndex,
    decode_snapshot,
)
from rockoon_broker.pending.pending_queue import named_source, sources_of
from rockoon_broker.store.settings import Flush
from rockoon_core.disk import Disk
from rockoon_format.batch import BatchError, BatchFault
from rockoon_format.record import NO_HOST, Record, encode_record
from support.holding_disk import HoldingDisk
from support.seeds import seeds
from support.store_directory import (
    BORN_HOST,
    FailingDisk,
    Owner,
    PowerCutDisk,
    batch_of,
    crashed_copy,
    healthy,
    no_space_in,
    settings,
)

WAITING = ("W", 0)


def opened(owner: Owner, disk: Disk | None = None) -> PendingIndex:
    config = owner.store.settings.root / "config"
    pending_index = PendingIndex(owner.store, config, disk or PowerCutDisk(config))
    pending_index.add_queue(*WAITING)
    pending_index.load({})
    return pending_index


def add_entries(pending_index: PendingIndex) -> None:
    while (found := pending_index.new_entries(WAITING)) is not None:
        pending_index.queue(*WAITING).add_entries(*found)


def complete(owner: Owner, pending_index: PendingIndex, source: int, body: bytes = b"done") -> int:
    """Append a record that completes the one at `source`; return its physical offset."""
    frame = encode_record(
        Record(
            topic=b"D",
            body=body,
            born_host=BORN_HOST,
            store_host=NO_HOST,
            prepared_transaction_offset=named_source(source),
        )
    )
    made = owner.store.append(
        batch_of("D", 0, frame, [len(frame)], internal=True), owner.clock.time_ms
    )
    assert pending_index.queue(*WAITING).complete([source]) == 1
    return made.first_physical_offset


def write_snapshot(owner: Owner, pending_index: PendingIndex) -> None:
    owner.write_point()
    captured = pending_index.capture()
    assert captured.snapshot.covered_end <= owner.store.durable_end
    pending_index.write(captured)


def pending(pending_index: PendingIndex) -> list[int]:
    return pending_index.queue(*WAITING).pending().positions.tolist()


@pytest.fixture
def owner(tmp_path: Path):  # type: ignore[no-untyped-def]
    owner = Owner(settings(tmp_path / "store"))
    yield owner
    owner.store.close()


def test_a_producer_cannot_name_a_source(owner: Owner) -> None:
    for count in (1, 40):
        frame = encode_record(
            Record(topic=b"T", born_host=BORN_HOST, prepared_transaction_offset=named_source(0))
        )
        with pytest.raises(BatchError) as refused:
            owner.store.append(batch_of("T", 0, frame * count, [len(frame)] * count), 1)
        assert refused.value.reason is BatchFault.SOURCE


def test_after_a_kill_without_a_snapshot_the_log_says_what_is_settled(
    owner: Owner, tmp_path: Path
) -> None:
    pending_index = opened(owner)
    positions = [owner.append("W").first_physical_offset for _ in range(30)]
    add_entries(pending_index)
    for source in positions[::3]:
        complete(owner, pending_index, source)
    again = Owner(settings(crashed_copy(owner.store.settings.root, tmp_path / "copy")))
    found = opened(again)
    assert pending(found) == [p for i, p in enumerate(positions) if i % 3]
    assert found.bytes_applied > 0
    assert "no snapshot" in found.rebuilt_because
    again.store.close()


def test_the_record_at_offset_zero_can_be_settled(owner: Owner, tmp_path: Path) -> None:
    pending_index = opened(owner)
    assert owner.append("W").first_physical_offset == 0
    add_entries(pending_index)
    complete(owner, pending_index, 0)
    owner.append("W")
    again = Owner(settings(crashed_copy(owner.store.settings.root, tmp_path / "copy")))
    assert 0 not in pending(opened(again))
    again.store.close()


def test_a_snapshot_spares_the_log_before_it(owner: Owner, tmp_path: Path) -> None:
    pending_index = opened(owner)
    for _ in range(50):
        owner.append("T", bodies=[bytes(300)])
        owner.append("W")
    add_entries(pending_index)
    write_snapshot(owner, pending_index)
    late = owner.append("W").first_physical_offset
    complete(owner, pending_index, pending(pending_index)[7])
    add_entries(pending_index)
    again = Owner(settings(crashed_copy(owner.store.settings.root, tmp_path / "copy")))
    found = opened(again)
    assert found.rebuilt_because == ""
    assert found.bytes_applied < 1000
    assert pending(found) == pending(pending_index)
    assert late in pending(found)
    again.store.close()


@pytest.mark.parametrize("damage", ["flipped", "cut", "other history", "longer log"])
def test_a_snapshot_that_cannot_be_used_is_worked_out_anew(
    damage: str, owner: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pending_index = opened(owner)
    for _ in range(10):
        owner.append("W")
    add_entries(pending_index)
    complete(owner, pending_index, pending(pending_index)[4])
    write_snapshot(owner, pending_index)
    expected = pending(pending_index)
    copy = crashed_copy(owner.store.settings.root, tmp_path / "copy")
    file = copy / "config" / SNAPSHOT_FILE
    raw = bytearray(file.read_bytes())
    if damage == "flipped":
        raw[50] ^= 1
    if damage == "cut":
        raw = raw[:-9]
    if damage in ("other history", "longer log"):
        raw[8 if damage == "other history" else 26] ^= 255
        raw[-4:] = zlib.crc32(raw[:-4]).to_bytes(4, "little")
        decode_snapshot(bytes(raw))
    file.write_bytes(raw)
    again = Owner(settings(copy))
    found = opened(again)
    assert found.rebuilt_because
    (said,) = (each for each in caplog.records if "find pending messages" in each.message)
    assert (said.levelno == logging.INFO) == (damage == "other history")
    assert pending(found) == expected
    # A log that has grown since would look like the log of the snapshot.
    assert not file.exists()
    again.store.close()


def test_a_snapshot_is_not_written_before_the_log_is_durable_up_to_it(tmp_path: Path) -> None:
    disk = HoldingDisk()
    owner = Owner(settings(tmp_path / "store", flush=Flush.SYNC), disk)
    pending_index = opened(owner)
    first = owner.append_durably("W").first_physical_offset
    add_entries(pending_index)
    disk.hold()
    complete(owner, pending_index, first)
    pending_index.capture_if_due(1000.0)
    assert pending_index.pop_durable() is None
    disk.release()
    end = owner.store.appended_end
    owner.confirm(end)
    captured = pending_index.pop_durable()
    assert captured is not None
    assert captured.snapshot.covered_end == end
    assert pending_index.pop_durable() is None
    pending_index.write(captured)
    pending_index.capture_if_due(2000.0)
    assert pending_index.pop_durable() is None, "nothing has changed since"
    owner.store.close()


def test_a_refused_snapshot_is_written_later_although_the_log_has_not_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pause after a refusal is the same, however much of the log the snapshot lacks.
    monkeypatch.setattr(pending_index_module, "UNCOVERED_BYTES_MAX", 1)
    owner = Owner(settings(tmp_path / "store", flush=Flush.SYNC))
    disk = FailingDisk()
    pending_index = opened(owner, disk)
    owner.append_durably("W")
    add_entries(pending_index)
    owner.write_point()

    def captured_at(seconds: float) -> CapturedState | None:
        pending_index.capture_if_due(seconds)
        return pending_index.pop_durable()

    disk.fail_write = no_space_in(lambda path: path.name.startswith(SNAPSHOT_FILE))
    refused = captured_at(SNAPSHOT_SECONDS)
    assert refused is not None
    with pytest.raises(OSError, match="No space"):
        pending_index.write(refused)
    disk.fail_write = healthy
    assert pending_index.wants_capture, "else the broker waits for the log to grow"
    assert captured_at(1.5 * SNAPSHOT_SECONDS) is None, "a full disk is tried after a pause"
    again = captured_at(2 * SNAPSHOT_SECONDS)
    assert again is not None
    assert again.snapshot.covered_end == owner.store.appended_end
    pending_index.write(again)
    assert not pending_index.wants_capture
    assert captured_at(3 * SNAPSHOT_SECONDS) is None
    owner.store.close()


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_start_that_read_the_log_spares_the_next_one_although_the_log_has_not_grown(
    tmp_path: Path, has_snapshot: bool
) -> None:
    owner = Owner(settings(tmp_path / "store", flush=Flush.SYNC))
    before = opened(owner)
    if has_snapshot:
        write_snapshot(owner, before)
    owner.append_durably("W")
    owner.append_durably("other")
    owner = Owner(settings(crashed_copy(tmp_path / "store", tmp_path / "1"), flush=Flush.SYNC))
    first = opened(owner)
    assert first.bytes_applied > 0
    assert first.wants_capture, "otherwise the broker waits for the log to grow"
    owner.write_point()
    first.capture_if_due(SNAPSHOT_SECONDS)
    captured = first.pop_durable()
    assert captured is not None
    first.write(captured)
    owner = Owner(settings(crashed_copy(tmp_path / "1", tmp_path / "2"), flush=Flush.SYNC))
    second = opened(owner)
    assert (second.rebuilt_because, second.bytes_applied) == ("", 0)
    assert len(pending(second)) == 1


def test_messages_that_wait_for_nothing_cause_no_snapshot(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "store", flush=Flush.SYNC))
    disk = FailingDisk()
    pending_index, now = opened(owner, disk), 0.0

    def is_captured() -> bool:
        nonlocal now
        now += SNAPSHOT_SECONDS
        owner.append_durably("other")
        owner.write_point()
        wanted = pending_index.wants_capture
        pending_index.capture_if_due(now)
        captured = pending_index.pop_durable()
        assert wanted == (captured is not None)
        if captured is not None:
            with suppress(OSError):
                pending_index.write(captured)
        return wanted

    assert is_captured(), "the first one names the store"
    assert not is_captured()
    first = owner.append_durably("W").first_physical_offset
    add_entries(pending_index)
    # A start reads the log after the snapshot for the end of this one.
    assert is_captured()
    assert is_captured()
    complete(owner, pending_index, first)
    disk.fail_write = no_space_in(lambda path: path.name.startswith(SNAPSHOT_FILE))
    assert is_captured(), "else a start would read the log for it"
    disk.fail_write = healthy
    assert is_captured(), "it was not written"
    assert not is_captured()
    owner.store.close()


@pytest.mark.parametrize("seed", seeds(1))
def test_power_cuts_at_random_moments_lose_no_message_and_settle_none_without_its_record(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    for turn in range(6):
        root = tmp_path / str(turn)
        disk = PowerCutDisk(root)
        owner = Owner(settings(root, flush=Flush.SYNC), disk)
        pending_index = PendingIndex(owner.store, root / "config", disk)
        pending_index.add_queue(*WAITING)
        pending_index.load({})
        acknowledged: list[int] = []
        for _ in range(choose.randrange(5, 60)):
            appended = owner.append("W")
            if choose.random() < 0.8:
                owner.confirm(appended.end_offset)
                acknowledged.append(appended.first_physical_offset)
            add_entries(pending_index)
            waiting = pending(pending_index)
            if waiting and choose.random() < 0.6:
                complete(owner, pending_index, choose.choice(waiting))
            pending_index.capture_if_due(choose.random() * 1e6)
            if (captured := pending_index.pop_durable()) is not None:
                pending_index.write(captured)
        disk.cut(tmp_path / f"{turn} cut", choose)
        after = Owner(settings(tmp_path / f"{turn} cut", flush=Flush.SYNC))
        found = opened(after)
        made_of = set()
        position = 0
        while position < after.store.visible_end:
            chunk = after.store.read_log(position)
            made_of |= set(sources_of(chunk.frames, chunk.records)[1].tolist())
            position = chunk.next_offset
        waits = set(pending(found))
        assert not waits & made_of
        assert set(acknowledged) <= waits | made_of
        after.store.close()
        owner.store.close()
