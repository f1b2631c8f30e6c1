"""Batches as producers make them and brokers complete them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.batch import (
    check_batch,
    decode_columns,
    encode_batch,
    patch_batch,
    queue_entries,
)
from rockoon_format.columns import record_sizes
from rockoon_format.consume_queue import decode_entries
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.hashes import tags_code
from rockoon_format.properties import decode
from rockoon_format.record import (
    Record,
    RecordError,
    RecordFault,
    decode_record,
    encode_host,
    encode_record,
)
from support import golden_store
from support.random_messages import (
    BODY_BYTES_MAX,
    RECORD_BYTES_MAX,
    Messages,
    batches,
    int64,
    many_examples,
)

pytestmark = pytest.mark.usefixtures("each_kernel")

STORE_HOST = encode_host("10.0.0.9", 10911)


def records_of(messages: Messages) -> list[Record]:
    return [
        Record(
            topic=messages.topic,
            body=messages.bodies[index],
            properties=messages.sections[index],
            queue_id=messages.queue_id,
            flag=messages.flags[index],
            sys_flag=messages.sys_flags[index],
            born_timestamp_ms=messages.born_ms[index],
            born_host=messages.born_host,
        )
        for index in range(len(messages.bodies))
    ]


@given(messages=batches())
@many_examples
def test_a_batch_is_its_records_back_to_back(messages: Messages) -> None:
    frames, lengths = messages.encode()
    expected = [encode_record(record) for record in records_of(messages)]
    assert frames == b"".join(expected)
    assert lengths.tolist() == [len(frame) for frame in expected]
    assert lengths.dtype == np.uint32


def test_host_bits_in_the_flags_do_not_shift_a_batch() -> None:
    for host, flag in ((encode_host("10.0.0.9", 1), 0x1), (encode_host("::1", 1), 0x11)):
        frames, _ = encode_batch(b"T", 0, [b"a"], [b""], 0, host, sys_flags=0x31)
        assert decode_record(frames) == Record(topic=b"T", body=b"a", born_host=host, sys_flag=flag)


def test_an_empty_batch_encodes_to_nothing() -> None:
    frames, lengths = encode_batch(b"T", 0, [], [], 0, STORE_HOST)
    assert frames == b""
    assert len(lengths) == 0


def test_a_batch_that_no_record_can_hold_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="2 bodies but 1 properties"):
        encode_batch(b"T", 0, [b"a", b"b"], [b""], 0, STORE_HOST)
    with pytest.raises(ValueError, match="32767"):
        encode_batch(b"T", 0, [b"a"], [bytes(32768)], 0, STORE_HOST)
    with pytest.raises(ValueError, match="host"):
        encode_batch(b"T", 0, [b"a"], [b""], 0, b"")
    with pytest.raises(RecordError) as caught:
        encode_batch(bytes(32768), 0, [b"a"], [b""], 0, STORE_HOST)
    assert caught.value.reason is RecordFault.TOPIC_LENGTH


def test_a_completed_batch_of_apache_is_written_byte_for_byte() -> None:
    frames, lengths = encode_batch(
        b"TopicTest",
        1,
        [b"b1", b"b2"],
        [b"WAIT\x01true\x02TAGS\x01TagA\x02", b"WAIT\x01true\x02TAGS\x01TagB\x02"],
        golden_store.BORN_MS,
        golden_store.BORN_HOST,
    )
    layout = check_batch(
        frames,
        lengths,
        topic=b"TopicTest",
        queue_id=1,
        body_bytes_max=BODY_BYTES_MAX,
        record_bytes_max=RECORD_BYTES_MAX,
    )
    buffer = np.frombuffer(bytearray(frames), np.uint8)
    patch_batch(
        buffer,
        layout,
        first_queue_offset=2,
        first_physical_offset=7206,
        store_timestamp_ms=0x18BCFE5A298,
        store_host=golden_store.STORE_HOST,
    )
    in_log = golden_store.files()[f"commitlog/{4096:020d}"]
    assert buffer.tobytes() == in_log[7206 - 4096 : 7450 - 4096]
    assert buffer.tobytes()[:122].hex() == golden_store.BATCH_FIRST_HEX
    assert queue_entries(layout, 7206).tobytes() == golden_store.queue_file("TopicTest", 1)[40:80]


@given(
    messages=batches(),
    queue_offset=st.integers(0, 2**62),
    physical_offset=st.integers(0, 2**62),
    store_ms=int64,
)
@many_examples
def test_a_patched_batch_is_the_records_with_those_fields(
    messages: Messages, queue_offset: int, physical_offset: int, store_ms: int
) -> None:
    frames, lengths = messages.encode()
    layout = check_batch(
        frames,
        lengths,
        topic=messages.topic,
        queue_id=messages.queue_id,
        body_bytes_max=BODY_BYTES_MAX,
        record_bytes_max=RECORD_BYTES_MAX,
    )
    buffer = np.frombuffer(bytearray(frames), np.uint8)
    patch_batch(
        buffer,
        layout,
        first_queue_offset=queue_offset,
        first_physical_offset=physical_offset,
        store_timestamp_ms=store_ms,
        store_host=STORE_HOST,
    )
    stored = buffer.tobytes()
    entries = decode_entries(queue_entries(layout, physical_offset).tobytes())
    for index, record in enumerate(records_of(messages)):
        start, size = int(layout.starts[index]), int(layout.lengths[index])
        found = decode_record(stored, start)
        assert found.queue_offset == queue_offset + index
        assert found.physical_offset == physical_offset + start
        assert found.store_timestamp_ms == store_ms
        assert found.store_host == STORE_HOST
        assert (found.body, found.properties, found.flag, found.born_timestamp_ms) == (
            record.body,
            record.properties,
            record.flag,
            record.born_timestamp_ms,
        )
        tags = decode(record.properties).get("TAGS", "")
        assert entries[index].item() == (physical_offset + start, size, tags_code(tags))


def test_a_buffer_or_host_of_the_wrong_size_is_not_patched() -> None:
    frames, lengths = encode_batch(b"T", 0, [b"a"], [b""], 0, STORE_HOST)
    layout = check_batch(
        frames, lengths, topic=b"T", queue_id=0, body_bytes_max=9, record_bytes_max=999
    )
    for buffer, host in ((bytearray(len(frames) + 1), STORE_HOST), (bytearray(frames), bytes(20))):
        with pytest.raises(ValueError, match="bytes"):
            patch_batch(
                np.frombuffer(buffer, np.uint8),
                layout,
                first_queue_offset=0,
                first_physical_offset=0,
                store_timestamp_ms=0,
                store_host=host,
            )


def test_delayed_messages_have_their_deliver_time_in_the_queue() -> None:
    sections = [
        b"TAGS\x01TagA\x02DELAY\x013\x02",
        b"TAGS\x01TagA\x02",
        b"DELAY\x0199\x02",
        b"TAGS\x01TagA\x02DELAY\x010\x02",
    ]
    frames, lengths = encode_batch(b"SCHEDULE_TOPIC_XXXX", 2, [b"x"] * 4, sections, 0, STORE_HOST)
    layout = check_batch(
        frames,
        lengths,
        topic=b"SCHEDULE_TOPIC_XXXX",
        queue_id=2,
        body_bytes_max=BODY_BYTES_MAX,
        record_bytes_max=RECORD_BYTES_MAX,
    )
    entries = queue_entries(layout, 0, 1_700_000_004_500)
    assert entries["tags_code"].tolist() == [
        1_700_000_014_500,
        2598919,
        1_700_000_004_500 + DELAY_LEVELS_MS[-1],
        2598919,
    ]
    with pytest.raises(ValueError, match="store timestamp"):
        queue_entries(layout, 0)


@given(messages=batches())
@many_examples
def test_columns_say_what_each_record_says(messages: Messages) -> None:
    frames, lengths = messages.encode()
    columns = decode_columns(frames, lengths)
    records = [decode_record(frames, start) for start in (np.cumsum(lengths) - lengths).tolist()]
    parsed = [decode(record.properties) for record in records]
    assert len(columns) == len(records)
    assert columns.queue_ids.tolist() == [r.queue_id for r in records]
    assert columns.flags.tolist() == [r.flag for r in records]
    assert columns.sys_flags.tolist() == [r.sys_flag for r in records]
    assert columns.born_timestamps_ms.tolist() == [r.born_timestamp_ms for r in records]
    assert columns.born_hosts == [r.born_host for r in records]
    assert columns.bodies == [r.body for r in records]
    assert columns.topics == [r.topic for r in records]
    assert columns.properties_bytes == [r.properties for r in records]
    assert columns.tags == [p.get("TAGS") for p in parsed]
    assert columns.keys == [p.get("KEYS") for p in parsed]
    assert columns.tag_codes.tolist() == [tags_code(p.get("TAGS", "")) for p in parsed]
    assert columns.properties == parsed
    assert columns.unique_keys == [p.get("UNIQ_KEY") for p in parsed]
    assert [columns.record(index) for index in range(len(records))] == records


def test_columns_over_records_of_many_kinds_say_what_each_record_says() -> None:
    records = [record for record, _ in golden_store.RECORDS.values()]
    frames = b"".join(encode_record(record) for record in records)
    columns = decode_columns(frames)
    assert columns.lengths.tolist() == record_sizes(frames).tolist()
    assert columns.queue_offsets.tolist() == [r.queue_offset for r in records]
    assert columns.physical_offsets.tolist() == [r.physical_offset for r in records]
    assert columns.store_timestamps_ms.tolist() == [r.store_timestamp_ms for r in records]
    assert columns.store_hosts == [r.store_host for r in records]
    assert columns.reconsume_times.tolist() == [r.reconsume_times for r in records]
    assert columns.prepared_transaction_offsets.tolist() == [0, 0, 0, 777, 0]
    assert [columns.record(index) for index in range(len(records))] == records


def test_columns_of_nothing_are_empty() -> None:
    columns = decode_columns(b"")
    assert columns.bodies == []
    assert columns.tags == []
    assert columns.queue_offsets.tolist() == []


def test_columns_are_not_made_of_bytes_that_are_no_records() -> None:
    frame = bytes.fromhex(golden_store.FULL_HEX)
    for frames, lengths, reason in (
        (frame, [177], RecordFault.TRUNCATED),
        (frame, [88, 90], RecordFault.TRUNCATED),
        (frame + frame, [356], RecordFault.SIZE),
        (frame, [], RecordFault.SIZE),
        (bytes(178), [178], RecordFault.MAGIC),
        (frame[:-1], None, RecordFault.TRUNCATED),
        (bytes(200), None, RecordFault.SIZE),
    ):
        with pytest.raises(RecordError) as caught:
            decode_columns(frames, lengths)
        assert caught.value.reason is reason
