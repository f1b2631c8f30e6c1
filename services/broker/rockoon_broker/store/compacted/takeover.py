"""Takeover of a new generation, the slow part: finding, reading, checking, removing.

`Worker` makes these calls on a thread of its own and hands the results back; what they mean is
decided by the owner's thread. Each function here is one call; none changes what is in force but
`put_in_force`, in one rename.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rockoon_broker.store.compacted.open_generation import (
    OpenGeneration,
    check_file,
    open_generation,
)
from rockoon_broker.store.log.removals import DoomedDirectory, RemovalRefused, removal
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
# Between two steps the thread rests as long as it worked, so that it is not in the owner's way.
_PAUSE_SECONDS_MIN = 0.002
_PAUSE_SECONDS_MAX = 0.2

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The store is being closed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generation that nobody has verified."""

    number: int
    directory: Path
    manifest: Manifest | None
    fault: str = ""
    """Why there is no manifest."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A generation that lies beside the others under a name of no meaning.

    Attributes:
        done: called once with the reason why it was refused, or with an empty text.
        leader_marks: of one that the log's leader has in force: below which physical offsets
            nothing of topics is shown there. None: whoever made it may have made a mistake.
    """

    directory: Path
    manifest: Manifest
    done: Callable[[str], None]
    leader_marks: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A generation that was not taken."""

    generation: int
    reason: str
    at_ms: int


class Worker:
    """One thread that does one thing after the other, and what it shares with the owner."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._work: deque[Callable[[], Iterator[Callable[[], None]]]] = deque()
        self._finished: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="store-compaction", daemon=True)
        self._resumed_seconds = 0.0

    def post(self, work: Callable[[], _T], then: Callable[[_T | Exception], None]) -> None:
        """Have something done; the owner hears of it, or of the exception, in `complete`."""

        def done() -> Iterator[Callable[[], None]]:
            try:
                outcome = work()
            except (GenerationError, OSError, Stopped) as error:
                failure: Exception = error
                yield lambda: then(failure)
            except Exception as error:
                # A bug: the owner meets it too, and does not wait for what never comes.
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
        """Tell the owner, on its own thread, what was finished."""
        while True:
            with self._changed:
                if not self._finished:
                    return
                finished = self._finished.popleft()
            finished()

    def stop(self) -> None:
        """End the thread after the step it is in; what is still posted is left undone."""
        self.stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def pause(self) -> None:
        """Let others run; raises Stopped when the store is being closed."""
        worked = time.monotonic() - self._resumed_seconds
        if self.stopping.wait(min(max(worked, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)):
            raise Stopped
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
    """The numbers of the generations that lie in a directory, ascending."""
    found = []
    for name in [path.name for path in home.iterdir()] if home.is_dir() else []:
        with contextlib.suppress(ValueError):
            found.append(file_name_to_offset(name))
    return sorted(found)


def read_manifest(directory: Path, disk: Disk) -> Manifest:
    """The manifest of a generation; GenerationError if it has none, OSError for the disk."""
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


def look(home: Path, above: int, disk: Disk) -> Candidate | None:
    """The first generation with a number above one; OSError for the disk."""
    number = next((number for number in numbered(home) if number > above), None)
    if number is None:
        return None
    directory = home / generation_name(number)
    try:
        manifest = read_manifest(directory, disk)
    except GenerationError as error:
        return Candidate(number, directory, None, str(error))
    if manifest.generation != number:
        fault = f"it says that it is generation {manifest.generation}"
        return Candidate(number, directory, None, fault)
    return Candidate(number, directory, manifest)


def place(directory: Path, home: Path, number: int, disk: Disk, replaces: bool = False) -> None:
    """Give a generation its number; GenerationError if it is taken, OSError for the disk.

    Args:
        replaces: one that has it, and was never in force here, goes.
    """
    target = home / generation_name(number)
    if replaces and target.exists():
        remove(target, disk)
    if target.exists():
        raise GenerationError(f"there is a generation {number} already")
    disk.move_directory(directory, target)


def verify(candidate: Candidate, disk: Disk, worker: Worker) -> OpenGeneration:
    """Make a generation durable, and check every byte of it; returns it open.

    Raises:
        GenerationError: something is not what it should be; it says where.
        Stopped: the store is being closed.
        OSError: the disk.
    """
    assert candidate.manifest is not None
    directory = candidate.directory
    for path in sorted(directory.iterdir()):
        _sync_file(path, disk)
        worker.pause()
    # The names of its files, its own, and that of the directory of all: who made that may be gone.
    for named in (directory, directory.parent, directory.parent.parent):
        disk.sync_directory(named)
    if read_manifest(directory, disk) != candidate.manifest:
        raise GenerationError("its manifest was changed after it was put there")
    for part in candidate.manifest.parts:
        records = directory / part_names(part.number)[0]
        check_file(records, part.records_bytes, part.records_sha256, disk, worker.pause)
    opened = open_generation(directory, candidate.manifest, disk, worker.pause)
    try:
        for part, entries in zip(candidate.manifest.parts, opened.parts, strict=True):
            records = directory / part_names(part.number)[0]
            try:
                for _ in part_checks(disk.map_reading(records), entries):
                    worker.pause()
            except GenerationError as error:
                raise GenerationError(f"{records.name}: {error}") from error
    except BaseException:
        opened.close()
        raise
    return opened


def put_in_force(home: Path, number: int, disk: Disk) -> None:
    """Write `current`, durably. Raises OSError, and then either of two may be in force."""
    disk.replace_file(home / CURRENT_FILE, encode_current(number))


def set_aside(home: Path, number: int, reason: str, disk: Disk) -> None:
    """Give a refused generation a name under which nobody looks for it; one is kept, the newest."""
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
    """Delete a directory with all in it; what the disk refuses is left, and told in the log."""
    try:
        for _ in removal(DoomedDirectory(directory), disk):
            pass
    except RemovalRefused as refusal:
        log.warning("%s is not deleted: %s", directory, refusal)


def stale(home: Path, in_force: int) -> list[Path]:
    """What earlier runs left: what was on its way, and generations before the one in force.

    Not the files of uploads, whose names have no underscore: they go on.
    """
    if not home.is_dir():
        return []
    before = [home / generation_name(number) for number in numbered(home) if number < in_force]
    return [*sorted(home.glob(f"{INCOMING_PREFIX}_*")), *before]


def _sync_file(path: Path, disk: Disk) -> None:
    fd = disk.open(path)
    try:
        disk.fdatasync(fd)
        # A sync before this one may have failed, and whoever made the file be gone with that: what
        # is compared then has to come from the disk.
        disk.drop_clean(fd)
    finally:
        disk.close(fd)
