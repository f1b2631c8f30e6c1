"""An index directory built by a job: its manifest, and atomic publishing of new files.

The manifest is next to the directory (`index.manifest.json` next to `index/`), because RocketMQ
treats every file in the directory as an index file. It lists the files, and the physical offset up
to which they index the log. New files are written to a staging directory. When all are complete and
synced, the new manifest is written to the staging directory. From then on the files will be
published: if this process dies, the next job does it. The files are renamed in ascending order, the
manifest last. So the directory always indexes a prefix of the log, at least up to the offset in the
manifest.
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
    """A directory cannot be used for an index, or contains something else."""


@dataclass(frozen=True, slots=True)
class IndexFileShape:
    """Number of slots and units of each file; one unit is never used."""

    slots: int
    units: int

    @property
    def file_bytes(self) -> int:
        return index_file_bytes(self.slots, self.units)

    @property
    def file_keys(self) -> int:
        """Maximum number of keys in a file."""
        return self.units - 1


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A published index file."""

    name: str
    crc32: int
    """CRC-32 of the whole file."""
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
    """Files of an index, and the offset up to which they index the log."""

    shape: IndexFileShape
    end_offset: int
    """Physical offset below which the keys of all records are indexed."""
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
    """Read the published manifest; None if there is none.

    Raises:
        IndexTargetError: it cannot be read.
    """
    path = manifest_path(target)
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise IndexTargetError(f"{path} has format {content['format']}, expected {_FORMAT}")
        return IndexManifest(
            IndexFileShape(int(content["slots"]), int(content["units"])),
            int(content["endOffset"]),
            tuple(map(IndexedFile.from_json, content["files"])),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise IndexTargetError(
            f"{path} is not a valid manifest of an index: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Create the directory if necessary, and hold its lock against other jobs.

    Raises:
        IndexTargetError: another job holds the lock.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(0o700, exist_ok=True)
    with ExitStack() as lock:
        try:
            lock.enter_context(held(target))
        except BlockingIOError as error:
            raise IndexTargetError(f"{target} is locked by another job") from error
        yield


def check_files(target: Path, manifest: IndexManifest | None, log_start: int) -> None:
    """Compare the file names of a directory with its manifest.

    Args:
        log_start: physical offset; files whose messages are all below it may be missing, because
            the broker deletes them.

    Raises:
        IndexTargetError: a file is unknown or missing.
    """
    found = {path.name for path in index_paths(target)}
    known = {file.name for file in manifest.files} if manifest else set()
    if unknown := sorted(found - known):
        raise IndexTargetError(
            f"{target / unknown[0]} was not built by this job: use another directory, or remove "
            f"the index files there and {manifest_path(target)}"
        )
    for file in manifest.files if manifest else ():
        if file.name not in found and file.header.end_offset >= log_start:
            raise IndexTargetError(
                f"{target / file.name} is missing, although its messages are in the log: "
                f"remove {manifest_path(target)} and the index files to build all again"
            )


def check_content(target: Path, file: IndexedFile, shape: IndexFileShape) -> None:
    """Check that a file to be extended is unchanged since it was published.

    Raises:
        IndexTargetError: it was changed.
    """
    path = target / file.name
    if path.stat().st_size != shape.file_bytes or crc32_of(path) != file.crc32:
        raise IndexTargetError(
            f"{path} was changed after it was published: it is damaged, or a broker writes to it; "
            f"remove {manifest_path(target)} and the index files to build all again"
        )


def index_paths(target: Path) -> list[Path]:
    """Return the index files of a directory, in order."""
    return sorted(
        path
        for path in target.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isascii() and path.name.isdigit()
    )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a new staging directory; it is removed unless it contains a manifest to publish."""
    staging = target.parent / f"{_staging_prefix(target)}{uuid.uuid4().hex}"
    staging.mkdir(0o700)
    try:
        yield staging
    finally:
        if not (staging / _MANIFEST).exists():
            shutil.rmtree(staging, ignore_errors=True)


def stagings(target: Path) -> list[Path]:
    """Return the staging directories of running or dead jobs."""
    prefix = _staging_prefix(target)
    return sorted(path for path in target.parent.iterdir() if path.name.startswith(prefix))


def _staging_prefix(target: Path) -> str:
    return f".{target.name}.building-"


def publish(
    target: Path, staging: Path, manifest: IndexManifest, *, replace: Replace = os.replace
) -> None:
    """Publish the index files of a staging directory; they must be synced."""
    written = staging / f"{_MANIFEST}.new"
    written.write_text(manifest.to_json())
    sync(written)
    sync(staging)
    replace(written, staging / _MANIFEST)
    sync(staging)
    _finish(target, staging, replace)


def recover(target: Path) -> None:
    """Finish the publishing that a dead process began, or remove its incomplete files.

    The caller must hold the lock: see `locked`.
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
    crc = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
