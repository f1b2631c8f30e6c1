"""Sections of a log: each is read by one task of an export.

A run stores up to which offset it read each log, and the next run begins there. A run also stores
the last record that it read, so that the next run can check that it reads the same log.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rockoon_spark.export.target import Gap, Section
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection
from rockoon_spark.source.log_source import ContiguousLog, DamagedRange, DataLost, LastRecord
from rockoon_spark.source.rows import without_damaged


class ExportError(Exception):
    """The export failed: a log cannot be exported, or not to this target."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics to export: listed names, names that match a pattern, or all.

    Args:
        includes_internal: True to include internal topics of the brokers.
    """

    names: frozenset[str] | None = None
    pattern: str | None = None
    includes_internal: bool = False

    @property
    def selection(self) -> Selection:
        chosen = Selection(
            topic_pattern=self.pattern or "*", includes_internal=self.includes_internal
        )
        return chosen if self.names is None else chosen.among("topic", self.names)

    def is_same(self, other: "TopicChoice") -> bool:
        """True if both choices select the same topics in every cluster."""
        if (self.names, self.pattern) != (other.names, other.pattern):
            return False
        return (
            self.includes_internal == other.includes_internal
            or not self.selection.may_have_internal
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "names": sorted(self.names) if self.names else None,
            "pattern": self.pattern,
            "internal": self.includes_internal,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TopicChoice":
        names, pattern = content["names"], content["pattern"]
        # Manifests of earlier versions have no "internal": these versions excluded internal topics
        # only from an export of all topics.
        internal = content.get("internal", bool(names) or pattern is not None)
        return cls(frozenset(names) if names else None, pattern, bool(internal))


@dataclass(frozen=True, slots=True)
class SectionReading:
    """Options for reading sections."""

    topics: TopicChoice
    fails_on_data_loss: bool
    skips_damage: bool
    is_final: bool = False
    """True if the section was exported before; damage after its end is then ignored."""


@dataclass(slots=True)
class SectionResult:
    """End of a section, and damaged ranges in it; updated while the section is read."""

    end_offset: int
    """Physical offset after the last record of the section."""
    last: LastRecord | None = None
    gaps: list[Gap] = field(default_factory=list)


def gap_text(gap: Gap) -> str:
    return f"broker {gap.broker!r}: physical offsets {gap.start} to {gap.end} {gap.reason}"


def read_section(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    result: SectionResult,
    *,
    at_record: bool,
) -> Iterator[LogRecords]:
    """Yield the records of the selected topics in a section.

    Args:
        at_record: True if a record is known to start at the section's start.

    Raises:
        ExportError: records are damaged or deleted, and the options do not allow that.
    """
    selection = reading.topics.selection

    def report(damage: DamagedRange) -> None:
        gap = Gap(section.broker, damage.start, damage.end, damage.fault)
        if not reading.skips_damage:
            raise ExportError(f"{gap_text(gap)}; --skip-damage exports the rest")
        result.gaps.append(gap)

    for found in _batches(log, section, reading, result, at_record=at_record):
        if isinstance(found, DamagedRange):
            # In a first export, damage after the section's last record is reported too.
            if found.start < section.stop or not reading.is_final:
                report(found)
        elif len(found):
            result.end_offset, result.last = _last_record(found)
            yield without_damaged(found.chosen(selection.mask(found)), report)


def _batches(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    result: SectionResult,
    *,
    at_record: bool,
) -> Iterator[LogRecords | DamagedRange]:
    start, broker = section.start, section.broker
    while start < section.stop:
        try:
            for partition in log.partitions(start, section.stop, at_record=at_record):
                yield from partition.read()
        except (DataLost, FileNotFoundError) as error:
            if reading.fails_on_data_loss:
                raise ExportError(
                    f"messages of broker {broker!r} were deleted during the read: {error}"
                ) from error
            # Continue where the log begins now, not at the failed offset: retention deletes whole
            # files, and may delete more during this read.
            oldest = log.oldest()
            end = result.end_offset
            start, at_record = (oldest, True) if oldest > end else (section.stop, False)
            lost = Gap(broker, end, min(start, section.stop), "were deleted while they were read")
            result.gaps.append(lost)
            result.end_offset = lost.end
        else:
            return


def _last_record(records: LogRecords) -> tuple[int, LastRecord]:
    position, size = int(records.parts.starts[-1]), int(records.sizes[-1])
    content = np.ascontiguousarray(records.buffer[position : position + size])
    # Not computed from the position in the buffer: a broker omits records of deleted topics.
    offset = int(records.prefix("physical_offset")[-1])
    return offset + size, LastRecord(offset, size, zlib.crc32(content.data))
