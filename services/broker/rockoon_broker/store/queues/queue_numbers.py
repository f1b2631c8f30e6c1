"""Next offsets of queues that have neither messages nor files.

If all messages of a queue are deleted, only its own files hold its next offset, and a new replica
does not have these files. So each record of an epoch contains the queues' next offsets, and
retention never deletes the record with which the log begins.
"""

import logging
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rockoon_broker.store.log.epochs import mark_of
from rockoon_broker.store.queues.consume_queue import ConsumeQueue, QueueKey
from rockoon_broker.store.queues.consume_queues import ConsumeQueues
from rockoon_broker.store.queues.queue_files import Misfit
from rockoon_core.disk import Disk
from rockoon_format.log_marks import LOG_TOPIC, EpochMark
from rockoon_format.names import topic_fault

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")


def numbers_of(queues: Iterable[ConsumeQueue]) -> dict[str, dict[int, int]]:
    """Return the next offset of each queue that has had messages, by topic and queue id."""
    found: dict[str, dict[int, int]] = {}
    for queue in queues:
        # The log's own queue always has a record: the one that contains these offsets.
        if queue.next_offset and queue.topic != LOG_TOPIC:
            found.setdefault(queue.topic, {})[queue.queue_id] = queue.next_offset
    return found


def read_first_mark(disk: Disk, path: Path, file_bytes: int) -> EpochMark | None:
    """Return the epoch mark with which a CommitLog file begins; None if it begins differently.

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
        # No mark, or a damaged one, which the reader of the log's records reports.
        return None
    finally:
        disk.close(fd)
    return mark if isinstance(mark, EpochMark) else None


def restore_next_offsets(
    mark: EpochMark, log_min: int, queues: ConsumeQueues, dropped: Mapping[str, int]
) -> set[QueueKey]:
    """Advance queues to the next offsets in the log's first record, unless they are beyond.

    There may be a hundred thousand queues. Their files are created later; after an earlier restart
    this record provides the offsets again.

    Args:
        mark: the record.
        log_min: its physical offset.
        dropped: topic to the physical offset below which its messages are deleted.

    Returns:
        The queues in the record.

    Raises:
        OSError: the disk.
    """
    told = set()
    for topic, numbers in mark.numbers.items():
        # A topic that restarted after the record has other queues than those in it.
        if topic_fault(topic) is not None or dropped.get(topic, 0) > log_min:
            continue
        for queue_id, number in numbers.items():
            queues.set_next_offset(queues.find_or_create(topic, queue_id), number, max(log_min, 1))
            told.add((topic, queue_id))
    return told


def skip_lost_offsets(
    misfits: Iterable[Misfit],
    told: Collection[QueueKey],
    queues: ConsumeQueues,
    log_min: int,
    log_end: int,
) -> None:
    """Advance queues whose last file is lost past all offsets that the file can have contained.

    Only for queues whose offsets are in no record and no generation. If an offset were assigned
    twice, consumers that committed the first one would skip the second message.

    Args:
        misfits: files that were moved away.
        told: queues with a known next offset.
        log_min, log_end: range of the log, physical offsets.
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
                "queue %d of %s continues at offset %d: its file and the records in it are lost",
                queue.queue_id,
                queue.topic,
                misfit.end,
            )
