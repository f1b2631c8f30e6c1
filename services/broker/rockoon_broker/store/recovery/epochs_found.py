"""Reads the epochs and topics of a log that was just opened: from the newest epoch mark that the
queue of the log's own topic lists, and from all later marks."""

import struct
from collections.abc import Iterable

from rockoon_broker.store.errors import MarkDamaged
from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.epochs import Epochs, Mark, mark_of
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_format.log_marks import LOG_QUEUE, LOG_TOPIC, EpochMark

_SIZE = struct.Struct(">i")


def find_epochs(log: CommitLog, queues: ConsumeQueues, own_records: Iterable[int]) -> Epochs:
    """Return the epochs of a log.

    Args:
        log, queues: open.
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
            epochs.note(position, mark)
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
