"""An independent check of a store directory: compares every ConsumeQueue with a rebuild from the
log.

Shares only the record scan with recovery; changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rockoon_broker.store.log.scan import LogScan
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.queues.dropped_topics import read_marks
from rockoon_broker.store.queues.queue_files import queue_directories
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd
from rockoon_format.consume_queue import (
    ENTRY_BYTES,
    FILLER_SIZE,
    EntryArray,
    decode_entries,
    encode_entries,
)
from rockoon_format.file_names import file_name_to_offset, offset_to_file_name

QUEUE_FILE_BYTES_DEFAULT = 300_000 * ENTRY_BYTES


@dataclass
class RebuiltQueue:
    """The expected entries of one queue, from the queue's first record in the log on."""

    first_offset: int
    entries: bytearray = field(default_factory=bytearray)

    @property
    def max_offset(self) -> int:
        return self.first_offset + len(self.entries) // ENTRY_BYTES


@dataclass(frozen=True)
class RebuiltStore:
    """Everything that can be derived from a CommitLog: its queues and its errors."""

    queues: dict[QueueKey, RebuiltQueue]
    log_min: int
    log_end: int
    record_count: int
    problems: tuple[str, ...]
    """Errors in the log itself, one sentence each."""


def rebuild(root: Path, disk: Disk | None = None) -> RebuiltStore:
    """Compute the queues from the CommitLog in memory, 20 bytes per message.

    Args:
        root: a store directory that is not in use: records appended during the check look like
            excess.
    """
    disk = disk or Disk()
    directory = root / "commitlog"
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    if not paths:
        return RebuiltStore({}, 0, 0, 0, ())
    starts = [file_name_to_offset(path.name) for path in paths]
    file_bytes = paths[0].stat().st_size
    marks = read_marks(root)
    queues: dict[QueueKey, RebuiltQueue] = {}
    problems: list[str] = []
    last_ms = 0
    walk = LogScan(directory, file_bytes, starts, disk)
    for chunk in walk.chunks(starts[0]):
        records = chunk.records
        codes = encode_entries(records.offsets + chunk.base, records.sizes, records.tag_codes)
        encoded = codes.tobytes()
        for index in range(records.count):
            physical = chunk.base + int(records.offsets[index])
            if int(records.physical_offsets[index]) != physical:
                problems.append(f"the record at {physical} says another physical offset")
            # At the beginning of a file, times may decrease after a clock correction.
            if physical % file_bytes and int(records.store_timestamps_ms[index]) < last_ms:
                problems.append(f"the record at {physical} is older than the one before it")
            last_ms = int(records.store_timestamps_ms[index])
            topic = records.topics[int(records.topic_numbers[index])].decode()
            if not records.has_queue_entry[index] or physical < marks.get(topic, 0):
                continue
            offset = int(records.queue_offsets[index])
            queue = queues.setdefault(
                (topic, int(records.queue_ids[index])), RebuiltQueue(first_offset=offset)
            )
            if offset != queue.max_offset:
                problems.append(
                    f"the record at {physical} says offset {offset} of {topic} queue "
                    f"{int(records.queue_ids[index])}, which is at {queue.max_offset}"
                )
                continue
            queue.entries += encoded[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES]
    if walk.stopped_by not in (ScanEnd.ZERO, ScanEnd.BLANK, ScanEnd.END):
        problems.append(f"behind the log's end, at {walk.end}: {walk.stopped_by.value}")
    problems += _tail_problems(directory, starts, file_bytes, walk, disk)
    return RebuiltStore(queues, starts[0], walk.end, walk.records_scanned, tuple(problems))


def verify_store(root: Path, disk: Disk | None = None) -> list[str]:
    """Check a store directory for consistency; return a sentence per problem.

    Checks every record's CRC, lengths, physical and queue offset; the order of store times within
    a file; zeros after the log's end; every queue's entries from its first kept record on, byte
    for byte; zeros after its end; missing and excess queues.
    """
    disk = disk or Disk()
    store = rebuild(root, disk)
    problems = list(store.problems)
    found: set[QueueKey] = set()
    for directory in queue_directories(root / "consumequeue"):
        key = (directory.parent.name, int(directory.name))
        paths = sorted(path for path in directory.iterdir() if path.is_file())
        if not paths:
            continue
        found.add(key)
        problems += _queue_problems(key, paths, store)
    problems += [
        f"{topic} queue {queue_id} is missing, but the log has {queue.max_offset} for it"
        for (topic, queue_id), queue in store.queues.items()
        if (topic, queue_id) not in found
    ]
    return problems


def rebuild_consume_queues(
    root: Path, target: Path, *, file_bytes: int = QUEUE_FILE_BYTES_DEFAULT
) -> int:
    """Write the queues that a CommitLog implies into another directory.

    Args:
        root: a store directory.
        target: receives `{topic}/{queue id}/{file}`; these files must not exist.
        file_bytes: size of each file, a multiple of 20.

    Returns:
        The number of queues written.
    """
    store = rebuild(root)
    for (topic, queue_id), queue in store.queues.items():
        directory = target / topic / str(queue_id)
        directory.mkdir(parents=True)
        position = queue.first_offset * ENTRY_BYTES
        start = position - position % file_bytes
        fillers = (position - start) // ENTRY_BYTES
        content = _fillers(fillers) + queue.entries
        for at in range(0, len(content), file_bytes):
            path = directory / offset_to_file_name(start + at)
            path.write_bytes(bytes(content[at : at + file_bytes]).ljust(file_bytes, b"\0"))
    return len(store.queues)


def _fillers(count: int) -> bytearray:
    return bytearray(encode_entries([0] * count, [FILLER_SIZE] * count, [0] * count).tobytes())


def _tail_problems(
    directory: Path, starts: list[int], file_bytes: int, walk: LogScan, disk: Disk
) -> Iterator[str]:
    for start in starts:
        if start + file_bytes <= walk.end:
            continue
        fd = disk.open_reading(directory / offset_to_file_name(start))
        try:
            first = max(0, walk.end - start)
            if walk.stopped_by is ScanEnd.BLANK:
                first += 8
            if not disk.is_zero(fd, first, file_bytes):
                yield f"bytes behind the log's end at {walk.end} are not zero"
        finally:
            disk.close(fd)


def _queue_problems(key: QueueKey, paths: list[Path], store: RebuiltStore) -> Iterator[str]:
    name = f"{key[0]} queue {key[1]}"
    first = file_name_to_offset(paths[0].name) // ENTRY_BYTES
    content = b"".join(path.read_bytes() for path in paths)
    expected = store.queues.get(key)
    if expected is None:
        if _lists_kept(decode_entries(content), store.log_min):
            yield f"{name} lists records that the log does not have"
        return
    start = (expected.first_offset - first) * ENTRY_BYTES
    end = start + len(expected.entries)
    if start < 0:
        yield f"{name} begins at {first}, its first record is {expected.first_offset}"
        return
    if content[start:end] != expected.entries:
        yield f"{name} differs from the log between {expected.first_offset} and its end"
    if content.count(0, end) != len(content) - end:
        yield f"{name} goes on behind {expected.max_offset}, where the log ends"
    before = decode_entries(content[:start])
    if _lists_kept(before, store.log_min) or (before["size"] <= 0).any():
        yield f"{name} is wrong below {expected.first_offset}, its first record"


def _lists_kept(entries: EntryArray, log_min: int) -> bool:
    real = (entries["size"] > 0) & (entries["size"] != FILLER_SIZE)
    return bool((real & (entries["offset"] >= log_min)).any())
