"""An index directory that a job builds: what is in it, and how more gets in at once.

The manifest beside the directory (`index.manifest.json` beside `index/`: RocketMQ takes every file
inside for an index file) says which files there are and up to where the log is in them. New files
are made in a directory aside. When all are whole and synced, the new manifest is written there:
from then on they will be published, by whoever comes next if this process dies. They are renamed in
ascending order, the manifest last. So the directory holds the index of a beginning of the log at
every moment, never less than the manifest says.
"""

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rockoon_format.index_file import IndexHeader, index_file_bytes
from rockoon_spark.publish import Replace, held, sync

_MANIFEST = "manifest.json"
_FORMAT = 1
_NAME_DIGITS = 17
_READ_BYTES = 1 << 20


class IndexTargetError(Exception):
    """A directory cannot take an index, or holds something else."""


@dataclass(frozen=True, slots=True)
class IndexShape:
    """How many slots and units each file has; one unit is never used."""

    slots: int
    units: int

    @property
    def file_bytes(self) -> int:
        return index_file_bytes(self.slots, self.units)

    @property
    def file_keys(self) -> int:
        """How many keys a file takes."""
        return self.units - 1


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """An index file as it was published."""

    name: str
    crc32: int
    """Of its whole content."""
    header: IndexHeader

    @property
    def keys(self) -> int:
        return self.header.next_unit - 1

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "keys": self.keys, "crc32": self.crc32} | {
            "header": asdict(self.header)
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "IndexedFile":
        return cls(str(content["name"]), int(content["crc32"]), IndexHeader(**content["header"]))


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds."""

    shape: IndexShape
    end_offset: int
    """The keys of every record below this physical offset are in."""
    files: tuple[IndexedFile, ...] = ()

    def to_json(self) -> str:
        content = {
            "format": _FORMAT,
            "slots": self.shape.slots,
            "units": self.shape.units,
            "endOffset": self.end_offset,
            "files": [file.to_json() for file in self.files],
        }
        return json.dumps(content, indent=1) + "\n"


def manifest_path(target: Path) -> Path:
    return target.parent / f"{target.name}.{_MANIFEST}"


def read_manifest(target: Path) -> IndexManifest | None:
    """What was published last, None if nothing ever was.

    Raises:
        IndexTargetError: it cannot be read.
    """
    path = manifest_path(target)
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise IndexTargetError(f"{path} is of format {content['format']}, not {_FORMAT}")
        return IndexManifest(
            IndexShape(int(content["slots"]), int(content["units"])),
            int(content["endOffset"]),
            tuple(map(IndexedFile.from_json, content["files"])),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise IndexTargetError(
            f"{path} is no manifest of an index: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Make the directory if need be, and keep other jobs from it.

    Raises:
        IndexTargetError: another one is at it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(0o700, exist_ok=True)
    with ExitStack() as lock:
        try:
            lock.enter_context(held(target))
        except BlockingIOError as error:
            raise IndexTargetError(f"{target}: another job is at it") from error
        yield


def check_files(target: Path, manifest: IndexManifest | None, log_start: int) -> None:
    """See that a directory is as its manifest says, as far as that can be told at a glance.

    Args:
        log_start: a broker deletes files of messages below this physical offset.

    Raises:
        IndexTargetError: it is not.
    """
    found = {path.name for path in index_paths(target)}
    known = {file.name for file in manifest.files} if manifest else set()
    if strange := sorted(found - known):
        raise IndexTargetError(
            f"{target / strange[0]} was not built by this job: take another directory, or remove "
            f"the index files there and {manifest_path(target).name} beside them"
        )
    for file in manifest.files if manifest else ():
        if file.name not in found and file.header.end_offset >= log_start:
            raise IndexTargetError(
                f"{target / file.name} is gone, though its messages are in the log: "
                f"remove {manifest_path(target)} and the index files to build all again"
            )


def check_content(target: Path, file: IndexedFile, shape: IndexShape) -> None:
    """See that a file which is to be continued is still what was published.

    Raises:
        IndexTargetError: somebody has written to it.
    """
    path = target / file.name
    if path.stat().st_size != shape.file_bytes or crc32_of(path) != file.crc32:
        raise IndexTargetError(
            f"{path} is not what was published: it is damaged, or a broker goes on with it; "
            f"remove {manifest_path(target)} and the index files to build all again"
        )


def index_paths(target: Path) -> list[Path]:
    """The index files of a directory, in order."""
    return sorted(
        path
        for path in target.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isascii() and path.name.isdigit()
    )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A directory aside to make files in; it goes, unless what is in it is to be published."""
    staging = target.parent / f"{_staging_prefix(target)}{uuid.uuid4().hex}"
    staging.mkdir(0o700)
    try:
        yield staging
    finally:
        if not (staging / _MANIFEST).exists():
            shutil.rmtree(staging, ignore_errors=True)


def stagings(target: Path) -> list[Path]:
    """Directories of jobs that have not ended, or died."""
    prefix = _staging_prefix(target)
    return sorted(path for path in target.parent.iterdir() if path.name.startswith(prefix))


def _staging_prefix(target: Path) -> str:
    return f".{target.name}.building-"


def publish(
    target: Path, staging: Path, manifest: IndexManifest, *, replace: Replace = os.replace
) -> None:
    """Put the index files of a staging directory, which are synced, into their places."""
    written = staging / f"{_MANIFEST}.new"
    written.write_text(manifest.to_json())
    sync(written)
    sync(staging)
    replace(written, staging / _MANIFEST)
    sync(staging)
    _finish(target, staging, replace)


def recover(target: Path) -> None:
    """Finish what a process that died was publishing, remove what it was still making.

    Nobody else may be at it: see `locked`.
    """
    for staging in stagings(target):
        if (staging / _MANIFEST).exists():
            _finish(target, staging, os.replace)
        else:
            shutil.rmtree(staging)


def _finish(target: Path, staging: Path, replace: Replace) -> None:
    for path in index_paths(staging):
        replace(path, target / path.name)
    sync(target)
    replace(staging / _MANIFEST, manifest_path(target))
    sync(target.parent)
    shutil.rmtree(staging, ignore_errors=True)


def crc32_of(path: Path) -> int:
    """CRC-32 of a file's content."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
