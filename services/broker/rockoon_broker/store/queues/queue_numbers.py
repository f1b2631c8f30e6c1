"""Numbers that queues go on at where neither a message nor their own files tell.

A queue whose messages are all deleted has its number in its own files alone, and a copy that is
made anew has none of those. So each record of an epoch says where queues ended before it, and
retention never takes the one that the log begins with.
"""

import logging
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rockoon_broker.store.log.epochs import mark_of
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.layout import Misfit
from rockoon_core.disk import Disk
from rockoon_format.log_marks import LOG_TOPIC, EpochMark
from rockoon_format.names import topic_fault

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")


def numbers_of(queues: Iterable[ConsumeQueue]) -> dict[str, dict[int, int]]:
    """The next number of each queue that has had messages, by topic and queue id."""
    found: dict[str, dict[int, int]] = {}
    for queue in queues:
        # The log's own always has a record left: the one that says this.
        if queue.next_offset and queue.topic != LOG_TOPIC:
            found.setdefault(queue.topic, {})[queue.queue_id] = queue.next_offset
    return found


def read_first_mark(disk: Disk, path: Path, file_bytes: int) -> EpochMark | None:
    """The record of an epoch that a CommitLog file begins with; None if it begins with another one.

    Args:
        file_bytes: size of the file.

    Raises:
        OSError: the disk.
    """
    fd = disk.open_reading(path)
    try:
        (size,) = _SIZE.unpack(disk.pread(fd, _SIZE.size, 0))
        mark = mark_of(disk.pread(fd, size, 0)) if 0 < size <= file_bytes else None
    except ValueError:
        # No mark, or a damaged one: what reads the log's records says so.
        return None
    finally:
        disk.close(fd)
    return mark if isinstance(mark, EpochMark) else None


def go_on_as_told(
    mark: EpochMark, log_min: int, queues: ConsumeQueues, dropped: Mapping[str, int]
) -> set[QueueKey]:
    """Let queues go on at the numbers that the log's first record tells, if they are not beyond.

    It may tell of a hundred thousand, whose files are made later: until then it tells them again.

    Args:
        mark: the record.
        log_min: its physical offset.
        dropped: topics whose messages below a physical offset do not exist.

    Returns:
        The queues that it tells of.

    Raises:
        OSError: the disk.
    """
    told = set()
    for topic, numbers in mark.numbers.items():
        # A topic that began anew behind the record has other queues than the record speaks of.
        if topic_fault(topic) is not None or dropped.get(topic, 0) > log_min:
            continue
        for queue_id, number in numbers.items():
            queues.go_on_at(queues.find_or_create(topic, queue_id), number, max(log_min, 1))
            told.add((topic, queue_id))
    return told


def go_on_behind(
    misfits: Iterable[Misfit],
    told: Collection[QueueKey],
    queues: ConsumeQueues,
    log_min: int,
    log_end: int,
) -> None:
    """Let queues whose last file is lost go on behind the numbers that it can have held.

    Only where neither a record nor a generation is left to tell which these were. A number that
    was given twice would be skipped by whoever has committed the first.

    Args:
        misfits: files that were moved away.
        told: queues whose numbers something tells.
        log_min, log_end: between which physical offsets the log lies.
    """
    for misfit in misfits if log_min else ():
        if misfit.key is None or misfit.key in told or topic_fault(misfit.key[0]) is not None:
            continue
        queue = queues.find_or_create(*misfit.key)
        if queue.max_offset and not queues.is_all_below(queue, log_min):
            continue
        if queue.max_offset < misfit.end:
            queues.skip_to(queue, misfit.end, max(log_end, 1))
            log.warning(
                "queue %d of %s goes on at %d: what its lost file held is gone from the log",
                queue.queue_id,
                queue.topic,
                misfit.end,
            )
