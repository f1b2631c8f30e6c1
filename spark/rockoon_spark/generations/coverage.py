"""Coverage: which records come from the generation in force, and which from the log.

Records of the topics that a generation covers come from its parts; in the log those that start
below its `log_end` are passed over, of which many may have been superseded. A topic that was
deleted after the generation was made is not read from it: only the log has what came since.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rockoon_format.generation import Manifest
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.selection import Selection


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which records of a log a generation answers for.

    Args:
        log_end: physical offset; those that start below it.
        topics: of these topics.
    """

    log_end: int
    topics: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest, marks: Mapping[str, int]) -> "Coverage":
        """What a generation covers.

        Args:
            manifest: the generation's.
            marks: topic to the physical offset below which nothing that was compacted is shown.
        """
        served = (
            topic.topic
            for topic in manifest.topics
            if marks.get(topic.topic, 0) <= topic.dropped_below
        )
        return cls(manifest.log_end, frozenset(served))

    def holds_all(self, selection: Selection) -> bool:
        """Whether only topics of the generation are selected."""
        return selection.one_of.get("topic", {""}) <= self.topics

    def left(self, records: LogRecords) -> LogRecords:
        """Those of a log's records that the generation does not answer for."""
        if records.base >= self.log_end or not len(records):
            return records
        covered = Selection().among("topic", self.topics).mask(records)
        covered &= records.prefix("physical_offset") < self.log_end
        return records.chosen(np.logical_not(covered)) if covered.any() else records
