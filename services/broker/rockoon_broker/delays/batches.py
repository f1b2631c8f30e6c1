"""Splits batches of delayed messages and regroups records by their destination. Pure."""

from collections.abc import Iterator, Sequence

from rockoon_broker.batch_columns import whole_columns_of
from rockoon_broker.delays.rewriting import AddressedRecord
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_core.errors import MalformedBatch
from rockoon_format.batch import SYS_FLAGS_ALLOWED
from rockoon_format.record import Record, encode_record

PART_BYTES = 1 << 20
"""Maximum size of records in one append; a single record may be longer."""


def records_of(batch: AppendBatch) -> list[Record]:
    """Decode the records of a batch, which must be whole and of its queue.

    Raises:
        MalformedBatch: a record is not.
    """
    columns = whole_columns_of(batch)
    name = batch.topic.encode()
    records = []
    for index in range(len(columns)):
        record = columns.record(index)
        if (record.topic, record.queue_id) != (name, batch.queue_id):
            raise MalformedBatch(index=index, reason="of another topic or queue")
        if record.sys_flag & ~SYS_FLAGS_ALLOWED:
            raise MalformedBatch(index=index, reason="a forbidden system flag")
        if record.prepared_transaction_offset:
            raise MalformedBatch(index=index, reason="the record refers to another record")
        records.append(record)
    return records


def parts_by_queue(records: Sequence[AddressedRecord]) -> Iterator[tuple[QueueKey, list[bytes]]]:
    """Yield runs of records of one queue, of a bounded size."""
    key: QueueKey | None = None
    part: list[bytes] = []
    size = 0
    for one in records:
        frame = encode_record(one.record, room=True)
        if part and (key != (one.topic, one.queue_id) or size + len(frame) > PART_BYTES):
            assert key is not None
            yield key, part
            part, size = [], 0
        key = one.topic, one.queue_id
        part.append(frame)
        size += len(frame)
    if part:
        assert key is not None
        yield key, part


def parts_bounded(group: Sequence[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Split records with their sources into parts of a bounded size, at least one record each."""
    part: list[tuple[int, bytes]] = []
    size = 0
    for one in group:
        if part and size + len(one[1]) > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[1])
    yield part
