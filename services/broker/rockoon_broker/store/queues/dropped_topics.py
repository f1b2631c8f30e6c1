"""Topics that were deleted while the CommitLog still holds their messages.

A mark says: records of this topic below this physical offset do not exist. Without it the start
after a crash, or a rebuild, would bring a deleted topic's messages back, and a topic created again
under the name would not begin at offset 0.

Recovery points written before a deletion counted the queues that went with it. The file says how
much of each point that was, so that a crash before the next point does not look like lost queues.

Of a topic that was compacted, and is not any more, a generation holds messages that are older than
those behind it in the log. When retention takes the first of these, what the generation holds
is over too: the topic is *overtaken*, below the physical offset from which the log stays. Were it
shown again once the topic is compacted again, it would stand for newer messages that went.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rockoon_broker.store.errors import StoreLayoutError
from rockoon_core.disk import Disk

FILE = "config/droppedTopics.json"


class Counts(NamedTuple):
    """How many queues have entries, and how many entries they have."""

    queues: int
    entries: int


class PointState(NamedTuple):
    """What tells one recovery point from every other with other queues."""

    log_end: int
    queue_count: int
    entry_count: int


@dataclass(frozen=True)
class _Content:
    marks: Mapping[str, int] = field(default_factory=dict)
    """Topic to the physical offset below which its records are ignored."""
    dropped: Mapping[tuple[str, PointState], Counts] = field(default_factory=dict)
    """What a recovery point counted of a topic that was deleted after it."""
    overtaken: Mapping[str, int] = field(default_factory=dict)
    """Topic to the physical offset below which no generation has anything of it."""


class DroppedTopics:
    """The marks, in memory and in `config/droppedTopics.json`; each change is durable on return.

    Raises:
        StoreLayoutError: the file is damaged. Guessing would resurrect deleted messages.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk
        self._content = _read(root)
        self.needed: Mapping[str, int] = {}
        """Topics of which something lies outside the log, with the mark that is known there: a
        higher one is never forgotten."""
        self.told_queues: Collection[tuple[str, int]] = ()
        """Topic and queue of those whose numbers so far are told there."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which its records are ignored."""
        return self._content.marks

    @property
    def generation_marks(self) -> Mapping[str, int]:
        """Topic to the physical offset below which nothing that was compacted is shown: the topic
        was deleted since, or retention has overtaken it."""
        marks = dict(self.marks)
        for topic, mark in self._content.overtaken.items():
            marks[topic] = max(mark, marks.get(topic, 0))
        return marks

    def dropped_since(self, point: PointState) -> Counts:
        """What a recovery point counted of topics that were deleted after it."""
        found = [counts for (_, at), counts in self._content.dropped.items() if at == point]
        return Counts(sum(each.queues for each in found), sum(each.entries for each in found))

    def add(self, log_end: int, counted: Mapping[str, Mapping[PointState, Counts]]) -> None:
        """Ignore some topics' records below `log_end` from now on.

        Args:
            log_end: the log's end.
            counted: topic to what each recovery point that a start may use counted of it.
        """
        points = {point for of_topic in counted.values() for point in of_topic}
        found = {
            (topic, point): counts
            for topic, of_topic in counted.items()
            for point, counts in of_topic.items()
        }
        # The first deletion after a point took all that the point counted; what a second one, or
        # another try, finds of it is less.
        before = {key: counts for key, counts in self._content.dropped.items() if key[1] in points}
        marks = {**self.marks, **dict.fromkeys(counted, log_end)}
        self._replace(replace(self._content, marks=marks, dropped={**found, **before}))

    def overtake(self, topics: Collection[str], log_min: int) -> None:
        """Show nothing any more of what generations hold of some topics.

        Args:
            topics: theirs.
            log_min: where the log is about to begin.
        """
        overtaken = {**self._content.overtaken, **dict.fromkeys(topics, log_min)}
        self._replace(replace(self._content, overtaken=overtaken))

    def learn(self, marks: Mapping[str, int], log_min: int) -> None:
        """Show nothing of what generations hold of topics below the marks of another copy.

        Args:
            marks: its `generation_marks`.
            log_min: where this copy's log begins: what is said behind that it says itself.
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
        """Fit the marks to the log: forget those that retention passed, clamp those above its end.

        A mark above the end (the crash took the records it was made for) would otherwise hide
        records yet to be written; and one above the beginning (the crash came before the file went)
        would have a generation leave out what the log has.
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
    """The marks of a store directory; StoreLayoutError if the file cannot be read."""
    return _read(root).marks


def _read(root: Path) -> _Content:
    path = root / FILE
    if not path.exists():
        return _Content()
    try:
        content = json.loads(path.read_bytes())
        marks = {str(topic): int(mark) for topic, mark in content["marks"].items()}
        dropped = {
            (str(topic), PointState(int(end), int(queues), int(entries))): Counts(
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
