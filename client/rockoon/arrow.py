"""Converts batches to Arrow record batches; requires pyarrow."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from rockoon.message import Batch

_TIME = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("broker", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("queue_id", pa.int32(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("physical_offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("born_time", _TIME, nullable=False),
        pa.field("store_time", _TIME, nullable=False),
        pa.field("reconsume_times", pa.int32(), nullable=False),
    ]
)


def record_batch(batch: "Batch") -> pa.RecordBatch:
    """Return a batch with the columns of `SCHEMA`."""
    columns = batch.columns
    zeros = pa.array(np.zeros(len(batch), np.int32))
    arrays = [
        pa.DictionaryArray.from_arrays(zeros, pa.array([batch.queue.topic])),
        pa.DictionaryArray.from_arrays(zeros, pa.array([batch.queue.broker])),
        pa.array(columns.queue_ids.astype(np.int32)),
        pa.array(columns.queue_offsets),
        pa.array(columns.physical_offsets),
        pa.array(columns.unique_keys, pa.string()),
        pa.array(columns.tags, pa.string()),
        pa.array(columns.keys, pa.string()),
        pa.array(batch.bodies, pa.binary()),
        pa.array(columns.born_timestamps_ms).cast(_TIME),
        pa.array(columns.store_timestamps_ms).cast(_TIME),
        pa.array(columns.reconsume_times.astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
