"""Scans of a log file, as in recovery."""

import mmap
import random
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.batch import Scan, ScanEnd, scan
from rockoon_format.hashes import tags_code
from rockoon_format.properties import decode
from rockoon_format.record import (
    Record,
    RecordError,
    decode_record,
    encode_blank,
    encode_record,
    record_size,
)
from rockoon_format.scan import CHUNK_BYTES_MAX
from support import golden_store
from support.random_messages import Messages, batches, many_examples
from support.seeds import seeds

FRAME = bytes.fromhex(golden_store.FULL_HEX)


def all_of(log: bytes, **options: bool | int) -> Scan:
    return scan(log, 0, len(log), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "end"),
    [
        (b"", ScanEnd.END),
        (bytes(200), ScanEnd.ZERO),
        (encode_blank(100) + bytes(92), ScanEnd.BLANK),
        (encode_blank(8), ScanEnd.BLANK),
        (encode_blank(101) + bytes(92), ScanEnd.TRUNCATED),
        (b"\0\0\0\0\0\0\0", ScanEnd.TRUNCATED),
        (b"garbage, not a record", ScanEnd.TRUNCATED),
        (b"\0\0\0\x09garbage", ScanEnd.BAD_MAGIC),
        (FRAME[:-1], ScanEnd.TRUNCATED),
        (FRAME[:88] + b"j" + FRAME[89:], ScanEnd.BAD_CRC),
        (b"\0\0\0\xb1" + FRAME[4:], ScanEnd.SIZE_MISMATCH),
        (b"\0\0\0\x0a" + FRAME[4:], ScanEnd.SIZE_MISMATCH),
        (b"\xff\xff\xff\xff" + FRAME[4:], ScanEnd.SIZE_MISMATCH),
        (FRAME[:93] + b"\x80" + FRAME[94:], ScanEnd.SIZE_MISMATCH),
        (
            encode_record(Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01x\x02")),
            ScanEnd.BAD_DELAY_LEVEL,
        ),
    ],
)
def test_a_scan_stops_at_the_first_bytes_that_are_no_record(tail: bytes, end: ScanEnd) -> None:
    found = all_of(FRAME + FRAME + tail)
    assert (found.count, found.position, found.end) == (2, 2 * len(FRAME), end)
    assert found.tag_codes.tolist() == [2598919, 2598919]
    alone = all_of(tail)
    assert (alone.count, alone.position, alone.end) == (0, 0, end)


def test_a_negative_topic_length_is_damage_even_where_the_sizes_add_up() -> None:
    frame = bytearray(encode_record(Record(topic=b"")))
    assert all_of(bytes(frame)).count == 1
    frame[88] = 0xFF
    found = all_of(bytes(frame))
    assert (found.count, found.end) == (0, ScanEnd.SIZE_MISMATCH)


def test_what_follows_a_damaged_record_is_not_read() -> None:
    found = all_of(FRAME + FRAME[:88] + b"j" + FRAME[89:] + FRAME)
    assert (found.count, found.end) == (1, ScanEnd.BAD_CRC)
    assert all_of(FRAME + FRAME[:88] + b"j" + FRAME[89:] + FRAME, check_crc=False).count == 3


def test_prepared_and_rolled_back_records_have_no_queue_entry() -> None:
    log = b"".join(
        encode_record(Record(topic=b"T", sys_flag=flag)) for flag in (0x0, 0x4, 0x8, 0xC, 0x1)
    )
    assert all_of(log).has_queue_entry.tolist() == [True, False, True, False, True]


def test_a_delayed_record_has_its_deliver_time_for_a_tag() -> None:
    def delayed(level: bytes) -> bytes:
        section = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
        return encode_record(
            Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=section, store_timestamp_ms=1000)
        )

    levels = [b"1", b"18", b"19", b"+2", b"0", b"-1"]
    codes = all_of(b"".join(map(delayed, levels))).tag_codes.tolist()
    assert codes == [2000, 7_201_000, 7_201_000, 6000, 2598919, 2598919]


def test_a_scan_in_small_steps_finds_what_one_step_finds() -> None:
    log = b"".join(encode_record(record) for record, _ in golden_store.RECORDS.values())
    whole = all_of(log)
    offsets: list[int] = []
    position = 0
    while True:
        step = scan(log, position, len(log), records_max=2)
        offsets += step.offsets.tolist()
        position = step.position
        if step.end is not ScanEnd.LIMIT:
            break
    assert step.end is ScanEnd.END
    assert offsets == whole.offsets.tolist()


def test_a_scan_of_a_mapped_file_lets_go_of_the_mapping() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(FRAME * 3 + bytes(100))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found = scan(memoryview(mapped), len(FRAME), len(mapped))
    assert found.offsets.tolist() == [178, 356]
    assert found.properties_starts.tolist() == [178 + 105, 356 + 105]
    assert found.properties_lengths.tolist() == [73, 73]


def test_bounds_outside_the_buffer_are_a_bug_of_the_caller() -> None:
    for position, end, records_max in ((-1, 5, 1), (6, 5, 1), (0, 11, 1), (0, 5, 0)):
        with pytest.raises(ValueError, match="cannot scan"):
            scan(bytes(10), position, end, records_max=records_max)


def record_by_record(log: bytes) -> list[tuple[int, Record]]:
    found = []
    position = 0
    while True:
        try:
            found.append((position, decode_record(log, position)))
            position += record_size(log, position)
        except RecordError:
            return found


@given(parts=st.lists(batches(count_max=4), max_size=4), damage=st.integers(0, 2**20))
@many_examples
def test_a_scan_finds_what_reading_record_by_record_finds(
    parts: list[Messages], damage: int
) -> None:
    log = bytearray(b"".join(messages.encode()[0] for messages in parts) + bytes(20))
    log[damage % len(log)] ^= 0x11
    expected = record_by_record(bytes(log))
    found = all_of(bytes(log))
    topics = [found.topics[number] for number in found.topic_numbers.tolist()]
    assert found.offsets.tolist() == [position for position, _ in expected]
    assert topics == [record.topic for _, record in expected]
    assert found.queue_ids.tolist() == [record.queue_id for _, record in expected]
    assert found.queue_offsets.tolist() == [record.queue_offset for _, record in expected]
    assert found.sys_flags.tolist() == [record.sys_flag for _, record in expected]
    assert found.store_timestamps_ms.tolist() == [
        record.store_timestamp_ms for _, record in expected
    ]
    assert found.tag_codes.tolist() == [
        tags_code(decode(record.properties).get("TAGS", "")) for _, record in expected
    ]


@pytest.mark.parametrize("seed", seeds(1))
def test_runs_of_records_of_one_size_end_where_walking_one_by_one_ends(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(60):
        log = bytearray()
        for _ in range(choose.randrange(6)):
            topic = choose.choice([b"T", 200 * b"t"])
            record = encode_record(Record(topic=topic, body=b"b" * choose.choice([1, 2, 300])))
            log += record * choose.choice([1, 15, 16, 17, 18, 40, 600])
        log += choose.choice([b"", bytes(100), bytes.fromhex("00000064cbd43194"), b"\0\0\0\x7f"])
        end = len(log) - choose.choice([0, 0, 1, 50, 300])
        if end < 0:
            continue
        most = choose.choice([10, 33, 4096])
        starts, at, why = [], 0, ScanEnd.LIMIT
        while why is ScanEnd.LIMIT and len(starts) < most:
            one = scan(log, at, end, records_max=1)
            starts += one.offsets.tolist()
            at, why = one.position, one.end
        found = scan(log, 0, end, records_max=most)
        assert (found.offsets.tolist(), found.position) == (starts, at)
        assert found.end is why or len(starts) == most
        bare = scan(log, 0, end, records_max=most, with_tag_codes=False)
        assert (bare.offsets.tolist(), bare.end) == (starts, found.end)
        assert len(bare.tag_codes) == 0


def test_one_call_looks_at_no_more_bytes_than_its_bound_whatever_the_records() -> None:
    record = encode_record(Record(topic=b"T", body=bytes(300_000)))
    log = record * 40
    found = scan(log, 0, len(log), check_crc=False)
    assert found.end is ScanEnd.LIMIT
    assert found.position == -(-CHUNK_BYTES_MAX // len(record)) * len(record)
