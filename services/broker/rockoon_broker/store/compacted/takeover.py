"""Slow steps of adopting a generation: search, verify, activate, remove.

`Worker` runs these calls on its own thread and returns the results to the owner's thread, which
decides. Only `activate` changes the active generation, by one rename.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from rockoon_broker.store.compacted.open_generation import (
    OpenGeneration,
    check_file,
    open_generation,
)
from rockoon_broker.store.log.directory import DoomedDirectory, RemovalRefused, removal
from rockoon_core.disk import Disk
from rockoon_format.file_names import file_name_to_offset
from rockoon_format.generation import (
    CURRENT_FILE,
    INCOMING_PREFIX,
    MANIFEST_FILE,
    GenerationError,
    Manifest,
    encode_current,
    generation_name,
    part_checks,
    part_names,
)

REFUSED_PREFIX = ".refused-"
REASON_FILE = "reason.txt"
MANIFEST_BYTES_MAX = 64 << 20
# Between two steps the thread pauses as long as it worked, to leave CPU to the owner's thread.
_PAUSE_SECONDS_MIN = 0.002
_PAUSE_SECONDS_MAX = 0.2

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class TakeoverStopped(Exception):
    """The store is being closed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generation that is not verified yet."""

    number: int
    directory: Path
    manifest: Manifest | None
    fault: str = ""
    """Error if there is no valid manifest."""


class Verified(NamedTuple):
    """A generation whose bytes were all checked."""

    directory: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Offer:
    """A generation stored beside the others under a temporary name.

    Attributes:
        done: called once with the reason of the refusal, or with an empty text.
        leader_marks: for a copy of the leader's active generation: topic to the physical
            offset below which the leader shows nothing. None: not from the leader, check it fully.
    """

    directory: Path
    manifest: Manifest
    done: Callable[[str], None]
    leader_marks: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class GenerationRefusal:
    generation: int
    reason: str
    at_ms: int


class Worker:
    """A thread that runs posted work one item after the other, and its queues."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._work: deque[Callable[[], Iterator[Callable[[], None]]]] = deque()
        self._finished: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="store-compaction", daemon=True)
        self._resumed_seconds = 0.0

    def post(self, work: Callable[[], _T], then: Callable[[_T | Exception], None]) -> None:
        """Post work; `complete` calls `then` with its result or exception."""

        def done() -> Iterator[Callable[[], None]]:
            try:
                outcome = work()
            except (GenerationError, OSError, TakeoverStopped) as error:
                failure: Exception = error
                yield lambda: then(failure)
            except Exception as error:
                # A bug: pass it to the owner as well, so that the owner does not wait forever.
                bug = error
                yield lambda: then(bug)
                raise
            else:
                yield lambda: then(outcome)

        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            self._work.append(done)
            self._changed.notify()

    def complete(self) -> None:
        """Call the callbacks of finished work, on the owner's thread."""
        while True:
            with self._changed:
                if not self._finished:
                    return
                finished = self._finished.popleft()
            finished()

    def stop(self) -> None:
        """End the thread after its current step; pending work is left undone."""
        self.stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def pause(self) -> None:
        """Yield the CPU to other threads; raises Stopped when the store is being closed."""
        worked = time.monotonic() - self._resumed_seconds
        if self.stopping.wait(min(max(worked, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)):
            raise TakeoverStopped
        self._resumed_seconds = time.monotonic()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._work and not self.stopping.is_set():
                    self._changed.wait()
                if self.stopping.is_set():
                    return
                work = self._work.popleft()
            self._resumed_seconds = time.monotonic()
            for finished in work():
                with self._changed:
                    self._finished.append(finished)


def numbered(home: Path) -> list[int]:
    """Return the numbers of the generations in a directory, ascending."""
    found = []
    for name in [path.name for path in home.iterdir()] if home.is_dir() else []:
        with contextlib.suppress(ValueError):
            found.append(file_name_to_offset(name))
    return sorted(found)


def read_manifest(directory: Path, disk: Disk) -> Manifest:
    """Return the manifest of a generation; GenerationError if it is missing, OSError for the
    disk."""
    path = directory / MANIFEST_FILE
    try:
        if disk.facts(path).bytes > MANIFEST_BYTES_MAX:
            raise GenerationError(f"{MANIFEST_FILE} has more than {MANIFEST_BYTES_MAX} bytes")
        fd = disk.open_reading(path)
    except FileNotFoundError as error:
        raise GenerationError(f"it has no {MANIFEST_FILE}") from error
    try:
        manifest = Manifest.from_json(disk.pread(fd, MANIFEST_BYTES_MAX, 0))
    finally:
        disk.close(fd)
    return manifest


def next_candidate(home: Path, above: int, disk: Disk) -> Candidate | None:
    """Return the first generation with a larger number; OSError for the disk."""
    number = next((number for number in numbered(home) if number > above), None)
    if number is None:
        return None
    directory = home / generation_name(number)
    try:
        manifest = read_manifest(directory, disk)
    except GenerationError as error:
        return Candidate(number, directory, None, str(error))
    if manifest.generation != number:
        fault = f"it states number {manifest.generation}"
        return Candidate(number, directory, None, fault)
    return Candidate(number, directory, manifest)


def place(directory: Path, home: Path, number: int, disk: Disk, replaces: bool = False) -> None:
    """Rename a generation to its number; GenerationError if it exists, OSError for the disk.

    Args:
        replaces: remove an existing one with this number, which was never active here.
    """
    target = home / generation_name(number)
    if replaces and target.exists():
        remove(target, disk)
    if target.exists():
        raise GenerationError(f"generation {number} already exists")
    disk.move_directory(directory, target)


def verify(
    candidate: Candidate, disk: Disk, worker: Worker, active: Verified | None = None
) -> OpenGeneration:
    """Make a generation durable and check every byte; return it open.

    Files that are hard links to those of the active generation were checked with that one.

    Args:
        active: the active generation, None if there is none.

    Raises:
        GenerationError: a file does not match; the message names it.
        Stopped: the store is being closed.
        OSError: the disk.
    """
    assert candidate.manifest is not None
    directory = candidate.directory
    linked = _linked(candidate.manifest, directory, active, disk)
    for path in sorted(directory.iterdir()):
        if path.name not in linked:
            _sync_file(path, disk)
            worker.pause()
    # Also the names of its files and directories: their writer may have crashed before a sync.
    for named in (directory, directory.parent, directory.parent.parent):
        disk.sync_directory(named)
    if read_manifest(directory, disk) != candidate.manifest:
        raise GenerationError("its manifest was changed after it was offered")
    for part in candidate.manifest.parts:
        name, size, sha256 = part.files[0]
        if name not in linked:
            check_file(directory / name, size, sha256, disk, worker.pause)
    opened = open_generation(directory, candidate.manifest, disk, worker.pause)
    try:
        for part, entries in zip(candidate.manifest.parts, opened.parts, strict=True):
            names = part_names(part.number)
            if linked.issuperset(names):
                continue
            records = directory / names[0]
            try:
                for _ in part_checks(disk.map_reading(records), entries):
                    worker.pause()
            except GenerationError as error:
                raise GenerationError(f"{records.name}: {error}") from error
    except BaseException:
        opened.close()
        raise
    return opened


def _linked(
    manifest: Manifest, directory: Path, active: Verified | None, disk: Disk
) -> frozenset[str]:
    """Return the names of a generation's files that are files of the active one too."""
    if active is None:
        return frozenset()
    held = files_by_checksum(active.directory, active.manifest)
    return frozenset(
        file.name
        for part in manifest.parts
        for file in part.files
        if (same := held.get(file.sha256)) and disk.is_same_file(same, directory / file.name)
    )


def files_by_checksum(directory: Path, manifest: Manifest) -> dict[str, Path]:
    """Return the paths of a generation's files by their SHA-256."""
    return {file.sha256: directory / file.name for part in manifest.parts for file in part.files}


def activate(home: Path, number: int, disk: Disk) -> None:
    """Write `current` durably. After an OSError, either generation may be active."""
    disk.replace_file(home / CURRENT_FILE, encode_current(number))


def move_refused(home: Path, number: int, reason: str, disk: Disk) -> None:
    """Rename a refused generation so that it is no longer found; only the newest one is kept."""
    for path in home.glob(f"{REFUSED_PREFIX}*"):
        remove(path, disk)
    directory = home / generation_name(number)
    with contextlib.suppress(OSError):
        disk.unlink(directory / REASON_FILE)
        fd = disk.open(directory / REASON_FILE, create=True)
        try:
            disk.write_all(fd, f"{reason}\n".encode(), 0)
        finally:
            disk.close(fd)
    disk.move_directory(directory, home / f"{REFUSED_PREFIX}{directory.name}")


def remove(directory: Path, disk: Disk) -> None:
    """Delete a directory tree; if the disk refuses, logs it and leaves the rest."""
    try:
        for _ in removal(DoomedDirectory(directory), disk):
            pass
    except RemovalRefused as refusal:
        log.warning("could not delete %s: %s", directory, refusal)


def stale(home: Path, active: int) -> list[Path]:
    """Return leftovers of earlier runs: unfinished uploads and generations before the active one.

    Excludes files of resumable uploads, whose names have no underscore.
    """
    if not home.is_dir():
        return []
    before = [home / generation_name(number) for number in numbered(home) if number < active]
    return [*sorted(home.glob(f"{INCOMING_PREFIX}_*")), *before]


def _sync_file(path: Path, disk: Disk) -> None:
    fd = disk.open(path)
    try:
        disk.fdatasync(fd)
        # A sync before this one may have failed and its writer ended with it. So the comparison
        # must read from the disk and not from the page cache.
        disk.drop_clean(fd)
    finally:
        disk.close(fd)
