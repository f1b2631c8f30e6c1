"""The log of a store directory for jobs that need all of it; see `whole_log`."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rockoon_format.record import MAGIC_BLANK
from rockoon_spark.files import LogFile, dropped_marks, list_log, read_range
from rockoon_spark.source.file_partition import Split, read_split, split_files
from rockoon_spark.whole_logs.whole_log import LogBroken, RecordRun, no_record

_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The CommitLog of a store, Rockoon's or RocketMQ's.

    Args:
        store: the store directory, as a path of this machine or a URI.
    """

    store: str

    def look(self) -> "StoredReading":
        """See `ContiguousLog`."""
        files = list_log(self.store)
        behind = len(files)
        # Brokers make files ahead, behind the one that they write.
        while behind > 1 and not any(_head(files[behind - 1], 0)):
            behind -= 1
        return StoredReading(tuple(files[:behind]), dict(dropped_marks(self.store)))


@dataclass(frozen=True, slots=True)
class StoredReading:
    """Files that have something in them."""

    files: Sequence[LogFile]
    marks: Mapping[str, int]

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def sealed_end(self) -> int:
        return self.files[-1].start if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].start + self.files[-1].bytes if self.files else 0

    def partitions(self, start: int, stop: int, split_bytes: int) -> "list[StoredPartition]":
        """See `LogReading`."""
        found: list[StoredPartition] = []
        for split in split_files(self.files, split_bytes):
            base = split.file.start
            first, behind = max(split.start, start - base), min(split.stop, stop - base)
            if first < behind:
                cut = replace(split, start=first, stop=behind)
                found.append(StoredPartition(cut, begins_with_record=base + first == start))
        return found

    def following(self, offset: int) -> int:
        """See `LogReading`."""
        file = self._file_of(offset)
        closing = _head(file, offset - file.start)
        is_closed = int.from_bytes(closing[4:], signed=True) == MAGIC_BLANK
        if len(closing) < _HEAD_BYTES or is_closed:
            return file.start + file.bytes
        return offset

    def is_end(self, offset: int) -> bool:
        """See `LogReading`."""
        file = self.files[-1]
        return offset >= file.start and not any(_head(file, offset - file.start))

    def name_at(self, offset: int, /) -> str:
        """See `LogReading`."""
        return self._file_of(offset).uri

    def _file_of(self, offset: int) -> LogFile:
        return self.files[max(bisect_right(self.files, offset, key=lambda file: file.start), 1) - 1]


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A partition of one file."""

    split: Split
    begins_with_record: bool

    @property
    def start(self) -> int:
        return self.split.file.start + self.split.start

    @property
    def stop(self) -> int:
        return self.split.file.start + self.split.stop

    def runs(self) -> Iterator[RecordRun]:
        """See `ContiguousPartition`."""
        file = self.split.file
        try:
            buffer, found = read_split(self.split, proven=self.begins_with_record)
        except FileNotFoundError as error:
            raise LogBroken(_gone(file)) from error
        except (OSError, ValueError) as error:
            raise LogBroken(f"{file.uri} cannot be read: {error}") from error
        if found.damages:
            raise LogBroken(no_record(file.uri, found.damages[0].start, found.damages[0].end))
        if len(found.starts):
            stop = int(found.starts[-1] + found.sizes[-1])
            yield RecordRun(buffer, self.start, int(found.starts[0]), stop)


def _head(file: LogFile, position: int) -> bytes:
    """Size and magic of what stands at a position of a file, less at its end."""
    try:
        stop = min(position + _HEAD_BYTES, file.bytes)
        return read_range(file, position, stop, 0).tobytes()
    except FileNotFoundError as error:
        raise LogBroken(_gone(file)) from error


def _gone(file: LogFile) -> str:
    return f"{file.uri} went while it was read: retention deleted it; run again"
