"""Rows of a read: the columns that it asked for, from partitions of a log.

Where bodies or properties are read, each record is compared with its checksum: a message that is
not what was stored is damage like bytes that are no record. Who asks for neither pays for none.
Whoever selects by tags reads properties, those of the messages that are left out as well.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rockoon_spark.records.columns import CHECKED, LogRecords, to_batch
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_source import DamagedRange

RECORD_FAULT = "are a record that does not have its checksum"


def rows(
    found: Iterable[LogRecords | DamagedRange],
    selection: Selection,
    columns: Sequence[str],
    report: Callable[[DamagedRange], None],
) -> Iterator[pa.RecordBatch]:
    """Records as rows.

    Args:
        found: what a partition holds (`LogPartition.read`).
        selection: which records are wanted.
        columns: names of COLUMNS.
        report: told of each damaged place, before what is behind it; may raise. If it does not,
            the place is left out.
    """
    for each in found:
        if isinstance(each, DamagedRange):
            report(each)
            continue
        records = each
        if "tags" in selection.one_of:
            # What the tag of a damaged one was nobody can say: to leave it out would be to lose it.
            records = records.chosen(selection.of_any_tags().mask(records))
            records = without_damaged(records, report)
        records = records.chosen(selection.mask(records))
        if "tags" not in selection.one_of and not CHECKED.isdisjoint(columns):
            records = without_damaged(records, report)
        if len(records):
            yield to_batch(records, columns)


def without_damaged(records: LogRecords, report: Callable[[DamagedRange], None]) -> LogRecords:
    """Those of the records that have their checksums; `report` is told of the others."""
    damaged = records.are_damaged()
    if not damaged.any():
        return records
    starts = records.prefix("physical_offset")[damaged]
    for start, size in zip(starts.tolist(), records.sizes[damaged].tolist(), strict=True):
        report(DamagedRange(f"broker {records.broker!r}", start, start + size, RECORD_FAULT))
    return records.chosen(np.logical_not(damaged))
