"""Coverage: which records are read from the current generation, and which from the log.

Records of the topics that a generation covers are read from its parts. In the log, records of these
topics below the generation's `log_end` are skipped, because many of them are superseded. A topic
that was deleted after the generation was made is read only from the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rockoon_format.generation import Manifest
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection


@dataclass(frozen=True, slots=True)
class Coverage:
    """Records of a log that readers get from a generation instead of the log.

    Args:
        log_end: physical offset; records that start below it are covered.
        topics: the covered topics.
    """

    log_end: int
    topics: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest, marks: Mapping[str, int]) -> "Coverage":
        """Return the coverage of a generation.

        Args:
            manifest: of the generation.
            marks: per topic, the physical offset below which compacted records are hidden.
        """
        served = (
            topic.topic
            for topic in manifest.topics
            if marks.get(topic.topic, 0) <= topic.dropped_below
        )
        return cls(manifest.log_end, frozenset(served))

    def holds_all(self, selection: Selection) -> bool:
        """True if all selected topics are covered by the generation."""
        return selection.one_of.get("topic", {""}) <= self.topics

    def left(self, records: LogRecords) -> LogRecords:
        """Return those of some records that the generation does not cover."""
        if records.base >= self.log_end or not len(records):
            return records
        covered = Selection().among("topic", self.topics).mask(records)
        covered &= records.prefix("physical_offset") < self.log_end
        return records.chosen(np.logical_not(covered)) if covered.any() else records
