"""Positions of messages, the time at which readers see them, and the content of the log."""

import threading
from pathlib import Path

import pytest

from rockoon_broker.store.errors import StoreInUse, UnstorableTopic
from rockoon_broker.store.reading.reader import GetStatus
from rockoon_broker.store.settings import Flush
from rockoon_format.batch import BatchError, decode_columns, encode_batch
from support.store_check import rebuild_consume_queues, verify_store
from support.store_directory import (
    BORN_HOST,
    NOW_MS,
    FailingDisk,
    Owner,
    batch_of,
    in_log,
    in_queues,
    recovered,
    settings,
)
from support.waiting import DEADLINE_SECONDS


def test_with_sync_a_message_is_seen_only_when_it_is_durable(tmp_path: Path) -> None:
    disk = FailingDisk()
    gate = threading.Event()
    disk.fail_sync = lambda path: int(in_log(path) and not gate.wait(DEADLINE_SECONDS))
    owner = Owner(settings(tmp_path, flush=Flush.SYNC), disk)
    appended = owner.append()
    assert owner.store.max_offset("T", 0) == 0
    assert owner.store.get("T", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert owner.store.visible_end == 0
    gate.set()
    assert owner.confirm(appended.end_offset) == [("T", 0)]
    assert owner.bodies() == [b"body"]
    owner.store.close()


def test_appends_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    disk = FailingDisk()
    entered, gate = threading.Event(), threading.Event()

    def wait_at_gate(path: Path) -> int:
        if in_log(path):
            entered.set()
            gate.wait(DEADLINE_SECONDS)
        return 0

    disk.fail_sync = wait_at_gate
    owner = Owner(settings(tmp_path, flush=Flush.SYNC, commit_log_file_bytes=1 << 20), disk)
    first = owner.append()
    assert entered.wait(DEADLINE_SECONDS)
    last = [owner.append(queue_id=number % 3) for number in range(50)][-1]
    gate.set()
    advanced = owner.confirm(last.end_offset)
    assert set(advanced) == {("T", 0), ("T", 1), ("T", 2)}
    assert len([path for path in disk.syncs if in_log(path)]) == 2
    assert first.end_offset < last.end_offset
    owner.store.close()


def test_an_older_confirmation_changes_nothing_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path, flush=Flush.SYNC))
    one, two = owner.append_durably(), owner.append_durably()
    assert owner.store.confirm(one.end_offset) == []
    with pytest.raises(ValueError, match="cannot be committed"):
        owner.store.confirm(two.end_offset + 1)
    owner.store.close()


def test_a_batch_that_does_not_fit_goes_whole_to_the_next_file(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    first = owner.append(bodies=[bytes(3000)])
    batch = owner.append(bodies=[bytes(300)] * 4)
    assert batch.first_physical_offset == 4096
    content = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    left = 4096 - first.end_offset
    assert content[first.end_offset :][:8].hex() == f"{left:08x}cbd43194"
    assert not any(content[first.end_offset + 8 :])
    assert owner.bodies() == [bytes(3000)] + [bytes(300)] * 4
    owner.store.close()
    assert verify_store(tmp_path) == []


@pytest.mark.parametrize(("spare", "fits"), [(8, True), (7, False)])
def test_eight_bytes_always_stay_free(tmp_path: Path, spare: int, fits: bool) -> None:
    owner = Owner(settings(tmp_path))
    end = owner.append(bodies=[b""]).end_offset
    second = owner.append(bodies=[bytes(4096 - end - end - spare)])
    assert second.first_physical_offset == (end if fits else 4096)
    assert owner.append().first_physical_offset == (4096 if fits else 8192)
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_offsets_count_up_per_queue_and_are_written_into_the_records(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.append(queue_id=0, bodies=[b"a", b"b"])
    owner.append(queue_id=1, bodies=[b"c"])
    appended = owner.append(queue_id=0, bodies=[b"d", b"e"])
    result = owner.store.get("T", 0, 0)
    columns = decode_columns(result.frames, result.lengths)
    assert columns.queue_offsets.tolist() == [0, 1, 2, 3]
    assert columns.physical_offsets[2] == appended.first_physical_offset
    assert set(columns.store_timestamps_ms.tolist()) == {NOW_MS}
    assert columns.store_hosts[0] == b"\x7f\0\0\1\0\0\x2a\x9f"
    owner.store.close()


def test_store_times_stand_still_when_the_clock_goes_back(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    owner.append()
    owner.clock.time_ms -= 5000
    assert owner.append().store_timestamp_ms == NOW_MS
    owner.store.close()
    owner = Owner(settings(tmp_path), now_ms=NOW_MS - 60_000)
    assert owner.append().store_timestamp_ms == NOW_MS
    owner.store.close()
    assert verify_store(tmp_path) == []


def test_a_wrong_batch_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    frames, lengths = encode_batch(b"T", 0, [b"x"], [b""], NOW_MS, BORN_HOST)
    with pytest.raises(BatchError):
        owner.store.append(batch_of("T", 1, frames, lengths), NOW_MS)
    damaged = bytearray(frames)
    damaged[88] ^= 1
    with pytest.raises(BatchError):
        owner.store.append(batch_of("T", 0, bytes(damaged), lengths), NOW_MS)
    assert owner.store.appended_end == 0
    assert owner.append().first_queue_offset == 0
    owner.store.close()


@pytest.mark.parametrize("topic", ["../up", "a/b", "", "t" * 128, "a b"])
def test_a_topic_that_cannot_be_a_directory_is_refused(tmp_path: Path, topic: str) -> None:
    owner = Owner(settings(tmp_path / "s"))
    frames, lengths = encode_batch(topic.encode(), 0, [b"x"], [b""], NOW_MS, BORN_HOST)
    with pytest.raises(UnstorableTopic):
        owner.store.append(batch_of(topic, 0, frames, lengths), NOW_MS)
    owner.store.close()


def test_delayed_messages_are_listed_with_their_deliver_time(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    topic = "SCHEDULE_TOPIC_XXXX"
    section = b"DELAY\x013\x02REAL_TOPIC\x01T\x02"
    frames, lengths = encode_batch(topic.encode(), 2, [b"x"], [section], NOW_MS, BORN_HOST)
    owner.store.append(batch_of(topic, 2, frames, lengths), NOW_MS)
    owner.store.close()
    entry = (tmp_path / "consumequeue" / topic / "2" / f"{0:020d}").read_bytes()[:20]
    assert int.from_bytes(entry[12:]) == NOW_MS + 10_000
    assert verify_store(tmp_path) == []


def test_many_queues_share_few_open_files(tmp_path: Path) -> None:
    configured = settings(tmp_path, open_queue_files_max=8, commit_log_file_bytes=1 << 20)
    disk = FailingDisk()
    owner = Owner(configured, disk)
    for round_number in range(3):
        for queue_id in range(60):
            owner.append(queue_id=queue_id, bodies=[b"%d" % round_number] * 5)
    assert len([path for path in disk.paths.values() if in_queues(path)]) <= 8
    assert owner.bodies(queue_id=59) == [b"0"] * 5 + [b"1"] * 5 + [b"2"] * 5
    owner.write_point()
    owner.store.close()
    owner = recovered(configured)
    assert owner.store.max_offset("T", 30) == 15
    owner.store.close()


def test_queue_files_equal_those_that_a_rebuild_writes(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path / "s"))
    for number in range(30):
        owner.append(f"T{number % 2}", number % 3, [b"%d" % number] * 3)
    owner.store.close()
    assert rebuild_consume_queues(tmp_path / "s", tmp_path / "again", file_bytes=200) == 6
    written = tmp_path / "s/consumequeue"
    for path in (tmp_path / "again").rglob("*/*/0*"):
        if path.is_file():
            assert (written / path.relative_to(tmp_path / "again")).read_bytes() == (
                path.read_bytes()
            )


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    owner = Owner(settings(tmp_path))
    with pytest.raises(StoreInUse, match="already open in this process"):
        Owner(settings(tmp_path))
    assert (tmp_path / "lock").read_bytes() == b"lock"
    owner.append()
    owner.store.close()
    Owner(settings(tmp_path)).store.close()


def test_limits_lowered_since_are_for_what_clients_send_not_for_what_is_made_of_it(
    tmp_path: Path,
) -> None:
    lowered = settings(tmp_path, body_bytes_max=10, properties_bytes_max=10)
    owner = Owner(lowered)
    body, properties = bytes(100), b"x\x01" + b"y" * 20 + b"\x02"
    frames, lengths = encode_batch(b"T", 0, [body], [properties], NOW_MS, BORN_HOST)
    for wrong in ([body], [b""]):
        sent, sizes = encode_batch(b"T", 0, wrong, [properties], NOW_MS, BORN_HOST)
        with pytest.raises(BatchError, match="more than 10 bytes"):
            owner.store.append(batch_of("T", 0, sent, sizes), NOW_MS)
    owner.store.append(batch_of("T", 0, frames, lengths, internal=True), NOW_MS)
    assert owner.bodies() == [body]
    owner.store.close()
