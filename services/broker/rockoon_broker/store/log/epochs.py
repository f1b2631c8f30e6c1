"""Epochs and topics of a log, derived from its own records so that no other file can contradict
them.

The newest mark in the log names all known earlier epochs and the topics before it
(`rockoon_format.log_marks`); the last file always begins with a mark. A log without marks has
epoch 0: it never had another copy, and its bytes are those of the format without replication.

`find_epochs` reads them from a log that was just opened: from the newest epoch mark that the queue
of the log's own topic lists, and from all later marks.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from rockoon_broker.store.errors import MarkDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_core.replication_rules import Boundary
from rockoon_format.log_marks import (
    BEGUN_MAX,
    EPOCH_TAG,
    LOG_QUEUE,
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
    """A record after which topics restart in new queues from offset 0."""

    first: int
    end: int
    """Physical offset after the record."""
    topics: tuple[str, ...]


class Epochs:
    """State of the marks added so far, in log order.

    Attributes:
        leader: leader of the newest epoch, empty in epoch 0.
        topics: topics with messages in the log, committed or not.
    """

    def __init__(self) -> None:
        self._begun: tuple[EpochBegin, ...] = ()
        self.leader = ""
        self.topics = NO_TOPICS

    @property
    def epoch(self) -> int:
        return self._begun[-1].epoch if self._begun else 0

    def add(self, physical_offset: int, mark: Mark) -> None:
        """Add a mark; marks are added in log order."""
        if isinstance(mark, TopicChange):
            self.topics = self.topics.after(mark)
            return
        self._begun = mark.begun_with(physical_offset)[-BEGUN_MAX:]
        self.leader = mark.leader
        self.topics = mark.topics

    def mark(self) -> EpochMark:
        """Return the mark to write at the beginning of a new file in the current epoch."""
        return EpochMark(self.epoch, self.leader, self._begun, self.topics)

    def next_mark(self, epoch: int, leader: str, log_end: int, topics: LogTopics) -> EpochMark:
        """Return the mark to write at the beginning of a new epoch.

        Args:
            epoch, leader: the new epoch and its leader.
            log_end: physical offset at which the epoch begins.
            topics: topics with messages in the log, if it has no marks yet.

        Raises:
            ValueError: the log has records of this epoch or of a later one.
        """
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} cannot begin after epoch {self.epoch}")
        begun = self._begun
        if not begun and log_end:
            begun = (EpochBegin(0, 0),)
        return EpochMark(epoch, leader, begun, self.topics if self.epoch else topics)

    def boundaries(self, log_min: int, log_end: int) -> list[Boundary]:
        """Return each known epoch with its range; the last one ends at `log_end`.

        An empty log has no epochs.
        """
        if log_min == log_end:
            return []
        begun = self._begun or (EpochBegin(0, 0),)
        ends = [*(each.first for each in begun[1:]), log_end]
        return [Boundary(*each, end) for each, end in zip(begun, ends, strict=True)]


def marks_among(frames: bytes, records: Scan) -> Iterator[tuple[int, Mark]]:
    """Yield the marks among scanned records, each with its position in `frames`. Raises ValueError:
    a record is tagged as a mark but cannot be decoded."""
    if _TOPIC not in records.topics:
        return
    number = records.topics.index(_TOPIC)
    for position in records.offsets[np.flatnonzero(records.topic_numbers == number)].tolist():
        mark = mark_of(frames[position:])
        if mark is not None:
            yield position, mark


def renewals_among(marks: Iterable[tuple[int, Mark]], records: Scan, base: int) -> list[Renewal]:
    """Return the marks after which topics restart.

    Args:
        base: physical offset of the scanned bytes.
    """
    found = []
    for position, mark in marks:
        if isinstance(mark, TopicChange) and mark.restarted:
            size = int(records.sizes[np.searchsorted(records.offsets, position)])
            found.append(Renewal(base + position, base + position + size, mark.restarted))
    return found


def mark_of(frame: bytes) -> Mark | None:
    """Decode the epoch or topic mark of a record; None if the record is not a mark.

    Args:
        frame: begins with a record of any topic.

    Raises:
        ValueError: the record is tagged as a mark but is damaged or cannot be decoded.
    """
    record = decode_record(frame)
    if record.topic != _TOPIC:
        return None
    tag = decode(record.properties).get(PROPERTY_TAGS)
    if tag == TOPIC_TAG:
        return decode_topic_change(record.body)
    return decode_epoch_mark(record.body) if tag == EPOCH_TAG else None


_SIZE = struct.Struct(">i")


def find_epochs(log: CommitLog, queues: ConsumeQueues, own_records: Iterable[int]) -> Epochs:
    """Return the epochs of a log.

    Args:
        own_records: physical offsets of records of the log's own topic that recovery read.

    Raises:
        MarkDamaged: a mark is damaged. With a guess, another log could be accepted as this one.
        OSError: the disk.
    """
    listed: dict[int, Mark] = {}
    queue = queues.find(LOG_TOPIC, LOG_QUEUE)
    if queue is not None:
        lowest = queues.min_offset(queue, log.min_offset)
        for offset in range(queue.max_offset - 1, lowest - 1, -1):
            entries = queues.read(queue, offset, 1)
            position = int(entries["offset"][0])
            mark = _mark_at(log, position)
            if mark is not None:
                listed[position] = mark
            if isinstance(mark, EpochMark):
                # An epoch mark contains all earlier epochs.
                break
    newest = max(listed, default=-1)
    epochs = Epochs()
    for position in (*sorted(listed), *(each for each in own_records if each > newest)):
        mark = listed.get(position) or _mark_at(log, position)
        if mark is not None:
            epochs.add(position, mark)
    return epochs


def _mark_at(log: CommitLog, position: int) -> Mark | None:
    head = log.read(position, _SIZE.size)
    try:
        (size,) = _SIZE.unpack(head)
        return mark_of(log.read(position, max(size, 0)))
    except (ValueError, struct.error) as error:
        start = position - position % log.file_bytes
        raise MarkDamaged(
            log.path_of(start), position - start, f"a record of {LOG_TOPIC}: {error}", position
        ) from error
