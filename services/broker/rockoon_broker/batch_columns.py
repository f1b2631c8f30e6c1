"""Columns of a batch: record fields that are needed before the store sees the batch."""

from rockoon_broker.store.log.batch import AppendBatch
from rockoon_core.errors import MalformedBatch
from rockoon_format.columns import Columns, decode_columns
from rockoon_format.record import RecordError


def columns_of(batch: AppendBatch) -> Columns:
    """Decode the records' fields without checks of their values.

    Raises:
        MalformedBatch: the bytes are not records.
    """
    try:
        return decode_columns(batch.frames, batch.sizes)
    except (RecordError, ValueError) as failure:
        raise MalformedBatch(index=0, reason=str(failure)) from failure


def whole_columns_of(batch: AppendBatch) -> Columns:
    """Decode the records' fields; requires at least one record and matching CRCs.

    Raises:
        MalformedBatch: there is no record, or a CRC does not match.
    """
    columns = columns_of(batch)
    if len(columns) == 0:
        raise MalformedBatch(index=0, reason="the batch has no records")
    if len(columns.damaged):
        raise MalformedBatch(index=int(columns.damaged[0]), reason="its CRC does not match")
    return columns
