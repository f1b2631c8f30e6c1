"""Rows of a read: the requested columns of the records of a partition.

If bodies or properties are read, the checksum of each record is verified: a record with a wrong
checksum is reported as damage. Other reads do not verify checksums. A selection by tags reads the
properties of all messages, and so verifies all of their checksums.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rockoon_spark.records.columns import CHECKED, LogRecords, to_batch
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_source import DamagedRange

RECORD_FAULT = "are a record with a wrong checksum"


def rows(
    found: Iterable[LogRecords | DamagedRange],
    selection: Selection,
    columns: Sequence[str],
    report: Callable[[DamagedRange], None],
) -> Iterator[pa.RecordBatch]:
    """Convert records to rows.

    Args:
        found: the content of a partition (`LogPartition.read`).
        selection: the records to return.
        columns: names of COLUMNS.
        report: called with each damaged range, before the rows after it; may raise. If it returns,
            the range is skipped.
    """
    for each in found:
        if isinstance(each, DamagedRange):
            report(each)
            continue
        records = each
        if "tags" in selection.one_of:
            # The tag of a damaged record is unknown, so the damage is reported before the selection
            # by tags.
            records = records.chosen(selection.of_any_tags().mask(records))
            records = without_damaged(records, report)
        records = records.chosen(selection.mask(records))
        if "tags" not in selection.one_of and not CHECKED.isdisjoint(columns):
            records = without_damaged(records, report)
        if len(records):
            yield to_batch(records, columns)


def without_damaged(records: LogRecords, report: Callable[[DamagedRange], None]) -> LogRecords:
    """Return the records with correct checksums; call `report` for each of the other records."""
    damaged = records.are_damaged()
    if not damaged.any():
        return records
    starts = records.prefix("physical_offset")[damaged]
    for start, size in zip(starts.tolist(), records.sizes[damaged].tolist(), strict=True):
        report(DamagedRange(f"broker {records.broker!r}", start, start + size, RECORD_FAULT))
    return records.chosen(np.logical_not(damaged))
