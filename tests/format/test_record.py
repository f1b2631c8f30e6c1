"""One record's bytes, compared with those of Apache RocketMQ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.record import (
    MAGIC_V1,
    MAGIC_V2,
    Record,
    RecordError,
    RecordFault,
    body_crc,
    decode_host,
    decode_record,
    encode_blank,
    encode_host,
    encode_property_crc,
    encode_record,
    fits,
    record_size,
)
from support import golden_store
from support.random_messages import bodies, hosts, int32, int64, many_examples, sections, topics

random_records = st.builds(
    Record,
    topic=topics,
    body=bodies,
    properties=sections,
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    physical_offset=int64,
    sys_flag=int32,
    born_timestamp_ms=int64,
    born_host=hosts,
    store_timestamp_ms=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
)


@pytest.mark.parametrize("name", golden_store.RECORDS)
def test_a_record_of_apache_is_written_and_read_byte_for_byte(name: str) -> None:
    record, expected = golden_store.RECORDS[name]
    frame = encode_record(record)
    assert frame.hex() == expected
    assert decode_record(frame) == record


def test_a_long_retry_topic_makes_a_v2_record() -> None:
    record = Record(
        topic=golden_store.RETRY_TOPIC.encode(), body=b"v2", properties=b"TAGS\x01TagA\x02"
    )
    frame = encode_record(record)
    assert len(frame) == 234
    assert frame.hex().startswith("000000eadaa320ab706b9d0f")
    assert "0082" + "25524554525925" + 123 * "67" in frame.hex()
    assert frame.hex().endswith("000a54414753015461674102")
    assert decode_record(frame) == record
    assert record.magic == MAGIC_V2


def test_the_crc_of_a_body_loses_its_sign_bit() -> None:
    assert body_crc(b"hello") == 907060870 == 0x3610A686
    assert body_crc(b"") == 0


def test_a_property_crc_of_apache_has_its_digits_reversed() -> None:
    assert encode_property_crc(7254697) == b"__CRC32#\x017964527000\x02"
    assert encode_property_crc(1275134357) == b"__CRC32#\x017534315721\x02"
    stored = decode_record(bytes.fromhex(golden_store.BARE_WITH_CRC_HEX))
    bare = decode_record(bytes.fromhex(golden_store.BARE_HEX))
    moved = Record(
        topic=bare.topic,
        body=bare.body,
        queue_offset=1,
        physical_offset=stored.physical_offset,
        born_timestamp_ms=bare.born_timestamp_ms,
        born_host=bare.born_host,
        store_timestamp_ms=bare.store_timestamp_ms,
        store_host=bare.store_host,
    )
    frame = encode_record(moved, property_crc=True)
    assert frame.hex() == golden_store.BARE_WITH_CRC_HEX
    assert decode_record(frame) == stored
    with pytest.raises(RecordError) as refused:
        decode_record(frame[:60] + b"?" + frame[61:])
    assert refused.value.reason is RecordFault.PROPERTY_CRC

    full = encode_record(golden_store.FULL, property_crc=True)
    assert len(full) == 198
    assert full.endswith(b"__CRC32#\x017534315721\x02")


def test_a_property_crc_behind_unfinished_properties_finishes_them() -> None:
    frame = encode_record(Record(topic=b"T", properties=b"TAGS\x01a"), property_crc=True)
    assert b"TAGS\x01a\x02__CRC32#\x01" in frame
    assert decode_record(frame).properties == frame[-27:]


def test_the_end_of_a_file_is_marked_with_what_is_left_of_it() -> None:
    assert encode_blank(2780).hex() == "00000adccbd43194"
    assert fits(100, 108)
    assert not fits(101, 108)
    with pytest.raises(ValueError, match="8 bytes"):
        encode_blank(7)
    with pytest.raises(RecordError) as caught:
        decode_record(encode_blank(8))
    assert caught.value.reason is RecordFault.BLANK


@given(record=random_records)
@many_examples
def test_any_record_reads_back_as_it_was_written(record: Record) -> None:
    frame = encode_record(record)
    assert decode_record(frame) == record
    assert decode_record(b"??" + frame + b"?", 2) == record
    assert record_size(frame) == len(frame)


@given(record=random_records, cut=st.integers(1, 300))
@many_examples
def test_a_record_cut_short_is_refused(record: Record, cut: int) -> None:
    with pytest.raises(RecordError) as caught:
        decode_record(encode_record(record)[:-cut])
    assert caught.value.reason is RecordFault.TRUNCATED


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, b"\0\0\0\x5a", RecordFault.SIZE),
        (0, b"\xff\xff\xff\xff", RecordFault.SIZE),
        (0, b"\0\0\0\xb1", RecordFault.SIZE),
        (4, b"\0\0\0\0", RecordFault.MAGIC),
        (84, b"\0\0\0\6", RecordFault.SIZE),
        (84, b"\x7f\xff\xff\xff", RecordFault.SIZE),
        (88, b"j", RecordFault.BODY_CRC),
        (93, b"\xff", RecordFault.SIZE),
        (103, b"\x7f\xff", RecordFault.SIZE),
        (36, b"\0\0\0\x10", RecordFault.SIZE),
    ],
)
def test_a_damaged_field_is_named(position: int, value: bytes, reason: RecordFault) -> None:
    frame = bytearray.fromhex(golden_store.FULL_HEX)
    frame[position : position + len(value)] = value
    with pytest.raises(RecordError) as caught:
        decode_record(frame)
    assert caught.value.reason is reason


def test_values_that_no_record_can_hold_are_refused() -> None:
    for record, reason in (
        (Record(topic=b"T", born_host=b"1234"), RecordFault.HOST),
        (Record(topic=b"T", properties=32768 * b"p"), RecordFault.PROPERTIES_LENGTH),
        (Record(topic=32768 * b"t"), RecordFault.TOPIC_LENGTH),
        (Record(topic=b"T", magic=7), RecordFault.MAGIC),
    ):
        with pytest.raises(RecordError) as caught:
            encode_record(record)
        assert caught.value.reason is reason


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "255.255.255.255", "fd00::2"])
def test_hosts_read_back(address: str) -> None:
    assert decode_host(encode_host(address, 65535)) == (address, 65535)


def test_hosts_that_no_record_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="port"):
        encode_host("127.0.0.1", 65536)
    with pytest.raises(ValueError, match="localhost"):
        encode_host("localhost", 1)
    with pytest.raises(RecordError):
        decode_host(b"123456789")
