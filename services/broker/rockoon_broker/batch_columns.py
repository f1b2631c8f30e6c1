"""Columns of a batch: its records' fields, for those that look at them before the store does."""

from rockoon_broker.store.log.batch import Batch
from rockoon_core.errors import MalformedBatch
from rockoon_format.columns import Columns, decode_columns
from rockoon_format.record import RecordError


def columns_of(batch: Batch) -> Columns:
    """The records' fields, not checked.

    Raises:
        MalformedBatch: these are no records.
    """
    try:
        return decode_columns(batch.frames, batch.sizes)
    except (RecordError, ValueError) as failure:
        raise MalformedBatch(index=0, reason=str(failure)) from failure


def whole_columns_of(batch: Batch) -> Columns:
    """The records' fields, each record with its CRC and at least one.

    Raises:
        MalformedBatch: it is not so.
    """
    columns = columns_of(batch)
    if len(columns) == 0:
        raise MalformedBatch(index=0, reason="the batch has no records")
    if len(columns.damaged):
        raise MalformedBatch(index=int(columns.damaged[0]), reason="it does not have its CRC")
    return columns
