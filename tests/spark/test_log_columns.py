"""Arrow columns of records equal the values of records that are decoded one by one."""

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rockoon_format import kernel
from rockoon_format.batch import decode_columns
from rockoon_format.message_id import encode_offset_id
from rockoon_format.properties import decode, find_value
from rockoon_format.record import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    decode_host,
    encode_host,
    encode_record,
)
from rockoon_spark.files import LogFile
from rockoon_spark.records.columns import COLUMNS, LogRecords, arrow_schema, to_batch
from rockoon_spark.records.partition_scan import find_records
from rockoon_spark.records.properties import Properties
from rockoon_spark.records.selection import Selection
from rockoon_spark.records.window import RecordWindow
from rockoon_spark.source import file_partition
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import rows
from support import golden_store
from support.kernels import BOTH, each_kernel
from support.log_bytes import log_bytes
from support.seeds import seeds

each_kernel = pytest.fixture(scope="module", autouse=True, params=BOTH)(each_kernel)

TRANSACTION_TYPES = (0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
PIECES = [
    b"",
    b"\x01",
    b"\x02",
    b"KEYS",
    b"TAGS",
    b"KEYS\x01",
    b"v",
    b"\xff",
    b"\xed\xa0\x80",
    b"a",
]


def properties_of(raw: list[bytes]) -> Properties | RecordWindow:
    if not kernel.is_compiled():
        return Properties(pa.array(raw, pa.binary()))
    # Two topics in turns: the names of one are not expected in the other.
    frames = [
        encode_record(Record(topic=b"AB"[number % 2 :][:1], body=b"", properties=each))
        for number, each in enumerate(raw)
    ]
    sizes = np.array([len(each) for each in frames], np.int64)
    found = RecordWindow.at(b"".join(frames), np.cumsum(sizes) - sizes, sizes)
    assert found is not None
    return found


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), max_size=6))
@example([b"a\x01b", b"c\x01d\x02", b"\x02e\x01f", b""])
@example([b"KEYS\x01v\x02KEYS\x01\x02", b"KEYS\x01v\x02KEYS\x01a"])
@example([b"a\x01v\x02b\x01v\x02a\x01w\x02", b"a\x01x\x02"])
@example([b"".join(b"n%d\x01v\x02" % (number % 29) for number in range(30)), b"n0\x01w\x02"])
def test_properties_of_many_records_are_those_of_each(raw: list[bytes]) -> None:
    found = properties_of(raw)
    assert [dict(pairs) for pairs in found.maps().to_pylist()] == [decode(each) for each in raw]
    assert found.values("KEYS").to_pylist() == [find_value(each, "KEYS") for each in raw]


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(
    st.lists(LENGTHS, min_size=1, max_size=2),
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 60), st.sampled_from(b"v\x01\x02\xff")),
        max_size=9,
    ),
)
def test_properties_that_are_laid_out_alike_are_those_of_each(
    lengths: list[list[int]], changes: list[tuple[int, int, int]]
) -> None:
    # A decoder that reuses the positions of values must notice a changed byte.
    alike = [
        b"".join(b"%s\x01%s\x02" % (b"name" * (length % 6 + 1), b"v" * length) for length in each)
        for each in lengths
    ]
    raw = [each for each in alike for _ in range(4)]
    for which, place, byte in changes:
        changed = bytearray(alike[which % len(alike)])
        changed[place % len(changed)] = byte
        raw += [bytes(changed), alike[0]]
    # Both topics of `properties_of` get each of them.
    raw = [each for each in raw for _ in range(2)]
    found = properties_of(raw)
    assert [dict(pairs) for pairs in found.maps().to_pylist()] == [decode(each) for each in raw]
    name = "name" * (lengths[0][0] % 6 + 1)
    assert found.values(name).to_pylist() == [find_value(each, name) for each in raw]


def random_record(choose: random.Random, physical_offset: int) -> Record:
    """Return a record in which each field has another value."""
    hosts = [
        encode_host(host, choose.randrange(1, 1 << 16)) for host in ("10.1.2.3", "2001:db8::1")
    ]
    keyed = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02" % (physical_offset, physical_offset)
    return Record(
        topic=choose.choice([b"orders", b"bills", b"t" * 130]),
        body=choose.randbytes(choose.choice((0, 1, 30, 700, 5000))),
        properties=choose.choice([b"", keyed, keyed + b"TAGS\x01TagA\x02", b"a\x01b\x02"]),
        queue_id=choose.randrange(1 << 31),
        flag=choose.randrange(-(1 << 31), 1 << 31),
        queue_offset=choose.randrange(1 << 63),
        physical_offset=physical_offset,
        sys_flag=choose.choice(TRANSACTION_TYPES),
        born_timestamp_ms=choose.randrange(1 << 41),
        born_host=choose.choice(hosts),
        store_timestamp_ms=choose.randrange(1 << 41),
        store_host=choose.choice(hosts),
        reconsume_times=choose.randrange(1 << 31),
        prepared_transaction_offset=choose.randrange(1 << 63),
    )


def as_row(record: Record, size: int) -> dict[str, object]:
    """Return a record as a row, field by field."""

    def time(ms: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)

    def host(encoded: bytes) -> str:
        name, port = decode_host(encoded)
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    properties = decode(record.properties)
    return {
        "topic": record.topic.decode(),
        "broker": "broker-a",
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": record.body,
        "properties": list(properties.items()),
        "born_time": time(record.born_timestamp_ms),
        "store_time": time(record.store_timestamp_ms),
        "born_host": host(record.born_host),
        "store_host": host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "size": size,
        "message_id": encode_offset_id(record.store_host, record.physical_offset),
        "unique_key": properties.get("UNIQ_KEY"),
    }


@pytest.mark.parametrize("seed", seeds(1))
def test_every_column_of_random_records_is_right(seed: int) -> None:
    choose = random.Random(seed)
    base = at = 7 << 30
    records, frames = [], []
    for _ in range(300):
        records.append(random_record(choose, at))
        frames.append(encode_record(records[-1]))
        at += len(frames[-1])
    buffer = np.frombuffer(b"".join(frames), np.uint8)
    found = find_records(buffer, base, 0, len(buffer), proven=True)
    assert found.sizes.tolist() == [len(frame) for frame in frames]
    batch = to_batch(
        LogRecords.of(buffer, base, found.starts, found.sizes, "broker-a"), list(COLUMNS)
    )
    assert batch.schema == arrow_schema(list(COLUMNS))
    batch.validate(full=True)
    for record, frame, row in zip(records, frames, batch.to_pylist(), strict=True):
        assert row == as_row(record, len(frame))


@pytest.mark.parametrize("seed", seeds(2))
def test_every_column_of_random_records_is_right_in_a_file_s_windows(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(file_partition, "TABLE_BYTES", choose.choice([7000, 20_000, 1 << 20]))
    base = at = 7 << 30
    expected, frames = [], []
    for _ in range(200):
        record, ending = random_record(choose, at), choose.randrange(3)
        frames.append(encode_record(record, property_crc=ending == 1, room=ending == 2))
        expected.append(as_row(record, len(frames[-1])))
        at += len(frames[-1])
    path = tmp_path / "log"
    path.write_bytes(b"".join(frames))
    whole = FilePartition.of(LogFile(str(path), base, at - base))
    for partition in replace(whole, broker="broker-a", is_sealed=True).cut(100_000):
        told: list[object] = []
        for batch in rows(partition.read(), Selection(), list(COLUMNS), told.append):
            batch.validate(full=True)
            for row in batch.to_pylist():
                assert row == expected.pop(0)
        assert told == []
    assert expected == []


def zlib_packed(body: bytes) -> bytes:
    return zlib.compress(body)


def streamed(kind: str) -> Callable[[bytes], bytes]:
    def packed(body: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as stream:
            stream.write(body)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    return packed


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        (0, zlib_packed),
        (COMPRESSION_LZ4, streamed("lz4")),
        (COMPRESSION_ZSTD, streamed("zstd")),
        (COMPRESSION_ZLIB, zlib_packed),
    ],
)
def test_a_body_that_was_sent_packed_is_there_as_it_was_before(
    kind: int, packed: Callable[[bytes], bytes]
) -> None:
    body = b"the same again, " * 100
    stored = [body, packed(body), packed(b""), b"not packed, whatever its flag says"]
    flags = [0, *3 * [kind | SYS_FLAG_COMPRESSED]]
    frames = [
        encode_record(Record(topic=b"T", body=each, sys_flag=flag))
        for each, flag in zip(stored, flags, strict=True)
    ]
    sizes = np.array([len(frame) for frame in frames])
    buffer = np.frombuffer(b"".join(frames), np.uint8)
    records = LogRecords.of(buffer, 0, np.cumsum(sizes) - sizes, sizes, "b")
    batch = to_batch(records, ["body", "size"])
    assert batch["body"].to_pylist() == [body, body, b"", stored[3]]
    assert batch["size"].to_pylist() == sizes.tolist()


def test_the_golden_log_reads_as_java_wrote_it() -> None:
    content = golden_store.files()[f"commitlog/{0:020d}"]
    buffer = np.frombuffer(content, np.uint8)
    found = find_records(buffer, 0, 0, len(buffer), proven=True)
    batch = to_batch(LogRecords.of(buffer, 0, found.starts, found.sizes, "b"), list(COLUMNS))
    expected = decode_columns(content[: found.end])
    assert batch["body"].to_pylist() == expected.bodies
    assert [dict(pairs) for pairs in batch["properties"].to_pylist()] == expected.properties
    v6 = [host for host in batch["born_host"].to_pylist() if host.startswith("[")]
    assert len(v6) == 1
    ids = map(encode_offset_id, expected.store_hosts, expected.physical_offsets.tolist())
    assert batch["message_id"].to_pylist() == list(ids)


def test_a_choice_of_records_keeps_its_order_and_fields() -> None:
    buffer, _ = log_bytes(random.Random(5), 0, records=50)
    found = find_records(buffer, 0, 0, len(buffer), proven=True)
    records = LogRecords.of(buffer, 0, found.starts, found.sizes, "b")
    every = to_batch(records, ["queue_offset", "body"]).to_pylist()
    wanted = np.arange(50) % 3 == 1
    assert to_batch(records.chosen(wanted), ["queue_offset", "body"]).to_pylist() == every[1::3]
    assert len(to_batch(records.chosen(np.zeros(50, np.bool_)), list(COLUMNS))) == 0
