"""Compaction of a store directory, also while its broker is running.

    <store>/compacted/
      .lock                       held by the job
      .incoming-_job-<id>/        staging directory; if the job dies, the next one removes it
      00000000000000000007/       the staging directory, renamed when all files are durable

The broker finds the renamed directory, verifies it and makes it the current generation. Several
executors may write at the same time; all of them must see the store directory.
"""

import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rockoon_core.disk import LINKS_REFUSED
from rockoon_format.checkpoint import SAFETY_MARGIN_MS, decode_checkpoint
from rockoon_format.config_json import ConfigError, read_topics
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    INCOMING_PREFIX,
    MANIFEST_FILE,
    TAIL_BYTES,
    GenerationError,
    LogTail,
    Manifest,
    decode_current,
    generation_name,
)
from rockoon_format.names import is_system_topic
from rockoon_format.topic_attributes import is_compacted, tombstone_retention_ms
from rockoon_spark.compaction.exchange import Exchange, Incoming
from rockoon_spark.compaction.plan import CompactionInput, PartWriter
from rockoon_spark.compaction.sources import CompactionError, FormerPart, first_stored_after
from rockoon_spark.compaction.steps import KeyedMessage, MessageKind
from rockoon_spark.files import LogFile, generation_marks, list_log, read_range
from rockoon_spark.generations.directory_generation import DirectoryGeneration
from rockoon_spark.object_stores import StoreReadError
from rockoon_spark.publish import Replace, held, sync, sync_tree
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import in_batches
from rockoon_spark.source.store_directory import DirectoryLog, StoreDirectory

# Ids of uploads to the broker have no underscore, so a job never removes an upload's directory.
_OWN_INCOMING = f"{INCOMING_PREFIX}_job-"
_LOCK_FILE = ".lock"
_CHECKPOINT_FILE = "checkpoint"
_TOPICS_FILE = "config/topics.json"
_SEARCH_BYTES = 8 << 20
_COMPARED_BYTES = 1 << 20

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class FileWriter:
    """`PartWriter` for a directory."""

    directory: Path

    def write(self, name: str, content: bytes) -> None:
        attempt = self.directory / f".{name}.{uuid.uuid4().hex}"
        try:
            # Files of a store are readable by their owner only.
            attempt.touch(0o600)
            attempt.write_bytes(content)
            sync(attempt)
            if not _reads_as(attempt, content):
                raise CompactionError(f"{attempt} reads back differently: is the disk faulty?")
            # Renamed, because a second attempt of the task may write the same file concurrently.
            attempt.replace(self.directory / name)
        except OSError as error:
            raise CompactionError(f"{attempt} cannot be written: {error.strerror}") from error

    def link(self, generation: int, former_name: str, name: str) -> None:
        source = self.directory.parent / generation_name(generation) / former_name
        try:
            os.link(source, self.directory / name)
        except FileExistsError:
            # Another attempt of the task has linked it.
            return
        except FileNotFoundError as error:
            raise CompactionError(f"{source} was replaced during the run: run again") from error
        except OSError as error:
            if error.errno not in LINKS_REFUSED:
                raise CompactionError(f"{source} cannot be linked: {error.strerror}") from error
            self.write(name, source.read_bytes())


def _reads_as(path: Path, content: bytes) -> bool:
    at = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_COMPARED_BYTES):
            if piece != content[at : at + len(piece)]:
                return False
            at += len(piece)
    return at == len(content)


class _IncomingDirectory:
    """`Incoming` for a generation that is written to a store directory."""

    def __init__(self, directory: Path, target: Path, rename: Replace) -> None:
        self._directory = directory
        self._target = target
        self._rename = rename
        self.writer: PartWriter = FileWriter(directory)

    def publish(self, manifest: Manifest) -> None:
        wanted = {file.name for part in manifest.parts for file in part.files}
        try:
            # Remove the files of killed attempts.
            for path in self._directory.iterdir():
                if path.name not in wanted:
                    path.unlink()
            (self._directory / MANIFEST_FILE).touch(0o600)
            (self._directory / MANIFEST_FILE).write_bytes(manifest.to_json())
            # Sync before the rename: after it the broker makes this generation the current one and
            # may delete the part of the log that it replaces.
            sync_tree(self._directory)
            if self._target.exists():
                raise CompactionError(f"{self._target} was created during the run")
            self._rename(self._directory, self._target)
            sync(self._target.parent)
        except OSError as error:
            raise CompactionError(
                f"the new generation cannot be renamed to {self._target}: {error.strerror}"
            ) from error


class DirectoryTarget:
    """`CompactionTarget` for a store directory on a disk that driver and executors share.

    Args:
        path: the directory.
        clock_ns: returns the time in nanoseconds since 1970.
        rename: renames the staging directory when the generation is complete.
    """

    def __init__(
        self, path: Path, *, clock_ns: Clock = time.time_ns, rename: Replace = os.rename
    ) -> None:
        self._path = path.absolute()
        self._clock_ns = clock_ns
        self._rename = rename

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def _generations(self) -> Path:
        return self._path / GENERATIONS_DIRECTORY

    def inspect(
        self, exchange: Exchange, /, *, min_lag_ms: int, split_bytes: int
    ) -> CompactionInput:
        current = self._current()
        known = self._numbers()
        newest = max([current, *known])
        if newest > current:
            raise CompactionError(
                f"{self._generations / generation_name(newest)} waits for the broker: start the "
                "broker, which makes it the current generation, then run again"
            )
        now_ms = self._clock_ns() // 1_000_000
        files = self._files()
        start = files[0].start if files else 0
        end = log_end(files, exchange, split_bytes=split_bytes, durable_ms=self._durable_ms())
        former = self._manifest(current) if current else None
        if former is not None and end < former.log_end:
            raise CompactionError(
                f"{self._path}: the log ends at physical offset {end}, before the end of "
                f"generation {current}, {former.log_end}: restore the missing files of the log"
            )
        if min_lag_ms:
            partitions = self.partitions(start, end, _SEARCH_BYTES)
            # A generation never ends before the previous one.
            end = max(
                first_stored_after(partitions, now_ms - min_lag_ms, end),
                former.log_end if former else 0,
            )
        return CompactionInput(
            now_ms=now_ms,
            log_start=start,
            log_end=end,
            log_tail=_tail(files, end),
            retention_ms=self._topics(),
            # Read after `end`: the mark of a topic deleted in between is then above `end`.
            dropped_below=dict(generation_marks(str(self._path))),
            former=former,
            number=newest + 1,
        )

    def partitions(self, start: int, stop: int, split_bytes: int) -> Sequence[FilePartition]:
        log = DirectoryLog(StoreDirectory(str(self._path)), self._files(), {})
        return log.partitions(start, stop, split_bytes)

    def former_parts(self, manifest: Manifest) -> Sequence[FormerPart]:
        files = DirectoryGeneration(str(self._path), "", manifest.generation)
        return [FormerPart(files, part) for part in manifest.parts]

    @contextmanager
    def incoming(self, number: int, /) -> Iterator[Incoming]:
        self._generations.mkdir(0o700, exist_ok=True)
        target = self._generations / generation_name(number)
        with self._locked():
            # Only while holding the lock: a staging directory could belong to a running job.
            for stale in self._generations.glob(f"{_OWN_INCOMING}*"):
                shutil.rmtree(stale)
            if target.exists():
                raise CompactionError(f"{target} was created during the run")
            directory = self._generations / f"{_OWN_INCOMING}{uuid.uuid4().hex}"
            directory.mkdir(0o700)
            try:
                yield _IncomingDirectory(directory, target, self._rename)
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock_file = self._generations / _LOCK_FILE
        lock_file.touch(0o600)
        with ExitStack() as lock:
            try:
                lock.enter_context(held(lock_file))
            except BlockingIOError as error:
                raise CompactionError(f"{self._path}: another job compacts it") from error
            yield

    def _files(self) -> list[LogFile]:
        try:
            return list_log(str(self._path))
        except StoreReadError as error:
            raise CompactionError(str(error)) from error

    def _current(self) -> int:
        try:
            return decode_current((self._generations / CURRENT_FILE).read_bytes())
        except FileNotFoundError:
            return 0
        except GenerationError as error:
            raise CompactionError(f"{self._generations / CURRENT_FILE}: {error}") from error

    def _numbers(self) -> list[int]:
        """Return the numbers of all complete generations: current, waiting or not yet removed."""
        if not self._generations.exists():
            return []
        return [
            int(path.name)
            for path in self._generations.iterdir()
            if path.name.isdigit() and (path / MANIFEST_FILE).exists()
        ]

    def _durable_ms(self) -> int:
        """Return the time before which all stored records are on disk, by the checkpoint."""
        try:
            checkpoint = decode_checkpoint((self._path / _CHECKPOINT_FILE).read_bytes())
        except (FileNotFoundError, ValueError):
            return 0
        return checkpoint.log_timestamp_ms - SAFETY_MARGIN_MS

    def _manifest(self, number: int) -> Manifest:
        path = self._generations / generation_name(number) / MANIFEST_FILE
        try:
            return Manifest.from_json(path.read_bytes())
        except (OSError, GenerationError) as error:
            raise CompactionError(f"{path} cannot be read: {error}") from error

    def _topics(self) -> dict[str, int]:
        path = self._path / _TOPICS_FILE
        try:
            topics = read_topics(path.read_bytes()).topics.values()
        except FileNotFoundError:
            return {}
        except ConfigError as error:
            raise CompactionError(f"{path} cannot be read: {error}") from error
        return {
            topic.topic: tombstone_retention_ms(topic.attributes)
            for topic in topics
            if is_compacted(topic.topic, topic.attributes) and not is_system_topic(topic.topic)
        }


def _tail(files: Sequence[LogFile], log_end: int) -> LogTail:
    """Return length and checksum of the last TAIL_BYTES of a log before its end, within one
    file.
    """
    for file in files:
        if file.start < log_end <= file.start + file.bytes:
            start = max(log_end - TAIL_BYTES, file.start)
            content = read_range(file, start - file.start, log_end - file.start, 0)
            return LogTail(start, log_end - start, zlib.crc32(content.tobytes()))
    return LogTail(log_end, 0, 0)


@dataclass(slots=True)
class _Extent:
    """Physical offsets at which the whole records of a partition begin and end."""

    first: int | None = None
    """Physical offset of the first record; None if there is none."""
    end: int = 0
    """Physical offset of the end of the last whole record."""
    broken: int | None = None
    """Physical offset of the first bytes that are not a whole record, if records follow them."""
    error: str | None = field(default=None, kw_only=True)
    """Error text if the partition cannot be read."""


@dataclass(frozen=True, slots=True)
class _Examine:
    """Finds the extent of the whole records of one partition; the task number is the partition's
    index.
    """

    partitions: Sequence[FilePartition]
    durable_ms: int

    def __call__(self, number: int) -> Iterator[KeyedMessage]:
        extent = _examine(self.partitions[number], self.durable_ms)
        values = [extent.first, extent.end, extent.broken, extent.error]
        yield KeyedMessage(MessageKind.SURVEY, 0, number, json.dumps(values).encode())


def log_end(
    files: Sequence[LogFile], exchange: Exchange, *, split_bytes: int, durable_ms: int
) -> int:
    """Return the end of the last whole record of a log on disk, with verified checksums.

    The broker may be writing to the log, or a power failure may have left half a batch. An
    incomplete record at the end was never acknowledged, so it is ignored. If whole records follow a
    broken one, the job fails: only the broker decides about them, when it starts. Records that are
    durable by the store's checkpoint are not verified here; the copying step detects damage in the
    records that it keeps.

    Args:
        files: files of the log, in order.
        exchange: runs the tasks.
        split_bytes: bytes that one task reads.
        durable_ms: records stored before this time are on disk, epoch milliseconds.

    Raises:
        CompactionError: whole records follow broken ones, or a file cannot be read.
    """
    for file in reversed(files):
        end = _end_in(file, exchange, split_bytes, durable_ms)
        if end > file.start:
            return end
    return files[0].start if files else 0


def _end_in(file: LogFile, exchange: Exchange, split_bytes: int, durable_ms: int) -> int:
    partitions = FilePartition.of(file).cut(split_bytes)
    answers = sorted(
        exchange.start(range(len(partitions)), _Examine(partitions, durable_ms)).collect(),
        key=lambda each: each.source,
    )
    end, broken = file.start, None
    for answer in answers:
        first, whole_end, torn, error = json.loads(answer.content)
        if error:
            raise CompactionError(error)
        # A partition that begins at a cut does not report damage before its first record.
        if broken is None and first is not None and first != end:
            broken = end
        if broken is None:
            broken = torn
        if first is not None:
            if broken is not None and whole_end > broken:
                raise CompactionError(
                    f"{file.shown}: a broken record at physical offset {broken} is followed by "
                    "whole records: start the broker, which repairs its log, then run again"
                )
            end = max(whole_end, first)
    return end if broken is None else broken


def _examine(partition: FilePartition, durable_ms: int) -> _Extent:
    try:
        buffer, found = partition.scan()
    except OSError as error:
        return _Extent(error=f"{partition.file.shown} cannot be read: {error}; run again")
    base = partition.start
    extent = _Extent(broken=found.damages[0].start if found.damages else None)
    # Store times ascend within a file: if the last record is durable, all are.
    last = LogRecords.of(buffer, base, found.starts[-1:], found.sizes[-1:], "")
    if len(last) and int(last.store_timestamps_ms[0]) < durable_ms:
        extent.first = base + int(found.starts[0])
        extent.end = base + int(found.starts[-1] + found.sizes[-1])
        return extent
    for records in in_batches(buffer, base, found.starts, found.sizes, ""):
        wrong = records.are_damaged()
        starts = records.prefix("physical_offset")
        if wrong.any():
            at = int(starts[int(wrong.argmax())])
            extent.broken = at if extent.broken is None else min(extent.broken, at)
        if extent.first is None:
            extent.first = int(starts[0])
        whole = np.flatnonzero(~wrong)
        if len(whole):
            extent.end = int(starts[whole[-1]] + records.sizes[whole[-1]])
    return extent
