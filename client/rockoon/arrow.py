"""Messages as Arrow record batches; requires pyarrow."""

import importlib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
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


def scan(
    source: str | Path,
    topics: str | Iterable[str] | None = None,
    *,
    columns: Iterable[str] | None = None,
    since: date | str | int | None = None,
    until: date | str | int | None = None,
    tags: str | Iterable[str] | None = None,
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return a reader of the messages of a cluster or of a store directory, without PySpark.

    The reader has the messages that were acknowledged before this call. It reads them while its
    batches are requested. `with scan(...) as reader:` ends a read before its end.

    Args:
        source: nameservers ("host:port", separated by commas), or a store directory: a path or URI.
        topics: names; all except internal topics by default.
        columns: names of `COLUMNS` in `rockoon_spark.records.columns`; all by default.
        since, until: store time of the first message, and the end, exclusive; epoch milliseconds,
            or ISO 8601, in UTC if it has no time zone.
        tags: messages with one of these tags.
        limit: maximum number of messages.
        options: further options of `spark.read.format("rockoon")`, for example for S3 or TLS.

    Raises:
        ImportError: the package rockoon-spark is not installed.
        ValueError: an argument is invalid; the sentence names the option.
        Exception: the cluster or the directory cannot be read.
    """
    try:
        implementation = importlib.import_module("rockoon_spark.scan")
    except ModuleNotFoundError as error:
        raise ImportError("rockoon.arrow.scan needs the package rockoon-spark") from error
    reader: pa.RecordBatchReader = implementation.scan(
        source,
        topics,
        columns=columns,
        since=since,
        until=until,
        tags=tags,
        limit=limit,
        options=options,
    )
    return reader
