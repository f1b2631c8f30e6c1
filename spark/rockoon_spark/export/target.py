"""The directory of an export: Parquet files, and manifests that list the valid files.

    topic=orders/date=2026-11-20/00000007-0000-0001-9f2c11d0.parquet
    _manifest/00000007.json     result of run 7, with its files; written once
    _staging/9f2c11d0…/         a run that is not finished, or died

Each run continues each broker's log at the offset in the newest manifest. A run that merges small
files exports no messages: its manifest lists the new files, and the files that they replace.
Invariants:

- The files of the export are those of all manifests without the replaced ones (`exported_files`).
  A message is in exactly one file.
- A file is renamed to the directory of its topic and date only after the run's manifest was written
  to `_staging/<run>`. From then on the run will be published: if this process dies, the next job
  does it. Files are moved first, the manifest last. A run cannot be published if another run has
  its number or if staged files are missing; then it is rolled back: its files are removed, and the
  next run exports its messages.
- Replaced files are removed after the manifest was published. If the process dies before that, or
  if the files are to be kept for a time, a later job removes them: `_staging/<run>/replaced.json`
  lists them until then.
- So a reader of the files listed in manifests sees complete runs, and each message once. A reader
  of all Parquet files in the directory sees the same, except while a run is publishing, or after a
  run died until the next one begins, or while replaced files are kept. Spark and Arrow ignore names
  that begin with `_`, and names of staged files do not end with `.parquet`.

The file system needs no feature except rename. One job at a time works in a directory: a local
directory is locked, elsewhere a job holds a lease (`rockoon_spark.export.lease`). If another run
was published during a run, the run publishes nothing.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from rockoon_core.valid_text import redacted
from rockoon_spark.export.lease import LEASE_SECONDS, DirectoryLease, LeaseLost, LeaseTaken
from rockoon_spark.object_stores import StoreReadError, file_system
from rockoon_spark.publish import held, sync
from rockoon_spark.source.log_source import LastRecord

log = logging.getLogger(__name__)

Move = Callable[[str, str], None]
"""Function that renames a file; an existing target is replaced."""

MANIFESTS = "_manifest"
_STAGING = "_staging"
_STAGED_MANIFEST = "manifest.json"
_STAGED_SUFFIX = ".staged"
_REPLACED = "replaced.json"
_CLOCK = "now"
_FORMAT = 1
_MERGED_FORMAT = 2
"""Format of a manifest that replaces files. Former versions would read both, and refuse it."""
_RUN_DIGITS = 8
_READERS_MAX = 8


class ExportTargetError(Exception):
    """A directory cannot be used for an export, or contains something else."""


class RolledBack(ExportTargetError):
    """A run could not be published, and its files were removed."""


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """The messages of one broker in a file, in the order of the broker's log."""

    broker: str
    first_offset: int
    last_offset: int
    """Physical offsets of the first and the last message."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A Parquet file of an export."""

    path: str
    """Path of the file, relative to the export's directory."""
    broker: str
    rows: int
    bytes: int
    crc32: int
    """CRC-32 of the whole file."""
    first_offset: int
    last_offset: int
    """Physical offsets of the first and last message of `broker`."""
    further: Sequence[BrokerRange] = ()
    """In a merged file, the messages of further brokers, which follow those of `broker`."""

    @property
    def ranges(self) -> tuple[BrokerRange, ...]:
        """The messages of each broker, in the order of the file."""
        return (BrokerRange(self.broker, self.first_offset, self.last_offset), *self.further)

    def range_in(self, section: "Section") -> BrokerRange | None:
        """Return the messages of the section's broker; None if the file has none of the section."""
        for each in self.ranges:
            if each.broker == section.broker:
                is_apart = each.first_offset >= section.stop or each.last_offset < section.start
                return None if is_apart else each
        return None

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        if not self.further:
            # Former versions do not know it.
            del content["further"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ExportedFile":
        further = tuple(BrokerRange(**each) for each in content.get("further", ()))
        return cls(**{**content, "further": further})


@dataclass(frozen=True, slots=True)
class ExportPosition:
    """Position up to which a broker's log is exported."""

    end_offset: int
    """Physical offset of a record boundary; all messages below it are exported."""
    last: LastRecord | None = None
    """The last record that was read; None if none was read yet."""

    def to_json(self) -> dict[str, Any]:
        return {"endOffset": self.end_offset, "last": asdict(self.last) if self.last else None}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "ExportPosition":
        last = content["last"]
        return cls(int(content["endOffset"]), LastRecord(**last) if last else None)


@dataclass(frozen=True, slots=True)
class Gap:
    """Range of physical offsets of a log that the export skipped."""

    broker: str
    start: int
    end: int
    """Physical offset at which the skipped range ends, exclusive."""
    reason: str


@dataclass(frozen=True, slots=True)
class Section:
    """A range of a broker's log, read by one task; physical offsets, `stop` is exclusive."""

    broker: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """Result of a run of an export, and the positions at which the next run begins."""

    run: int
    """Number of the run, from 1."""
    run_id: str
    topics: Mapping[str, Any]
    """The `TopicChoice` as JSON; the same in each run."""
    positions: Mapping[str, ExportPosition]
    """Position in the log of each broker, including brokers without new messages."""
    sections: Sequence[Section]
    files: Sequence[ExportedFile]
    gaps: Sequence[Gap] = field(default=())
    replaces: Sequence[str] = field(default=())
    """Paths of the files of former runs whose messages are in `files`."""
    keep_seconds: float = 0.0
    """How long the replaced files stay, for readers that have begun."""

    def to_json(self) -> str:
        content = {
            "format": _MERGED_FORMAT if self.replaces else _FORMAT,
            "run": self.run,
            "runId": self.run_id,
            "topics": self.topics,
            "brokers": {name: each.to_json() for name, each in self.positions.items()},
            "sections": [asdict(each) for each in self.sections],
            "gaps": [asdict(gap) for gap in self.gaps],
            "files": [file.to_json() for file in self.files],
        }
        if self.replaces:
            content |= {"replaces": list(self.replaces), "keepSeconds": self.keep_seconds}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "ExportManifest":
        """Decode a manifest that `to_json` encoded.

        Raises:
            ValueError, KeyError, TypeError: invalid text.
        """
        content = json.loads(text)
        if content["format"] not in (_FORMAT, _MERGED_FORMAT):
            raise ValueError(f"format {content['format']}, expected {_FORMAT} or {_MERGED_FORMAT}")
        return cls(
            run=int(content["run"]),
            run_id=str(content["runId"]),
            topics=content["topics"],
            positions={
                name: ExportPosition.from_json(each) for name, each in content["brokers"].items()
            },
            sections=tuple(Section(**each) for each in content["sections"]),
            files=tuple(ExportedFile.from_json(each) for each in content["files"]),
            gaps=tuple(Gap(**each) for each in content["gaps"]),
            replaces=tuple(map(str, content.get("replaces", ()))),
            keep_seconds=float(content.get("keepSeconds", 0)),
        )


@dataclass(frozen=True)
class ExportTarget:
    """An export's directory. Can be pickled.

    Args:
        uri: a local path, or a URI of a file system that Arrow supports.
    """

    uri: str

    @classmethod
    def of(cls, uri: str) -> "ExportTarget":
        """Create a target from a path or URI; a relative path is made absolute for the tasks."""
        return cls(uri if "://" in uri else str(Path(uri).resolve()))

    @cached_property
    def _location(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.uri:
            return pafs.LocalFileSystem(), self.uri
        try:
            files, root = file_system(self.uri)
        except StoreReadError as error:
            raise ExportTargetError(str(error)) from None
        return files, root.rstrip("/")

    @property
    def shown(self) -> str:
        """URI of the directory without secrets, for error texts."""
        return redacted(self.uri)

    @property
    def files(self) -> pafs.FileSystem:
        return self._location[0]

    @property
    def root(self) -> str:
        return self._location[1]

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, pafs.LocalFileSystem)

    def staging(self, run_id: str) -> str:
        """Return a run's staging directory, relative to the target."""
        return f"{_STAGING}/{run_id}"

    def staged_path(self, staging: str, path: str) -> str:
        """Return the path of a file before it is published, relative to the target."""
        return f"{staging}/{path.replace('/', '_')}{_STAGED_SUFFIX}"

    def create(self, path: str) -> pa.NativeFile:
        """Open a new file below the target.

        Raises:
            OSError: the file system refuses.
        """
        return self.files.open_output_stream(f"{self.root}/{path}")

    def open(self, path: str) -> pa.NativeFile:
        """Open a file below the target for random reads.

        Raises:
            OSError: the file system refuses; FileNotFoundError among others.
        """
        return self.files.open_input_file(f"{self.root}/{path}")

    def sync(self, path: str) -> None:
        """Sync a file or a directory of a local target; other file systems need no sync."""
        if self.is_local:
            sync(Path(self.root, path))

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file below the target; an existing file is replaced."""
        with self.create(path) as stream:
            stream.write(content)

    def remove(self, path: str) -> None:
        """Remove a file below the target.

        Raises:
            OSError: the file system refuses; FileNotFoundError if there is none.
        """
        self.files.delete_file(f"{self.root}/{path}")

    def make(self, path: str) -> None:
        """Create a directory below the target, and its parents."""
        self.files.create_dir(f"{self.root}/{path}", recursive=True)

    def written_seconds(self, path: str) -> float:
        """Return when a file was written, epoch seconds by the clock of its file system.

        Raises:
            OSError: FileNotFoundError if the file does not exist; the file system has no times.
        """
        info = self.files.get_file_info(f"{self.root}/{path}")
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.shown}/{path} does not exist")
        if info.mtime_ns is None:
            raise OSError(f"{self.shown}: its file system does not report when a file was written")
        return float(info.mtime_ns) / 1e9

    def has(self, path: str) -> bool:
        """True if a file of this name exists."""
        found = self.files.get_file_info(f"{self.root}/{path}").type
        return bool(found == pafs.FileType.File)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if the directory does not exist."""
        chosen = pafs.FileSelector(f"{self.root}/{path}".rstrip("/"), allow_not_found=True)
        return sorted(info.base_name for info in self.files.get_file_info(chosen))

    def parquet_paths(self) -> list[str]:
        """Return all files that Spark and Arrow read from the directory, sorted."""
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
        """Rename a file below the target; an existing file is replaced."""
        self.files.move(f"{self.root}/{source}", f"{self.root}/{target}")

    def remove_tree(self, path: str) -> None:
        # Another job removes it if this one was paused for longer than its lease.
        with suppress(FileNotFoundError):
            self.files.delete_dir(f"{self.root}/{path}")


Check = Callable[[], None]
"""Raises ExportTargetError if the job must not publish, because it lost its lease."""


@contextmanager
def locked(target: ExportTarget, lease_seconds: float = LEASE_SECONDS) -> Iterator[Check]:
    """Create the directory if necessary, and hold its lock or lease against other jobs.

    Args:
        lease_seconds: see `DirectoryLease`; not used for a local directory.

    Returns:
        A check for `publish`.

    Raises:
        ExportTargetError: another job works in the directory.
    """
    target.make("")
    with ExitStack() as lock:
        try:
            if target.is_local:
                lock.enter_context(held(Path(target.root)))
                check: Check = _nothing
            else:
                lease = lock.enter_context(DirectoryLease(target, lease_seconds))
                check = partial(_check_lease, target, lease)
        except BlockingIOError as error:
            raise ExportTargetError(
                f"{target.shown}: another job works in this directory"
            ) from error
        except LeaseTaken as taken:
            raise ExportTargetError(f"{target.shown}: {taken}") from taken
        except OSError as error:
            raise ExportTargetError(
                f"{target.shown} cannot be locked: {redacted(error)}"
            ) from error
        yield check


def _nothing() -> None:
    """Check nothing: a lock cannot be lost, unlike a lease."""


def _check_lease(target: ExportTarget, lease: DirectoryLease) -> None:
    try:
        lease.check()
    except LeaseLost as lost:
        raise ExportTargetError(f"{target.shown}: {lost}; run again") from lost


def is_export(target: ExportTarget) -> bool:
    """True if a directory contains an export."""
    return bool(_runs(target))


def newest_manifest(target: ExportTarget) -> ExportManifest | None:
    """Return the manifest of the last run; None if there was no run.

    Raises:
        ExportTargetError: it cannot be read, or the directory contains other files.
    """
    runs = _runs(target)
    if runs:
        return _read_manifest(target, _manifest_path(runs[-1]))
    if unknown := [name for name in target.names("") if not name.startswith(("_", "."))]:
        raise ExportTargetError(
            f"{target.shown}/{unknown[0]} is not part of an export: use another directory"
        )
    return None


def manifests(target: ExportTarget) -> list[ExportManifest]:
    """Return the manifests of all runs, in order.

    Raises:
        ExportTargetError: a manifest is missing, or cannot be read.
    """
    runs = _runs(target)
    if runs != list(range(1, len(runs) + 1)):
        missing = min(set(range(1, runs[-1] + 1)).difference(runs))
        raise ExportTargetError(f"{target.shown}/{_manifest_path(missing)} is missing")
    # An object store needs some milliseconds for each, and there is one for each run.
    with ThreadPoolExecutor(_READERS_MAX) as readers:
        return list(readers.map(lambda run: _read_manifest(target, _manifest_path(run)), runs))


def exported_files(runs: Iterable[ExportManifest]) -> list[ExportedFile]:
    """Return the files of an export: those of all runs, without the ones that a merge replaced.

    Args:
        runs: all manifests, from `manifests`.

    Raises:
        ExportTargetError: a manifest replaces a file that no earlier manifest has.
    """
    found: dict[str, ExportedFile] = {}
    for run in runs:
        for path in run.replaces:
            if found.pop(path, None) is None:
                raise ExportTargetError(f"run {run.run} replaces {path}, which no earlier run has")
        found |= {file.path: file for file in run.files}
    return list(found.values())


def publish(
    target: ExportTarget,
    manifest: ExportManifest,
    move: Move | None = None,
    check: Check = _nothing,
) -> None:
    """Publish the files of a run, which must be synced, and then its manifest.

    Args:
        move: renames a file; by default the target's method.
        check: see `locked`.

    Raises:
        ExportTargetError: another run was published since this one began, or another job removed
            the claim of this one.
    """
    move = move or target.move
    staging = target.staging(manifest.run_id)
    runs = _runs(target)
    if runs and runs[-1] >= manifest.run:
        raise ExportTargetError(
            f"{target.shown}: another export was published during this run; nothing was changed"
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
    """Publish runs whose process died while publishing, remove runs that died earlier, and remove
    replaced files whose time is over.

    A run that cannot be published is rolled back, with a warning. The caller must hold the lock:
    see `locked`.
    """
    for run_id in target.names(_STAGING):
        staging = target.staging(run_id)
        staged = f"{staging}/{_STAGED_MANIFEST}"
        if not target.has(staged):
            if (merge := _published_merge(target, run_id)) is not None:
                _remove_replaced(target, merge)
            else:
                target.remove_tree(staging)
            continue
        try:
            _finish(target, _read_manifest(target, staged), move or target.move, check)
        except RolledBack as error:
            log.warning("%s; the next run repeats it", error)


def kept_paths(target: ExportTarget) -> list[str]:
    """Return the paths of replaced files that are kept for readers that have begun."""
    merges = [_published_merge(target, run_id) for run_id in target.names(_STAGING)]
    return [path for merge in merges if merge is not None for path in merge.replaces]


def discard(target: ExportTarget, run_id: str) -> None:
    """Remove the staging directory of a run, unless the run is to be published, or the directory
    lists replaced files that are to be removed later.
    """
    staging = target.staging(run_id)
    if (
        run_id in target.names(_STAGING)
        and not target.has(f"{staging}/{_STAGED_MANIFEST}")
        and _published_merge(target, run_id) is None
    ):
        target.remove_tree(staging)


def _published_merge(target: ExportTarget, run_id: str) -> ExportManifest | None:
    """Return the manifest of a published merge whose replaced files are not yet removed.

    The result is None for a merge that is not published. Its staging directory can list files to
    replace: the removal of the directory after a rollback may have been interrupted.
    """
    path = f"{target.staging(run_id)}/{_REPLACED}"
    if not target.has(path):
        return None
    merge = _read_manifest(target, path)
    published = _manifest_path(merge.run)
    is_published = target.has(published) and _read_manifest(target, published).run_id == run_id
    return merge if is_published else None


def _finish(target: ExportTarget, manifest: ExportManifest, move: Move, check: Check) -> None:
    """Publish the files of a run whose manifest is staged.

    Raises:
        RolledBack: it cannot be published.
        ExportTargetError: see `publish`.
    """
    staging, path = target.staging(manifest.run_id), _manifest_path(manifest.run)
    if target.has(path):
        winner = _read_manifest(target, path)
        if winner.run_id != manifest.run_id:
            kept = {file.path for file in winner.files}
            _roll_back(target, manifest, kept, f"another export was published as {path}")
        # This run was published, but an object store copies before it deletes the source.
        target.remove(f"{staging}/{_STAGED_MANIFEST}")
        _remove_replaced(target, manifest)
        return
    directories = sorted({file.path.rpartition("/")[0] for file in manifest.files})
    for directory in directories:
        target.make(directory)
    staged = {f"{staging}/{name}" for name in target.names(staging)}
    for file in manifest.files:
        source = target.staged_path(staging, file.path)
        if source not in staged and not target.has(file.path):
            _roll_back(target, manifest, frozenset(), f"its file {file.path} is missing")
    for file in manifest.files:
        source = target.staged_path(staging, file.path)
        if source in staged:
            _move_checked(move, source, file.path, check)
    topics = {directory.partition("/")[0] for directory in directories}
    for directory in (*directories, *sorted(topics), ""):
        target.sync(directory)
    target.make(MANIFESTS)
    if manifest.replaces:
        target.write(f"{staging}/{_REPLACED}", manifest.to_json().encode())
        target.sync(f"{staging}/{_REPLACED}")
        target.sync(staging)
    check()
    _move_checked(move, f"{staging}/{_STAGED_MANIFEST}", path, check)
    target.sync(MANIFESTS)
    target.sync("")
    _remove_replaced(target, manifest)


def _remove_replaced(target: ExportTarget, manifest: ExportManifest) -> None:
    """Remove the files that a published run replaces, unless they are to be kept for longer, and
    then the run's staging directory.
    """
    staging = target.staging(manifest.run_id)
    if manifest.replaces and manifest.keep_seconds:
        # By the clock of the file system, because jobs run on different machines.
        try:
            replaced = target.written_seconds(f"{staging}/{_REPLACED}")
            target.write(f"{staging}/{_CLOCK}", b"")
            if target.written_seconds(f"{staging}/{_CLOCK}") - replaced < manifest.keep_seconds:
                return
        except FileNotFoundError:
            # Another job has removed the files: this job was paused for longer than its lease.
            target.remove_tree(staging)
            return
    for path in manifest.replaces:
        with suppress(FileNotFoundError):
            target.remove(path)
    for directory in sorted({path.rpartition("/")[0] for path in manifest.replaces}):
        target.sync(directory)
    target.remove_tree(staging)


def _move_checked(move: Move, source: str, path: str, check: Check) -> None:
    """Move a file; if it fails because the lease was lost, raise the error of `check`."""
    try:
        move(source, path)
    except OSError:
        check()
        raise


def _roll_back(
    target: ExportTarget, manifest: ExportManifest, kept: Collection[str], reason: str
) -> NoReturn:
    """Remove the files of a run that cannot be published.

    Args:
        kept: paths that belong to another run.
        reason: for the error text.

    Raises:
        RolledBack: always.
    """
    for file in manifest.files:
        if file.path not in kept and target.has(file.path):
            target.remove(file.path)
    # Removed last: while it exists, the next job repeats the rollback.
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
            f"{target.shown}/{path} is not a valid manifest of an export: "
            f"{type(error).__name__}: {error}"
        ) from error
