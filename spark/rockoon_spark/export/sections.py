"""Sections of a log: what one task of an export reads, and what it comes by.

A run notes how far it came in each log, and the next one begins there. That holds only if it is the
same log, so a run notes the last record that it read as well.
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
    """A log cannot be exported, or not into this target."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics are exported: those named, those that match a pattern, or all.

    Args:
        includes_internal: whether internal topics of the brokers are among them.
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
        """Whether two choices export the same topics, whatever topics there are."""
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
        # Manifests of earlier versions do not have it: they excluded internal topics only from an
        # export of all topics.
        internal = content.get("internal", bool(names) or pattern is not None)
        return cls(frozenset(names) if names else None, pattern, bool(internal))


@dataclass(frozen=True, slots=True)
class SectionReading:
    """How sections are read."""

    topics: TopicChoice
    fails_on_data_loss: bool
    skips_damage: bool
    is_final: bool = False
    """Whether it was read before: what is behind a section is none of its business."""


@dataclass(slots=True)
class SectionSeen:
    """What the reading of a section came by."""

    behind: int
    """Physical offset behind the last record."""
    last: LastRecord | None = None
    gaps: list[Gap] = field(default_factory=list)


def told_gap(gap: Gap) -> str:
    """A gap in words."""
    return f"broker {gap.broker!r}: physical offsets {gap.start} to {gap.end} {gap.reason}"


def read_section(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    seen: SectionSeen,
    *,
    at_record: bool,
) -> Iterator[LogRecords]:
    """The wanted records of a section.

    Raises:
        ExportError: some are damaged or gone, and that is not allowed.
    """
    selection = reading.topics.selection

    def report(damage: DamagedRange) -> None:
        gap = Gap(section.broker, damage.start, damage.end, damage.fault)
        if not reading.skips_damage:
            raise ExportError(f"{told_gap(gap)}; skipping damage, the rest is exported")
        seen.gaps.append(gap)

    for found in _found(log, section, reading, seen, at_record=at_record):
        if isinstance(found, DamagedRange):
            # What follows the last record is told too: it may have been damaged since.
            if found.start < section.stop or not reading.is_final:
                report(found)
        elif len(found):
            seen.behind, seen.last = _last_record(found)
            yield without_damaged(found.chosen(selection.mask(found)), report)


def _found(
    log: ContiguousLog,
    section: Section,
    reading: SectionReading,
    seen: SectionSeen,
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
                    f"messages of broker {broker!r} went while they were read: {error}"
                ) from error
            # From where the log begins now, not from the place that failed: retention takes whole
            # files, and goes on while this is read.
            oldest = log.oldest()
            start, at_record = (oldest, True) if oldest > seen.behind else (section.stop, False)
            lost = Gap(
                broker, seen.behind, min(start, section.stop), "were deleted while they were read"
            )
            seen.gaps.append(lost)
            seen.behind = lost.end
        else:
            return


def _last_record(records: LogRecords) -> tuple[int, LastRecord]:
    position, size = int(records.parts.starts[-1]), int(records.sizes[-1])
    content = np.ascontiguousarray(records.buffer[position : position + size])
    # Not by its place in the buffer: a broker leaves out records that went with their topic.
    offset = int(records.prefix("physical_offset")[-1])
    return offset + size, LastRecord(offset, size, zlib.crc32(content.data))
