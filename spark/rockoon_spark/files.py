"""The files of a store directory, on this machine or any file system that Arrow can reach."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
from numpy.typing import NDArray

from rockoon_format.file_names import file_name_to_offset

_MARKS_FILE = "config/droppedTopics.json"


@dataclass(frozen=True, slots=True)
class LogFile:
    """One CommitLog file."""

    uri: str
    start: int
    """Physical offset of its first byte."""
    bytes: int


class StoreError(Exception):
    """A directory is no store, or one that cannot be read."""


def list_log(path: str) -> list[LogFile]:
    """The CommitLog files of a store, in order.

    Args:
        path: the store directory, as a path of this machine or a URI.

    Raises:
        StoreError: it has no commitlog directory, or a gap between two files.
    """
    files, root = _open(path)
    found = [
        LogFile(f"{path.rstrip('/')}/commitlog/{info.base_name}", start, info.size)
        for info in _children(files, f"{root}/commitlog")
        if info.type == pafs.FileType.File
        and info.base_name.isdigit()
        and (start := file_name_to_offset(info.base_name)) >= 0
    ]
    found.sort(key=lambda file: file.start)
    for file, following in pairwise(found):
        if file.start + file.bytes != following.start:
            raise StoreError(f"{path}: no file between {file.uri} and {following.uri}")
    return found


def dropped_marks(path: str) -> Mapping[str, int]:
    """Topic to the physical offset below which its records went with the topic."""
    files, root = _open(path)
    place = f"{root}/{_MARKS_FILE}"
    if files.get_file_info(place).type != pafs.FileType.File:
        return {}
    with files.open_input_stream(place) as stream:
        content = json.loads(stream.read())
    return {str(topic): int(mark) for topic, mark in content["marks"].items()}


def read_range(file: LogFile, start: int, stop: int, beyond: int) -> NDArray[np.uint8]:
    """Bytes of a file from `start` to `stop` and, for a record that begins there, `beyond` more.

    A file of this machine is mapped, not read; positions are within the file.
    """
    stop = min(stop + beyond, file.bytes)
    if "://" not in file.uri:
        whole = np.memmap(file.uri, np.uint8, "r")
        return whole[start:stop]
    files, path = pafs.FileSystem.from_uri(file.uri)
    with files.open_input_file(path) as source:
        return np.frombuffer(source.read_at(stop - start, start), np.uint8)


def _open(path: str) -> tuple[pafs.FileSystem, str]:
    if "://" in path:
        files, root = pafs.FileSystem.from_uri(path)
        return files, root.rstrip("/")
    return pafs.LocalFileSystem(), str(Path(path).absolute())


def _children(files: pafs.FileSystem, directory: str) -> list[pafs.FileInfo]:
    try:
        children: list[pafs.FileInfo] = files.get_file_info(pafs.FileSelector(directory))
    except FileNotFoundError as error:
        raise StoreError(f"{directory} does not exist: is this a store directory?") from error
    return children
