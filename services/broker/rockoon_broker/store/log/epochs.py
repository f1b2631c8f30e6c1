"""Epochs of a log, worked out of its own records: nothing beside it can contradict them.

The newest mark in the log names all earlier ones that are known (`rockoon_format.log_marks`), and
the last file always begins with one. A log without marks is of epoch 0: one that never had another
copy has none, and is byte for byte what it was.
"""

from collections.abc import Iterator

import numpy as np

from rockoon_core.replication_rules import Boundary
from rockoon_format.log_marks import (
    BEGUN_MAX,
    EPOCH_TAG,
    LOG_TOPIC,
    EpochBegin,
    EpochMark,
    decode_epoch_mark,
)
from rockoon_format.properties import PROPERTY_TAGS, decode
from rockoon_format.record import decode_record
from rockoon_format.scan import Scan

_TOPIC = LOG_TOPIC.encode()


class Epochs:
    """What the marks of a log say that were noted so far, in the order of the log.

    Attributes:
        leader: of the newest epoch, empty in epoch 0.
    """

    def __init__(self) -> None:
        self._begun: tuple[EpochBegin, ...] = ()
        self.leader = ""

    @property
    def epoch(self) -> int:
        """The newest one."""
        return self._begun[-1].epoch if self._begun else 0

    def note(self, physical_offset: int, mark: EpochMark) -> None:
        """Take note of a mark behind all that were noted."""
        self._begun = mark.begun_with(physical_offset)[-BEGUN_MAX:]
        self.leader = mark.leader

    def mark(self) -> EpochMark:
        """What a file of the present epoch begins with."""
        return EpochMark(self.epoch, self.leader, self._begun)

    def next_mark(self, epoch: int, leader: str, log_end: int) -> EpochMark:
        """What an epoch begins with.

        Raises:
            ValueError: the log has records of this epoch or of a later one.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} cannot begin behind epoch {self.epoch}")
        begun = self._begun
        if not begun and log_end:
            begun = (EpochBegin(0, 0),)
        return EpochMark(epoch, leader, begun)

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


def marks_among(frames: bytes, records: Scan) -> Iterator[tuple[int, EpochMark]]:
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


def mark_of(frame: bytes) -> EpochMark | None:
    """What a record of LOG_TOPIC says of an epoch; None if it says something else.

    Args:
        frame: begins with the record.

    Raises:
        ValueError: it is tagged as a mark and is none, or is damaged.
    """
    record = decode_record(frame)
    if decode(record.properties).get(PROPERTY_TAGS) != EPOCH_TAG:
        return None
    return decode_epoch_mark(record.body)
