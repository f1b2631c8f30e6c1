"""Topics that were deleted while the CommitLog still holds their messages.

A mark states that records of a topic below a physical offset are deleted. Without it, a crash or a
rebuild would bring a deleted topic's messages back, and a topic recreated under the name would not
begin at offset 0.

Recovery points written before a deletion counted the deleted queues. The file records these counts
per point, so that after a crash before the next point no queue seems to be lost.

For a topic that is no longer compacted, a generation holds messages that are older than those after
it in the log. When retention deletes the first later message, the generation's messages must go
too: the topic is *overtaken* below the new beginning of the log. Otherwise they would reappear if
the topic were compacted again, as if they were newer than the deleted ones.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rockoon_broker.store.errors import StoreLayoutError
from rockoon_core.disk import Disk

FILE = "config/droppedTopics.json"


class QueueCounts(NamedTuple):
    """Number of queues with entries, and number of entries."""

    queues: int
    entries: int


class PointState(NamedTuple):
    """Identifies a recovery point by its position and counts."""

    log_end: int
    queue_count: int
    entry_count: int


@dataclass(frozen=True)
class _Content:
    marks: Mapping[str, int] = field(default_factory=dict)
    """Topic to the physical offset below which its records are ignored."""
    dropped: Mapping[tuple[str, PointState], QueueCounts] = field(default_factory=dict)
    """Counts of a topic in a recovery point that is older than its deletion."""
    overtaken: Mapping[str, int] = field(default_factory=dict)
    """Topic to the physical offset below which its generations' messages are dropped."""


class DroppedTopics:
    """The marks, in memory and in `config/droppedTopics.json`; each change is durable on return.

    Raises:
        StoreLayoutError: the file is damaged. A guess could bring deleted messages back.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk
        self._content = _read(root)
        self.needed: Mapping[str, int] = {}
        """Topics with messages in a generation, and the mark known to it: a higher mark is
        never discarded."""
        self.generation_queues: Collection[tuple[str, int]] = ()
        """Topic and queue id of queues whose next offset a generation provides."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which its records are ignored."""
        return self._content.marks

    @property
    def generation_marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which no compacted message is shown, because of a
        deletion or because retention has overtaken it."""
        marks = dict(self.marks)
        for topic, mark in self._content.overtaken.items():
            marks[topic] = max(mark, marks.get(topic, 0))
        return marks

    def dropped_since(self, point: PointState) -> QueueCounts:
        """Return the queues and entries of a recovery point whose topics were deleted after it."""
        found = [counts for (_, at), counts in self._content.dropped.items() if at == point]
        return QueueCounts(sum(each.queues for each in found), sum(each.entries for each in found))

    def add(self, log_end: int, counted: Mapping[str, Mapping[PointState, QueueCounts]]) -> None:
        """Mark topics as deleted: their records below `log_end` are ignored from now on.

        Args:
            counted: topic to its counts in each recovery point that a start may use.
        """
        points = {point for of_topic in counted.values() for point in of_topic}
        found = {
            (topic, point): counts
            for topic, of_topic in counted.items()
            for point, counts in of_topic.items()
        }
        # The first deletion after a point removed everything that the point counted; a second
        # one, or a retry, finds less.
        before = {key: counts for key, counts in self._content.dropped.items() if key[1] in points}
        marks = {**self.marks, **dict.fromkeys(counted, log_end)}
        self._replace(replace(self._content, marks=marks, dropped={**found, **before}))

    def overtake(self, topics: Collection[str], log_min: int) -> None:
        """Drop the generations' messages of some topics.

        Args:
            log_min: new beginning of the log.
        """
        overtaken = {**self._content.overtaken, **dict.fromkeys(topics, log_min)}
        self._replace(replace(self._content, overtaken=overtaken))

    def learn(self, marks: Mapping[str, int], log_min: int) -> None:
        """Drop generations' messages of topics below the marks of another copy.

        Args:
            marks: its `generation_marks`.
            log_min: beginning of this copy's log; later deletions are in the log itself.
        """
        known = self.generation_marks
        new = {
            topic: mark
            for topic, mark in marks.items()
            if known.get(topic, 0) < mark <= log_min and topic in self.needed
        }
        if new:
            overtaken = {**self._content.overtaken, **new}
            self._replace(replace(self._content, overtaken=overtaken))

    def fit_to_log(self, log_min: int, log_end: int) -> None:
        """Discard marks below the log's beginning and clamp marks above its end.

        A mark above the end (after a crash that lost the records) would hide future records. An
        overtaken mark above the beginning (after a crash before the file was deleted) would let a
        generation omit records that the log still has.
        """
        marks = {topic: min(mark, log_end) for topic, mark in self.marks.items()}
        marks = {
            topic: mark
            for topic, mark in marks.items()
            if mark > log_min or mark > self.needed.get(topic, mark)
        }
        overtaken = {topic: min(mark, log_min) for topic, mark in self._content.overtaken.items()}
        overtaken = {
            topic: mark for topic, mark in overtaken.items() if mark > self.needed.get(topic, mark)
        }
        if marks != self.marks or overtaken != self._content.overtaken:
            self._replace(replace(self._content, marks=marks, overtaken=overtaken))

    def _replace(self, content: _Content) -> None:
        text = {
            "marks": content.marks,
            "dropped": [
                [topic, *point, *counts] for (topic, point), counts in content.dropped.items()
            ],
            "overtaken": content.overtaken,
        }
        self._disk.make_directory(self._path.parent)
        self._disk.replace_file(self._path, json.dumps(text, indent=1, sort_keys=True).encode())
        self._content = content


def read_marks(root: Path) -> Mapping[str, int]:
    """Return the marks of a store directory; StoreLayoutError if the file cannot be read."""
    return _read(root).marks


def _read(root: Path) -> _Content:
    path = root / FILE
    if not path.exists():
        return _Content()
    try:
        content = json.loads(path.read_bytes())
        marks = {str(topic): int(mark) for topic, mark in content["marks"].items()}
        dropped = {
            (str(topic), PointState(int(end), int(queues), int(entries))): QueueCounts(
                int(queues_gone), int(entries_gone)
            )
            for topic, end, queues, entries, queues_gone, entries_gone in content["dropped"]
        }
        overtaken = content.get("overtaken", {})
        return _Content(
            marks, dropped, {str(topic): int(mark) for topic, mark in overtaken.items()}
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise StoreLayoutError(f"{path} is damaged: {error}") from error
