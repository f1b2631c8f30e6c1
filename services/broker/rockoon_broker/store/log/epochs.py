"""Epochs and topics of a log, worked out of its own records: nothing beside it can contradict them.

The newest mark in the log names all earlier epochs that are known, and the topics before it
(`rockoon_format.log_marks`), and the last file always begins with one. A log without marks is of
epoch 0: one that never had another copy has none, and is byte for byte what it was.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from rockoon_core.replication_rules import Boundary
from rockoon_format.log_marks import (
    BEGUN_MAX,
    EPOCH_TAG,
    LOG_TOPIC,
    NO_TOPICS,
    TOPIC_TAG,
    EpochBegin,
    EpochMark,
    LogTopics,
    TopicChange,
    decode_epoch_mark,
    decode_topic_change,
)
from rockoon_format.properties import PROPERTY_TAGS, decode
from rockoon_format.record import decode_record
from rockoon_format.scan import Scan

_TOPIC = LOG_TOPIC.encode()

Mark = EpochMark | TopicChange


class Renewal(NamedTuple):
    """A record behind which topics begin anew, in queues of their own from offset 0 on."""

    first: int
    end: int
    """Physical offsets of the record and behind it."""
    topics: tuple[str, ...]


class Epochs:
    """What the marks of a log say that were noted so far, in the order of the log.

    Attributes:
        leader: of the newest epoch, empty in epoch 0.
        topics: whose messages the log holds, committed or not.
    """

    def __init__(self) -> None:
        self._begun: tuple[EpochBegin, ...] = ()
        self.leader = ""
        self.topics = NO_TOPICS

    @property
    def epoch(self) -> int:
        """The newest one."""
        return self._begun[-1].epoch if self._begun else 0

    def note(self, physical_offset: int, mark: Mark) -> None:
        """Take note of a mark behind all that were noted."""
        if isinstance(mark, TopicChange):
            self.topics = self.topics.after(mark)
            return
        self._begun = mark.begun_with(physical_offset)[-BEGUN_MAX:]
        self.leader = mark.leader
        self.topics = mark.topics

    def mark(self) -> EpochMark:
        """What a file of the present epoch begins with."""
        return EpochMark(self.epoch, self.leader, self._begun, self.topics)

    def next_mark(self, epoch: int, leader: str, log_end: int, topics: LogTopics) -> EpochMark:
        """What an epoch begins with.

        Args:
            epoch, leader: to begin.
            log_end: where.
            topics: whose messages a log without marks holds.

        Raises:
            ValueError: the log has records of this epoch or of a later one.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} cannot begin behind epoch {self.epoch}")
        begun = self._begun
        if not begun and log_end:
            begun = (EpochBegin(0, 0),)
        return EpochMark(epoch, leader, begun, self.topics if self.epoch else topics)

    def boundaries(self, log_min: int, log_end: int) -> list[Boundary]:
        """Every epoch that is known, with where it ended; the last one ends where the log does.

        Args:
            log_min, log_end: between which the log lies; without records it has no epochs.
        """
        if log_min == log_end:
            return []
        begun = self._begun or (EpochBegin(0, 0),)
        ends = [*(each.first for each in begun[1:]), log_end]
        return [Boundary(*each, end) for each, end in zip(begun, ends, strict=True)]


def marks_among(frames: bytes, records: Scan) -> Iterator[tuple[int, Mark]]:
    """The marks among records, each with its position in `frames`.

    Args:
        frames: what was scanned, from its first byte on.

    Raises:
        ValueError: a record is tagged as one and is none.
    """
    if _TOPIC not in records.topics:
        return
    number = records.topics.index(_TOPIC)
    for position in records.offsets[np.flatnonzero(records.topic_numbers == number)].tolist():
        mark = mark_of(frames[position:])
        if mark is not None:
            yield position, mark


def renewals_among(marks: Iterable[tuple[int, Mark]], records: Scan, base: int) -> list[Renewal]:
    """Those behind which topics begin anew.

    Args:
        marks: `marks_among` the records.
        base: physical offset of what was scanned.
    """
    found = []
    for position, mark in marks:
        if isinstance(mark, TopicChange) and mark.anew:
            size = int(records.sizes[np.searchsorted(records.offsets, position)])
            found.append(Renewal(base + position, base + position + size, mark.anew))
    return found


def mark_of(frame: bytes) -> Mark | None:
    """What a record says of epochs or topics; None if it says something else.

    Args:
        frame: begins with a record, of whatever topic.

    Raises:
        ValueError: it is tagged as a mark and is none, or is damaged.
    """
    record = decode_record(frame)
    if record.topic != _TOPIC:
        return None
    tag = decode(record.properties).get(PROPERTY_TAGS)
    if tag == TOPIC_TAG:
        return decode_topic_change(record.body)
    return decode_epoch_mark(record.body) if tag == EPOCH_TAG else None
