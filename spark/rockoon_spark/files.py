"""The files of a store directory, on this machine or on a file system that Arrow supports."""

import errno
import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
from numpy.typing import NDArray

from rockoon_core.valid_text import redacted
from rockoon_format.config_json import ConfigError, read_topics
from rockoon_format.file_names import file_name_to_offset
from rockoon_spark.object_stores import StoreReadError, child, file_system, is_s3, store_errors

Bytes = NDArray[np.uint8]

_PARALLEL_READS = 16
# Bytes of one read in a search for the end of a file's content.
_SEARCH_BYTES = 1 << 20
_PROBE_BYTES = 16 << 10
# Shorter ranges of a local file are read, because a mapping costs more.
_MAPPED_BYTES_MIN = 64 << 10
_TOPICS_FILE = "config/topics.json"
_MARKS_FILE = "config/droppedTopics.json"


@dataclass(frozen=True, slots=True)
class LogFile:
    """One CommitLog file of a store."""

    uri: str
    start: int
    """Physical offset of the file's first byte."""
    bytes: int

    @property
    def shown(self) -> str:
        """URI of the file without secrets, for error texts."""
        return redacted(self.uri)


def list_log(path: str) -> list[LogFile]:
    """Return the CommitLog files of a store, in order.

    Args:
        path: the store directory, a local path or a URI.

    Raises:
        StoreReadError: it has no commitlog directory, or a gap between two files.
    """
    files, root = _open(path)
    found = [
        LogFile(child(path, f"commitlog/{info.base_name}"), start, info.size)
        for info in _children(path, files, f"{root}/commitlog")
        if info.type == pafs.FileType.File
        and info.base_name.isdigit()
        and (start := file_name_to_offset(info.base_name)) >= 0
    ]
    found.sort(key=lambda file: file.start)
    for file, following in pairwise(found):
        if file.start + file.bytes != following.start:
            raise StoreReadError(
                f"{redacted(path)}: no file between {file.shown} and {following.shown}"
            )
    return found


def list_queues(path: str) -> dict[tuple[str, int], list[LogFile]]:
    """Return the ConsumeQueue files of each queue (topic, queue id) of a store, in order.

    The `start` of a file is its first byte's position in the queue. Queues without a file are
    omitted.

    Args:
        path: the store directory, a local path or a URI.

    Raises:
        StoreReadError: the path cannot be read.
    """
    files, root = _open(path)
    selector = pafs.FileSelector(f"{root}/consumequeue", recursive=True, allow_not_found=True)
    found: dict[tuple[str, int], list[LogFile]] = {}
    with store_errors(path):
        infos = files.get_file_info(selector)
    for info in infos:
        *_, topic, queue_id, name = info.path.rsplit("/", 3)
        if info.type == pafs.FileType.File and queue_id.isdigit() and name.isdigit():
            uri = child(path, f"consumequeue/{topic}/{queue_id}/{name}")
            file = LogFile(uri, file_name_to_offset(name), info.size)
            found.setdefault((topic, int(queue_id)), []).append(file)
    return {key: sorted(own, key=lambda file: file.start) for key, own in found.items()}


def is_remote(file: LogFile) -> bool:
    """True if reads of a file are calls to a file system of Arrow, and cannot be mapped."""
    return "://" in file.uri


def probed_end(file: LogFile) -> int:
    """Return the physical offset of the first probe of a file that has only zeros, by bisection.

    It is a guess of the end of the file's content: a message may have as many zeros as a probe.
    """
    with reading(file) as read:

        def is_zero(position: int) -> bool:
            content = read(min(_PROBE_BYTES, file.bytes - position), position)
            return content.count(0) == len(content)

        probes = range(0, file.bytes, _PROBE_BYTES)
        number = bisect_left(probes, True, key=is_zero)
        return file.start + min(number * _PROBE_BYTES, file.bytes)


def written_end(file: LogFile) -> int:
    """Return the physical offset after the content of a local file, which zeros follow.

    Brokers create files in advance, with zeros. Holes are not read; but a hole that is in the page
    cache counts as data, so `probed_end` can be much cheaper.
    """
    descriptor = os.open(file.uri, os.O_RDONLY)
    try:
        end = file.bytes
        while end:
            start = max(end - _SEARCH_BYTES, 0)
            try:
                data = os.lseek(descriptor, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = end
            if data < end:
                content = np.frombuffer(os.pread(descriptor, end - data, data), np.uint8)
                if content.any():
                    return file.start + data + int(np.flatnonzero(content)[-1]) + 1
            end = start
        return file.start
    finally:
        os.close(descriptor)


def list_topics(path: str) -> dict[str, set[int]] | None:
    """Return the topics of a store with their queue ids.

    `config/topics.json` and the directories of `consumequeue` list the queues. If both are missing,
    as in a copy of the CommitLog alone, the result is None.

    Args:
        path: the store directory, a local path or a URI.

    Raises:
        StoreReadError: topics.json cannot be read.
    """
    content = read_small(child(path, _TOPICS_FILE))
    files, root = _open(path)
    selector = pafs.FileSelector(f"{root}/consumequeue", recursive=True, allow_not_found=True)
    with store_errors(path):
        infos = files.get_file_info(selector)
    if content is None and not infos:
        return None
    try:
        configs = read_topics(content).topics if content is not None else {}
    except ConfigError as error:
        raise StoreReadError(f"{redacted(path)}: {_TOPICS_FILE} cannot be read: {error}") from error
    found = {
        topic: set(range(max(config.read_queues, config.write_queues)))
        for topic, config in configs.items()
    }
    for info in infos:
        topic, _, queue_id = info.path.rpartition("/consumequeue/")[2].partition("/")
        if info.type == pafs.FileType.Directory and queue_id.isdigit():
            found.setdefault(topic, set()).add(int(queue_id))
    return found


def dropped_marks(path: str) -> Mapping[str, int]:
    """Return, per topic, the physical offset below which its records were deleted with it."""
    return _marks(path, "marks")


def generation_marks(path: str) -> Mapping[str, int]:
    """Return, per topic, the physical offset below which compacted messages are hidden.

    Either the topic was deleted after the compaction, or retention deleted newer messages while the
    topic was not compacted.
    """
    marks = dict(dropped_marks(path))
    for topic, mark in _marks(path, "overtaken").items():
        marks[topic] = max(mark, marks.get(topic, 0))
    return marks


def _marks(path: str, name: str) -> Mapping[str, int]:
    text = read_small(child(path, _MARKS_FILE))
    marks = {} if text is None else json.loads(text).get(name, {})
    return {str(topic): int(mark) for topic, mark in marks.items()}


def read_small(uri: str) -> bytes | None:
    """Read a whole file; None if it does not exist.

    Args:
        uri: a local path, or a URI.
    """
    try:
        return read_bytes(uri, 0, None).tobytes()
    except FileNotFoundError:
        return None


def read_range(file: LogFile, start: int, stop: int, beyond: int) -> NDArray[np.uint8]:
    """Return the bytes of a file from `start` to `stop` plus `beyond` more.

    The additional bytes hold the end of a record that begins before `stop`. A local file is mapped,
    not read. Positions are within the file.
    """
    stop = min(stop + beyond, file.bytes)
    return read_bytes(file.uri, start, stop)


def read_ranges(file: LogFile, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Return the bytes of several ranges of a file, in order, with zeros after the file's end.

    Ranges of a remote file are read in parallel, because each read waits for its answer.

    Raises:
        FileNotFoundError: it does not exist.
    """
    with reading(file) as read:
        if is_remote(file):
            with ThreadPoolExecutor(_PARALLEL_READS) as pool:
                found = list(pool.map(read, sizes, starts))
        else:
            found = list(map(read, sizes, starts))
    return [piece.ljust(size, b"\0") for piece, size in zip(found, sizes, strict=True)]


@contextmanager
def reading(file: LogFile) -> Iterator[Callable[[int, int], bytes]]:
    """Yield a function that reads bytes of a file: their number, and the position of the first.

    A local file is not mapped: the page faults of short ranges cost more than reads.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if is_remote(file):
        files, path = file_system(file.uri)
        with store_errors(file.uri), files.open_input_file(path) as source:
            yield source.read_at
    else:
        with open(file.uri, "rb", buffering=0) as opened:
            yield partial(os.pread, opened.fileno())


def read_bytes(uri: str, start: int, stop: int | None) -> NDArray[np.uint8]:
    """Return the bytes of a file from `start` to `stop`; fewer if the file ends earlier.

    A long range of a local file is mapped, not read.

    Args:
        uri: a local path, or a URI.
        stop: None for the end of the file.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if "://" not in uri:
        if not os.path.getsize(uri):
            return np.zeros(0, np.uint8)
        with open(uri, "rb", buffering=0) as file:
            if stop is not None and stop - start <= _MAPPED_BYTES_MIN:
                # `start` is after `stop` if the file ends before both.
                size = max(stop - start, 0)
                return np.frombuffer(os.pread(file.fileno(), size, start), np.uint8)
            # np.memmap costs three times more, which counts for many small files.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, np.uint8)[start:stop]
    files, path = file_system(uri)
    with store_errors(uri), files.open_input_file(path) as source:
        size = (source.size() if stop is None else stop) - start
        return np.frombuffer(source.read_at(size, start), np.uint8)


def _open(path: str) -> tuple[pafs.FileSystem, str]:
    if "://" in path:
        files, root = file_system(path)
        return files, root.rstrip("/")
    return pafs.LocalFileSystem(), str(Path(path).absolute())


def _children(location: str, files: pafs.FileSystem, directory: str) -> list[pafs.FileInfo]:
    try:
        with store_errors(location):
            children: list[pafs.FileInfo] = files.get_file_info(pafs.FileSelector(directory))
    except FileNotFoundError as error:
        shown = f"{redacted(location)}, option path: {directory}" if is_s3(location) else directory
        raise StoreReadError(f"{shown} does not exist: is this a store directory?") from error
    return children
