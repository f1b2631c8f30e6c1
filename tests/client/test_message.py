"""Consumed messages are views of the stored bytes, as columns and one by one."""

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard

from rockoon.compression import UNPACKED_BYTES_MAX
from rockoon.consumer.pull import FOUND, Pulled, interpret
from rockoon.errors import InvalidArgument, StoreCorrupt
from rockoon.message import Batch
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import encode
from rockoon_format.record import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    Record,
    RecordError,
    encode_host,
    encode_record,
)
from rockoon_proto.v1.broker_pb2 import PullReply
from support.kernels import BOTH, using

QUEUE = MessageQueue("orders", "broker-a", 3)


def batch_of(*records: dict[str, Any], queue: MessageQueue = QUEUE) -> Batch:
    frames = [
        encode_record(
            Record(
                **{
                    "topic": queue.topic.encode(),
                    "queue_id": queue.queue_id,
                    "queue_offset": 100 + number,
                    "physical_offset": 1000 * number,
                    "born_timestamp_ms": 10 + number,
                    "store_timestamp_ms": 20 + number,
                    "born_host": encode_host("10.0.0.1", 5),
                    "store_host": encode_host("10.0.0.2", 10911),
                    **record,
                    "properties": encode(record.get("properties", {})),
                }
            )
        )
        for number, record in enumerate(records)
    ]
    lengths = b"".join(len(frame).to_bytes(4, "little") for frame in frames)
    return Batch(queue, b"".join(frames), lengths)


def test_a_batch_reads_as_columns_and_as_messages() -> None:
    batch = batch_of(
        {"body": b"one", "properties": {"TAGS": "new", "KEYS": "a b", "UNIQ_KEY": "F0"}},
        {"body": b"two", "properties": {"colour": "blue"}, "reconsume_times": 2, "flag": 7},
    )
    assert len(batch) == 2
    assert batch.bodies == [b"one", b"two"]
    assert batch.tags == ["new", None]
    assert batch.keys == ["a b", None]
    assert batch.offsets.tolist() == [100, 101]
    assert batch.store_times.tolist() == [20, 21]

    first, second = batch
    assert (first.topic, first.queue, first.queue_offset, first.body) == (
        "orders",
        QUEUE,
        100,
        b"one",
    )
    assert first.keys == ["a", "b"]
    assert first.tags == "new"
    assert first.message_id == "F0"
    assert first.offset_message_id == "0A000002" + "00002A9F" + "0" * 16
    assert first.born_host == ("10.0.0.1", 5)
    assert (second.born_timestamp_ms, second.store_timestamp_ms) == (11, 21)
    assert second.message_id == second.offset_message_id, "its producer gave it no id"
    assert (second.reconsume_times, second.flag, second.physical_offset) == (2, 7, 1000)
    assert second.properties == {"colour": "blue"}
    assert batch[-1].body == b"two"
    assert [message.body for message in batch[:1]] == [b"one"]
    with pytest.raises(IndexError):
        batch[2]


@pytest.mark.parametrize("choice", BOTH)
@pytest.mark.parametrize("long", [False, True])
def test_a_message_alone_is_read_as_one_of_many(choice: str, long: bool) -> None:
    body = b"one" * (40_000 if long else 1)
    record = {"body": body, "queue_offset": 100, "properties": {"TAGS": "new", "KEYS": "a b"}}
    zipped = record | {"body": zlib.compress(body), "sys_flag": SYS_FLAG_COMPRESSED}
    for each in (record, zipped):
        with using(choice):
            alone, many = batch_of(each), batch_of(each, {})
            assert (len(alone), alone.queue_offset_of(0), alone.first_damaged) == (1, 100, None)
            assert alone.bodies == many.bodies[:1] == [body]
            for name in (
                "body",
                "queue_offset",
                "tags",
                "keys",
                "properties",
                "sys_flag",
                "record",
            ):
                assert getattr(alone[0], name) == getattr(many[0], name), name
            assert alone.columns.bodies == many.columns.bodies[:1]
            frame = alone.frames
            at = frame.index(alone.columns.bodies[0])
            damaged = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
            sizes = len(frame).to_bytes(4, "little")
            wrong = Batch(QUEUE, b"front" + damaged, sizes, bounds=(5, 5 + len(frame)))
            assert (wrong.first_damaged, wrong.plain_bodies, wrong.offsets.tolist()) == (
                0,
                None,
                [100],
            )
            with pytest.raises(StoreCorrupt, match="message 100 of orders@broker-a:3"):
                wrong.bodies  # noqa: B018 - reading is what raises
            with pytest.raises(StoreCorrupt):
                wrong[0].body  # noqa: B018
            unchecked = Batch(QUEUE, damaged, sizes, check_crcs=False)
            assert unchecked.first_damaged is None
            assert unchecked.columns.bodies[0] == damaged[at : at + len(alone.columns.bodies[0])]
            for lengths in (sizes + bytes(4), sizes * 2, (len(frame) - 1).to_bytes(4, "little")):
                with pytest.raises(RecordError):
                    Batch(QUEUE, frame, lengths)
            with pytest.raises(RecordError):
                Batch(QUEUE, frame[:4] + b"?" + frame[5:], sizes)


def test_no_messages_are_a_batch_too() -> None:
    batch = Batch(QUEUE, b"", b"")
    assert len(batch) == 0
    assert batch.bodies == []
    assert list(batch) == []


def test_a_compressed_body_comes_out_as_it_was_sent() -> None:
    raw = b"x" * 1000
    compressed = {"body": zlib.compress(raw), "sys_flag": SYS_FLAG_COMPRESSED}
    newer = compressed | {"sys_flag": SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB}
    of_gzip = newer | {"body": gzip.compress(raw)}
    of_members = newer | {"body": gzip.compress(raw[:400]) + gzip.compress(raw[400:])}
    batch = batch_of(compressed, newer, {"body": b"plain"}, of_gzip, of_members)
    assert batch.bodies == [raw, raw, b"plain", raw, raw]
    assert [message.body for message in batch] == [raw, raw, b"plain", raw, raw]


PACKED = [
    (0, zlib.compress),
    (COMPRESSION_ZLIB, zlib.compress),
    (COMPRESSION_LZ4, lz4.frame.compress),
    (COMPRESSION_ZSTD, zstandard.compress),
]


@pytest.mark.parametrize(("kind", "packed"), PACKED)
def test_a_body_of_each_compression_is_read_and_one_that_is_not_is_told(
    kind: int, packed: Callable[[bytes], bytes]
) -> None:
    raw = b"the same again, " * 10_000
    flag = SYS_FLAG_COMPRESSED | kind
    batch = batch_of(*({"body": packed(each), "sys_flag": flag} for each in (raw, b"")))
    assert batch.bodies == [raw, b""]
    assert [message.body for message in batch] == [raw, b""]
    for wrong in (b"?", packed(raw)[:-5], b""):
        with pytest.raises(InvalidArgument, match="the body is not valid"):
            _ = batch_of({"body": wrong, "sys_flag": flag})[0].body


@pytest.mark.parametrize(("kind", "packed"), PACKED)
def test_a_small_body_that_would_fill_the_memory_is_refused(
    kind: int, packed: Callable[[bytes], bytes]
) -> None:
    bomb = packed(bytes(UNPACKED_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match=f"decompresses to more than {UNPACKED_BYTES_MAX}"):
        _ = batch_of({"body": bomb, "sys_flag": SYS_FLAG_COMPRESSED | kind}).bodies


def test_a_compression_that_nobody_knows_is_told() -> None:
    with pytest.raises(InvalidArgument, match="type 7"):
        _ = batch_of({"body": b"?", "sys_flag": SYS_FLAG_COMPRESSED | 0x700}).bodies


def test_a_redelivered_message_has_the_topic_it_was_sent_to() -> None:
    queue = MessageQueue("%RETRY%billing", "broker-a", 0)
    properties = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "AB"}
    (message,) = batch_of({"properties": properties}, queue=queue)
    assert message.topic == "orders"
    assert message.queue == queue
    assert message.origin_message_id == "AB"


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RecordError):
        Batch(QUEUE, b"x" * 100, np.array([100], np.uint32))
    with pytest.raises(RecordError):
        Batch(QUEUE, b"", np.array([91]))


def test_a_batch_becomes_arrow_columns() -> None:
    pa = pytest.importorskip("pyarrow")
    batch = batch_of({"body": b"one", "properties": {"TAGS": "t"}}, {"body": b"two"})
    table = pa.Table.from_batches([batch.to_arrow(), batch.to_arrow()])
    assert table.column("body").to_pylist() == [b"one", b"two"] * 2
    assert table.column("topic").to_pylist() == ["orders"] * 4
    assert table.column("tags").to_pylist() == ["t", None] * 2
    assert table.column("queue_offset").to_pylist() == [100, 101] * 2
    assert table.column("store_time").cast(pa.int64()).to_pylist() == [20, 21] * 2


def damaged_batch(*, check_crcs: bool = True) -> Batch:
    records = [
        Record(
            topic=b"orders",
            queue_id=3,
            queue_offset=100 + number,
            body=b"body %d" % number,
            born_host=encode_host("10.0.0.1", 5),
            store_host=encode_host("10.0.0.2", 10911),
        )
        for number in range(4)
    ]
    frames = [encode_record(record) for record in records]
    frames[2] = frames[2].replace(b"body 2", b"bOdy 2")
    return Batch(QUEUE, b"".join(frames), list(map(len, frames)), check_crcs=check_crcs)


def test_a_damaged_body_is_refused_with_its_place_and_the_others_are_not() -> None:
    batch = damaged_batch()
    with pytest.raises(StoreCorrupt, match="message 102 of orders@broker-a:3") as refused:
        batch.bodies  # noqa: B018 - reading is what raises
    assert refused.value.details["offset"] == "102"
    assert [batch[index].body for index in (0, 1, 3)] == [b"body 0", b"body 1", b"body 3"]
    with pytest.raises(StoreCorrupt, match="its checksum differs"):
        batch[2].body  # noqa: B018
    fresh = damaged_batch()
    assert fresh[1].body == b"body 1"
    with pytest.raises(StoreCorrupt):
        fresh[2].body  # noqa: B018


def test_damaged_properties_are_refused_and_no_filter_leaves_them_out() -> None:
    frames = [
        encode_record(
            Record(
                topic=b"orders",
                queue_id=3,
                queue_offset=100 + number,
                properties=b"TAGS\x01new\x02KEYS\x01k%d\x02" % number,
                born_host=encode_host("10.0.0.1", 5),
            ),
            property_crc=True,
        )
        for number in range(3)
    ]
    frames[1] = frames[1].replace(b"\x01new\x02", b"\x01now\x02")
    batch = Batch(QUEUE, b"".join(frames), list(map(len, frames)))
    for name in ("keys", "tags", "bodies"):
        with pytest.raises(StoreCorrupt, match="message 101 of orders@broker-a:3"):
            getattr(batch, name)
    for name in ("keys", "tags", "body", "properties"):
        getattr(batch[0], name)
        with pytest.raises(StoreCorrupt):
            getattr(batch[1], name)
    assert batch[0].properties == {"TAGS": "new", "KEYS": "k0"}
    reply = PullReply(
        status=FOUND,
        frames=b"".join(frames),
        record_lengths=b"".join(len(frame).to_bytes(4, "little") for frame in frames),
        next_offset=103,
        max_offset=103,
    )
    pulled = interpret(QUEUE, 100, reply, Subscription.parse("orders", "new"))
    assert isinstance(pulled, Pulled)
    assert list(pulled.offsets) == [100, 101, 102]
    assert list(pulled.intact().offsets) == [100]


def test_bodies_come_as_they_are_where_nobody_wants_them_checked() -> None:
    assert damaged_batch(check_crcs=False).bodies[2] == b"bOdy 2"
