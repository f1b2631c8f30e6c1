"""Records with a checksum of the whole record: detected damage, and the writers of the checksum."""

import random
from dataclasses import replace

import numpy as np
import pytest

from rockoon_format.batch import check_batch, decode_columns, patch_batch, scan, with_checksums
from rockoon_format.properties import PROPERTIES_BYTES_MAX, decode
from rockoon_format.record import (
    PROPERTY_CRC_ROOM,
    SYS_FLAG_COMPRESSED,
    Record,
    RecordError,
    decode_record,
    encode_host,
    encode_record,
    with_room,
    without_checksum,
)
from rockoon_format.scan import ScanEnd
from rockoon_format.sequences import encode_sequences, find_sequences
from support import golden_store
from support.seeds import seeds

HOST = encode_host("10.0.0.9", 10911)
WITH_CRC = bytes.fromhex(golden_store.BARE_WITH_CRC_HEX)


def stored(rng: random.Random) -> bytes:
    """Return a record as a broker stores it."""
    record = Record(
        topic=b"orders" if rng.random() < 0.8 else b"t" * 200,
        queue_id=rng.randrange(8),
        body=rng.randbytes(rng.choice([0, 1, 40])),
        properties=b"TAGS\x01new\x02DELAY\x013\x02UNIQ_KEY\x01"
        + b"%032X\x02" % rng.getrandbits(128),
        queue_offset=rng.randrange(1 << 40),
        physical_offset=rng.randrange(1 << 40),
        sys_flag=rng.choice([0, SYS_FLAG_COMPRESSED]),
        born_timestamp_ms=1_700_000_000_000,
        born_host=encode_host(rng.choice(["10.0.0.1", "::1"]), 1234),
        store_timestamp_ms=1_700_000_000_001,
        store_host=HOST,
    )
    return encode_record(record, property_crc=True)


def is_noticed(frame: bytes) -> tuple[bool, bool, bool]:
    """By readers of one record, by readers of many, and by a scan."""
    try:
        decode_record(frame)
    except RecordError:
        one = True
    else:
        one = False
    try:
        many = len(decode_columns(frame, [len(frame)]).damaged) == 1
    except RecordError:
        many = True
    return one, many, scan(frame, 0, len(frame)).count == 0


@pytest.mark.parametrize("seed", seeds(2))
def test_every_flipped_bit_of_a_record_is_noticed(seed: int) -> None:
    frame = stored(random.Random(seed))
    assert is_noticed(frame) == (False, False, False)
    for position in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[position] ^= 1 << bit
            assert is_noticed(bytes(changed)) == (True, True, True), (position, bit)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_record_that_is_torn_anywhere_is_not_taken_for_whole(seed: int) -> None:
    rng = random.Random(seed)
    before, frame = stored(rng), stored(rng)
    for cut in range(len(frame)):
        missing = len(frame) - cut
        for rest in (bytes(missing), rng.randbytes(missing)):
            log = before + frame[:cut] + rest
            # The last byte may be right by chance.
            if log[len(before) :] != frame:
                found = scan(log, 0, len(log), checksums_from=0)
                assert (found.count, found.position) == (1, len(before)), cut


def test_a_checksum_of_apache_is_checked_unless_told_otherwise() -> None:
    wrong = WITH_CRC[:60] + b"?" + WITH_CRC[61:]
    assert scan(WITH_CRC, 0, len(WITH_CRC)).end is ScanEnd.END
    assert scan(wrong, 0, len(wrong)).end is ScanEnd.BAD_CRC
    assert scan(wrong, 0, len(wrong), checksums=False).count == 1
    assert scan(wrong, 0, len(wrong), check_crc=False).count == 1
    assert decode_columns(WITH_CRC + wrong).damaged.tolist() == [1]
    assert decode(decode_record(WITH_CRC).properties) == {}


def test_a_record_without_a_checksum_is_taken_by_its_body_as_ever() -> None:
    bare = bytes.fromhex(golden_store.BARE_HEX)
    room = encode_record(Record(topic=b"T", body=b"b", properties=PROPERTY_CRC_ROOM))
    full = encode_record(
        Record(topic=b"T", properties=b"A\x01" + b"b" * (PROPERTIES_BYTES_MAX - 2))
    )
    for frame in (bare, room, full):
        assert is_noticed(frame) == (False, False, False)
        found = scan(frame, 0, len(frame), checksums_from=0)
        assert found.end is (ScanEnd.END if frame is full else ScanEnd.NO_CHECKSUM)
        assert scan(frame, 0, len(frame), checksums_from=1).count == 1
    body = room.index(b"b__CRC") if b"b__CRC" in room else 88
    assert is_noticed(room[:body] + b"c" + room[body + 1 :]) == (True, True, True)


@pytest.mark.parametrize(
    "section",
    [
        b"x__CRC32#\x011234567890\x02",
        b"A\x01b\x02x__CRC32#\x011234567890\x02",
        b"__CRC33!\x01123456789\x02",
        b"CRC32\x011234567890\x02",
    ],
)
def test_properties_that_only_resemble_a_checksum(section: bytes) -> None:
    frame = encode_record(Record(topic=b"T", body=b"b", properties=section))
    is_close = b"__CRC32#" in section
    assert is_noticed(frame) == (is_close, is_close, is_close)
    assert without_checksum(section) == section


@pytest.mark.parametrize("count", [1, 3, 60])
@pytest.mark.parametrize("room", [True, False])
def test_the_broker_writes_checksums_into_the_room_or_behind_the_properties(
    count: int, room: bool
) -> None:
    sections = [b"TAGS\x01a\x02", b"", b"A\x01unfinished", b"A\x01b\x02" + PROPERTY_CRC_ROOM]
    records = [
        Record(
            topic=b"T",
            queue_id=7,
            body=b"x" * (number % 5),
            properties=sections[number % 4],
            born_host=encode_host("::1" if number % 3 else "10.0.0.1", 99),
        )
        for number in range(count)
    ]
    frames = [encode_record(record, room=room) for record in records]
    layout = check_batch(
        b"".join(frames),
        list(map(len, frames)),
        topic=b"T",
        queue_id=7,
        body_bytes_max=10,
        properties_bytes_max=13,
        record_bytes_max=1000,
    )
    longer, layout = with_checksums(b"".join(frames), layout)
    assert room is (longer == b"".join(frames))
    buffer = np.frombuffer(bytearray(longer), np.uint8)
    patch_batch(
        buffer,
        layout,
        first_queue_offset=5,
        first_physical_offset=1000,
        store_timestamp_ms=77,
        store_host=HOST,
    )
    expected = b""
    for number, record in enumerate(records):
        placed = replace(
            record,
            properties=without_checksum(record.properties),
            queue_offset=5 + number,
            physical_offset=1000 + len(expected),
            store_timestamp_ms=77,
            store_host=HOST,
        )
        expected += encode_record(placed, property_crc=True)
    assert buffer.tobytes() == expected
    assert len(decode_columns(expected, layout.lengths).damaged) == 0


def test_properties_that_leave_no_room_are_stored_as_they_are() -> None:
    section = b"A\x01" + b"b" * (PROPERTIES_BYTES_MAX - 3) + b"\x02"
    assert with_room(section) == section
    frame = encode_record(Record(topic=b"T", properties=section), room=True)
    layout = check_batch(
        frame, [len(frame)], topic=b"T", queue_id=0, body_bytes_max=0, record_bytes_max=1 << 20
    )
    longer, layout = with_checksums(frame, layout)
    assert longer == frame
    assert not layout.has_room.any()


def test_sequence_numbers_are_found_before_checksums_and_without() -> None:
    numbers = [section.tobytes() for section in encode_sequences(9, 100, 3)]
    sections = [numbers[0], b"A\x01b\x02" + numbers[1], b"A\x01x" + numbers[2]]
    for room in (True, False):
        frames = [encode_record(Record(topic=b"T", properties=s), room=room) for s in sections]
        lengths = np.array(list(map(len, frames)))
        found = find_sequences(b"".join(frames), np.cumsum(lengths) - lengths, lengths)
        assert found.indices.tolist() == [0, 1]
        assert found.first_sequences.tolist() == [100, 100]
