"""Arrow columns of records are what decoding them one by one gives."""

import random

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rockoon_format.batch import decode_columns
from rockoon_format.message_id import encode_offset_id
from rockoon_format.properties import decode, find_value
from rockoon_spark.log_columns import COLUMNS, LogRecords, arrow_schema, to_batch
from rockoon_spark.log_ranges import find_records
from rockoon_spark.properties import Properties
from support import golden_store
from support.log_bytes import log_bytes

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


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), max_size=6))
@example([b"a\x01b", b"c\x01d\x02", b"\x02e\x01f", b""])
@example([b"KEYS\x01v\x02KEYS\x01\x02", b"KEYS\x01v\x02KEYS\x01a"])
def test_properties_of_many_records_are_those_of_each(raw: list[bytes]) -> None:
    found = Properties(pa.array(raw, pa.binary()))
    assert [dict(pairs) for pairs in found.maps().to_pylist()] == [decode(each) for each in raw]
    assert found.values("KEYS").to_pylist() == [find_value(each, "KEYS") for each in raw]


def test_every_column_of_random_records_is_right() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    buffer, _ = log_bytes(random.Random(seed), 7 << 30, records=300)
    found = find_records(buffer, 7 << 30, 0, len(buffer), proven=True)
    records = LogRecords.of(buffer, 7 << 30, found.starts, found.sizes, "broker-a")
    batch = to_batch(records, list(COLUMNS))
    assert batch.schema == arrow_schema(list(COLUMNS))
    batch.validate(full=True)
    expected = decode_columns(buffer.tobytes())
    assert batch["topic"].to_pylist() == [topic.decode() for topic in expected.topics]
    assert batch["queue"].to_pylist() == expected.queue_ids.tolist()
    assert batch["queue_offset"].to_pylist() == expected.queue_offsets.tolist()
    assert batch["physical_offset"].to_pylist() == (found.starts + (7 << 30)).tolist()
    assert batch["body"].to_pylist() == expected.bodies
    assert batch["keys"].to_pylist() == expected.keys
    assert batch["tags"].to_pylist() == expected.tags
    assert [dict(pairs) for pairs in batch["properties"].to_pylist()] == expected.properties
    stored_ms = np.array(batch["store_time"].cast(pa.int64())) // 1000
    assert stored_ms.tolist() == expected.store_timestamps_ms.tolist()
    assert set(batch["store_host"].to_pylist()) == {"127.0.0.1:10911"}
    ids = map(encode_offset_id, expected.store_hosts, expected.physical_offsets.tolist())
    assert batch["message_id"].to_pylist() == list(ids)
    assert batch["size"].to_pylist() == found.sizes.tolist()


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
