"""Half messages in the form in which clients send them, and the transactions in a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.settings import StoreSettings
from rockoon_broker.store.store import Store
from rockoon_format.batch import decode_columns, encode_batch
from rockoon_format.properties import encode
from rockoon_format.record import Record, encode_record
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, SMALL, RunningBroker

GROUP = "payers"


def half(
    *bodies: bytes,
    topic: str = "orders",
    queue_id: int = 0,
    group: str = GROUP,
    first_id: int = 0,
    **properties: str,
) -> pb.AppendRequest:
    """Return a batch of half messages; their ids are numbers from `first_id` on."""
    sections = [
        encode({"TAGS": "TagA", "UNIQ_KEY": f"ID{first_id + index}", "PGROUP": group, **properties})
        for index in range(len(bodies))
    ]
    frames, lengths = encode_batch(
        topic.encode(), queue_id, list(bodies), sections, NOW_MS, BORN_HOST
    )
    return pb.AppendRequest(
        topic=topic,
        queue_id=queue_id,
        frames=frames,
        record_lengths=lengths.astype("<u4").tobytes(),
        handling=pb.HALF,
    )


async def begin(broker: RunningBroker, *bodies: bytes, **more: Any) -> pb.Appended:
    """Send half messages; return their position."""
    reply = await broker.call("Append", half(*bodies, **more))
    return reply.appended


def ending(place: pb.Appended, resolution: "pb.Resolution", **more: Any) -> Any:
    """Return the request that ends the first half message of a batch."""
    values: dict[str, Any] = {
        "producer_group": GROUP,
        "queue_offset": place.first_queue_offset,
        "physical_offset": place.first_physical_offset,
        "resolution": resolution,
    }
    return pb.EndTransactionRequest(**(values | more))


async def end(
    broker: RunningBroker, place: pb.Appended, resolution: "pb.Resolution", **more: Any
) -> Any:
    return await broker.call("EndTransaction", ending(place, resolution, **more))


def append(store: Store, record: Record, now_ms: int = NOW_MS) -> int:
    """Store a record as RocketMQ does; return its offset."""
    frame = encode_record(record)
    batch = AppendBatch.of_records(record.topic.decode(), record.queue_id, [frame])
    placed = store.append(batch, now_ms)
    return placed.first_physical_offset


def small_store(root: Path) -> Store:
    """Open a store with the file sizes of test brokers."""
    return Store.open(
        StoreSettings(
            root=root,
            store_host=("127.0.0.1", 10911),
            commit_log_file_bytes=SMALL["commit_log_file_bytes"],
            consume_queue_file_entries=SMALL["consume_queue_file_entries"],
        )
    )


def stored(root: Path, topic: str, queue_id: int = 0) -> Sequence[Record]:
    """Return all records of a queue in a store that no process has open."""
    with small_store(root) as store:
        found = store.get(topic, queue_id, store.min_offset(topic, queue_id))
        if not found.frames:
            return []
        columns = decode_columns(found.frames, found.lengths)
        return [columns.record(index) for index in range(len(columns))]
