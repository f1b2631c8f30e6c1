"""A directory of Parquet files that exports fill, and what says which of its files count.

    topic=orders/date=2026-11-20/00000007-0000-0001-9f2c11d0.parquet
    _manifest/00000007.json     what run 7 exported, with its files; written once
    _staging/9f2c11d0…/         a run that has not ended, or died

Every run reads on where the newest manifest says that the one before has ended, in each broker's
log. Invariants:

- A message is in one file of one manifest.
- A file has its name in the directory of its topic and date only once the run's manifest is in
  `_staging/<run>`: from then on the run will be published, by the next job if this process dies.
  Files are moved first, the manifest last. A run that cannot be published, because another run has
  its number or its staged files are gone, is rolled back: its files are removed, and the next run
  exports its messages.
- So who reads the files that manifests name sees whole runs, each message once. Who reads all
  Parquet files below the directory sees the same when no run is publishing and, behind one that
  died, after the next has begun. Names that begin with `_` are left out by Spark and Arrow; staged
  files do not end in `.parquet` either.

Nothing but a rename is needed of the file system. One job at a time works in a directory: it holds
a lock on a directory of this machine, elsewhere a lease (`rockoon_spark.export.lease`). If a
run finds that another run was published since it began, it publishes nothing.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from rockoon_core.redaction import redacted
from rockoon_spark.export.lease import LEASE_SECONDS, Lease, LeaseLost, LeaseTaken
from rockoon_spark.publish import held, sync
from rockoon_spark.source.log_source import LastRecord

log = logging.getLogger(__name__)

Move = Callable[[str, str], None]
"""Renames a file, onto another one if need be."""

MANIFESTS = "_manifest"
_STAGING = "_staging"
_STAGED_MANIFEST = "manifest.json"
_STAGED_SUFFIX = ".staged"
_FORMAT = 1
_RUN_DIGITS = 8


class ExportTargetError(Exception):
    """A directory cannot take an export, or holds something else."""


class RolledBack(ExportTargetError):
    """A run could not be published, and its files were removed."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A Parquet file of an export."""

    path: str
    """Below the export's directory."""
    broker: str
    rows: int
    bytes: int
    crc32: int
    """Of its whole content."""
    first_offset: int
    last_offset: int
    """Physical offsets of its first and its last message."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a broker's log is exported."""

    end_offset: int
    """Every message below this physical offset, at which a record starts."""
    last: LastRecord | None = None
    """The last one that was read, None if none ever was."""

    def to_json(self) -> dict[str, Any]:
        return {"endOffset": self.end_offset, "last": asdict(self.last) if self.last else None}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Position":
        last = content["last"]
        return cls(int(content["endOffset"]), LastRecord(**last) if last else None)


@dataclass(frozen=True, slots=True)
class Gap:
    """Physical offsets of a log that were passed over."""

    broker: str
    start: int
    end: int
    """Exclusive."""
    reason: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a broker's log that one task read; physical offsets, the end exclusive."""

    broker: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """What a run exported, and where the next one goes on."""

    run: int
    """From 1."""
    run_id: str
    topics: Mapping[str, Any]
    """Which are exported: the same in every run."""
    positions: Mapping[str, Position]
    """By broker, those too that this run had nothing of."""
    sections: Sequence[Section]
    files: Sequence[ExportedFile]
    gaps: Sequence[Gap] = field(default=())

    def to_json(self) -> str:
        content = {
            "format": _FORMAT,
            "run": self.run,
            "runId": self.run_id,
            "topics": self.topics,
            "brokers": {name: each.to_json() for name, each in self.positions.items()},
            "sections": [asdict(each) for each in self.sections],
            "gaps": [asdict(gap) for gap in self.gaps],
            "files": [asdict(file) for file in self.files],
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "ExportManifest":
        """Read what `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, not {_FORMAT}")
        return cls(
            run=int(content["run"]),
            run_id=str(content["runId"]),
            topics=content["topics"],
            positions={name: Position.from_json(each) for name, each in content["brokers"].items()},
            sections=tuple(Section(**each) for each in content["sections"]),
            files=tuple(ExportedFile(**each) for each in content["files"]),
            gaps=tuple(Gap(**each) for each in content["gaps"]),
        )


@dataclass(frozen=True)
class ExportTarget:
    """An export's directory. Can be pickled.

    Args:
        uri: a path of this machine, or a URI of any file system that Arrow reaches.
    """

    uri: str

    @classmethod
    def of(cls, uri: str) -> "ExportTarget":
        """Take a path or URI, which means the same wherever it is looked at."""
        return cls(uri if "://" in uri else str(Path(uri).resolve()))

    @cached_property
    def _place(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.uri:
            return pafs.LocalFileSystem(), self.uri
        try:
            files, root = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            # Without its cause, which has the address with its secret in it.
            raise ExportTargetError(f"{self.shown}: {redacted(error)}") from None
        return files, root.rstrip("/")

    @property
    def shown(self) -> str:
        """The address without secrets, for error texts."""
        return redacted(self.uri)

    @property
    def files(self) -> pafs.FileSystem:
        return self._place[0]

    @property
    def root(self) -> str:
        return self._place[1]

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, pafs.LocalFileSystem)

    def staging(self, run_id: str) -> str:
        """A run's directory aside, below the target."""
        return f"{_STAGING}/{run_id}"

    def staged_path(self, staging: str, path: str) -> str:
        """Where a file is before it is published; both below the target."""
        return f"{staging}/{path.replace('/', '_')}{_STAGED_SUFFIX}"

    def create(self, path: str) -> pa.NativeFile:
        """Open a new file below the target.

        Raises:
            OSError: the file system refuses.
        """
        return self.files.open_output_stream(f"{self.root}/{path}")

    def open(self, path: str) -> pa.NativeFile:
        """Open a file below the target for reading anywhere in it.

        Raises:
            OSError: the file system refuses; FileNotFoundError among others.
        """
        return self.files.open_input_file(f"{self.root}/{path}")

    def sync(self, path: str) -> None:
        """Make a file durable, or the names in a directory; other file systems see to it."""
        if self.is_local:
            sync(Path(self.root, path))

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file below the target, over another one if need be."""
        with self.create(path) as stream:
            stream.write(content)

    def remove(self, path: str) -> None:
        """Remove a file below the target.

        Raises:
            OSError: the file system refuses; FileNotFoundError if there is none.
        """
        self.files.delete_file(f"{self.root}/{path}")

    def make(self, path: str) -> None:
        """Make a directory below the target, and those on the way to it."""
        self.files.create_dir(f"{self.root}/{path}", recursive=True)

    def has(self, path: str) -> bool:
        """Whether there is a file of this name."""
        found = self.files.get_file_info(f"{self.root}/{path}").type
        return bool(found == pafs.FileType.File)

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if there is no such directory."""
        chosen = pafs.FileSelector(f"{self.root}/{path}".rstrip("/"), allow_not_found=True)
        return sorted(info.base_name for info in self.files.get_file_info(chosen))

    def parquet_paths(self) -> list[str]:
        """Every file that a reader of the directory takes for a part of it, sorted."""
        chosen = pafs.FileSelector(self.root, allow_not_found=True, recursive=True)
        below = [
            info.path.removeprefix(self.root).lstrip("/")
            for info in self.files.get_file_info(chosen)
            if info.type == pafs.FileType.File
        ]
        return sorted(
            path
            for path in below
            if not any(part.startswith(("_", ".")) for part in path.split("/"))
        )

    def read(self, path: str) -> bytes:
        with self.files.open_input_stream(f"{self.root}/{path}") as stream:
            content: bytes = stream.read()
            return content

    def move(self, source: str, target: str) -> None:
        """Rename a file, onto another one if need be; both below the target."""
        self.files.move(f"{self.root}/{source}", f"{self.root}/{target}")

    def remove_tree(self, path: str) -> None:
        self.files.delete_dir(f"{self.root}/{path}")


Check = Callable[[], None]
"""Raises ExportTargetError if the job may not publish any more."""


@contextmanager
def locked(target: ExportTarget, lease_seconds: float = LEASE_SECONDS) -> Iterator[Check]:
    """Make the directory if need be, and keep other jobs from it.

    Args:
        lease_seconds: see `Lease`; a directory of this machine is locked without.

    Returns:
        A check for `publish`.

    Raises:
        ExportTargetError: another job is at it.
    """
    target.make("")
    with ExitStack() as lock:
        try:
            if target.is_local:
                lock.enter_context(held(Path(target.root)))
                check: Check = _nothing
            else:
                lease = lock.enter_context(Lease(target, lease_seconds))
                check = partial(_check_lease, target, lease)
        except BlockingIOError as error:
            raise ExportTargetError(f"{target.shown}: another job is at it") from error
        except LeaseTaken as taken:
            raise ExportTargetError(f"{target.shown}: {taken}") from taken
        except OSError as error:
            raise ExportTargetError(
                f"{target.shown} cannot be reserved for this job: {redacted(error)}"
            ) from error
        yield check


def _nothing() -> None:
    """The check of a lock, which cannot be lost."""


def _check_lease(target: ExportTarget, lease: Lease) -> None:
    try:
        lease.check()
    except LeaseLost as lost:
        raise ExportTargetError(f"{target.shown}: {lost}; run again") from lost


def is_export(target: ExportTarget) -> bool:
    """Whether a directory has been exported to."""
    return bool(_runs(target))


def newest_manifest(target: ExportTarget) -> ExportManifest | None:
    """What the last run wrote, None if there was none.

    Raises:
        ExportTargetError: it cannot be read, or the directory has files of others.
    """
    runs = _runs(target)
    if runs:
        return _read_manifest(target, _manifest_path(runs[-1]))
    if strange := [name for name in target.names("") if not name.startswith(("_", "."))]:
        raise ExportTargetError(
            f"{target.shown}/{strange[0]} was not exported here: take another directory"
        )
    return None


def manifests(target: ExportTarget) -> list[ExportManifest]:
    """What all runs wrote, in order; together they name every file that counts.

    Raises:
        ExportTargetError: one is missing, or cannot be read.
    """
    runs = _runs(target)
    if runs != list(range(1, len(runs) + 1)):
        missing = min(set(range(1, runs[-1] + 1)).difference(runs))
        raise ExportTargetError(f"{target.shown}/{_manifest_path(missing)} is missing")
    return [_read_manifest(target, _manifest_path(run)) for run in runs]


def publish(
    target: ExportTarget,
    manifest: ExportManifest,
    move: Move | None = None,
    check: Check = _nothing,
) -> None:
    """Put the files of a run, which are synced, into their places, and its manifest.

    Args:
        move: by default the target's.
        check: see `locked`.

    Raises:
        ExportTargetError: another run was published since this one began, or removed the claim of
            this one.
    """
    move = move or target.move
    staging = target.staging(manifest.run_id)
    runs = _runs(target)
    if runs and runs[-1] >= manifest.run:
        raise ExportTargetError(
            f"{target.shown}: another export was published meanwhile; nothing was done"
        )
    check()
    made = f"{staging}/{_STAGED_MANIFEST}.new"
    target.write(made, manifest.to_json().encode())
    target.sync(made)
    target.sync(staging)
    target.sync(_STAGING)
    _move_checked(move, made, f"{staging}/{_STAGED_MANIFEST}", check)
    target.sync(staging)
    _finish(target, manifest, move, check)


def recover(target: ExportTarget, move: Move | None = None, check: Check = _nothing) -> None:
    """Finish runs whose process died while it was publishing, and remove those that were still
    being made. A run that cannot be finished is rolled back, with a warning.

    No other job may be at it: see `locked`.
    """
    for run_id in target.names(_STAGING):
        staged = f"{target.staging(run_id)}/{_STAGED_MANIFEST}"
        if not target.has(staged):
            target.remove_tree(target.staging(run_id))
            continue
        try:
            _finish(target, _read_manifest(target, staged), move or target.move, check)
        except RolledBack as error:
            log.warning("%s; the next run exports its messages", error)


def discard(target: ExportTarget, run_id: str) -> None:
    """Remove what a run made that is not to be published."""
    staging = target.staging(run_id)
    if run_id in target.names(_STAGING) and not target.has(f"{staging}/{_STAGED_MANIFEST}"):
        target.remove_tree(staging)


def _finish(target: ExportTarget, manifest: ExportManifest, move: Move, check: Check) -> None:
    """Publish a run whose manifest is staged.

    Raises:
        RolledBack: it cannot be published.
        ExportTargetError: see `publish`.
    """
    staging, place = target.staging(manifest.run_id), _manifest_path(manifest.run)
    if target.has(place):
        winner = _read_manifest(target, place)
        if winner.run_id != manifest.run_id:
            kept = {file.path for file in winner.files}
            _roll_back(target, manifest, kept, f"another export was published as {place}")
        # An object store copies before it deletes: this run is published, the copy is left.
        target.remove_tree(staging)
        return
    directories = sorted({file.path.rpartition("/")[0] for file in manifest.files})
    for directory in directories:
        target.make(directory)
    staged = {f"{staging}/{name}" for name in target.names(staging)}
    for file in manifest.files:
        source = target.staged_path(staging, file.path)
        if source not in staged and not target.has(file.path):
            _roll_back(target, manifest, frozenset(), f"its file {file.path} is gone")
    for file in manifest.files:
        source = target.staged_path(staging, file.path)
        if source in staged:
            _move_checked(move, source, file.path, check)
    topics = {directory.partition("/")[0] for directory in directories}
    for directory in (*directories, *sorted(topics), ""):
        target.sync(directory)
    target.make(MANIFESTS)
    check()
    _move_checked(move, f"{staging}/{_STAGED_MANIFEST}", place, check)
    target.sync(MANIFESTS)
    target.sync("")
    target.remove_tree(staging)


def _move_checked(move: Move, source: str, place: str, check: Check) -> None:
    """Move a file; if it fails because the lease was lost, raise the error of `check`."""
    try:
        move(source, place)
    except OSError:
        check()
        raise


def _roll_back(
    target: ExportTarget, manifest: ExportManifest, kept: Collection[str], reason: str
) -> NoReturn:
    """Remove the files of a run that cannot be published.

    Args:
        kept: paths that are another run's.
        reason: why, for people.

    Raises:
        RolledBack: always.
    """
    for file in manifest.files:
        if file.path not in kept and target.has(file.path):
            target.remove(file.path)
    # Last: until it is gone, the next job repeats this.
    target.remove_tree(target.staging(manifest.run_id))
    raise RolledBack(
        f"{target.shown}: run {manifest.run} ({manifest.run_id[:8]}) was not published and is"
        f" removed: {reason}"
    )


def _manifest_path(run: int) -> str:
    return f"{MANIFESTS}/{run:0{_RUN_DIGITS}}.json"


def _runs(target: ExportTarget) -> list[int]:
    return [
        int(name.removesuffix(".json"))
        for name in target.names(MANIFESTS)
        if name.endswith(".json") and name.removesuffix(".json").isdigit()
    ]


def _read_manifest(target: ExportTarget, path: str) -> ExportManifest:
    try:
        return ExportManifest.from_json(target.read(path))
    except (ValueError, KeyError, TypeError) as error:
        raise ExportTargetError(
            f"{target.shown}/{path} is no manifest of an export: {type(error).__name__}: {error}"
        ) from error
