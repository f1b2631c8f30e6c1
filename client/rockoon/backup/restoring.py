"""Restore of a backup: directories for a new cluster.

    DIRECTORY/
        etcd.snapshot    routes, for `etcdutl snapshot restore`
        routes           the same, for the setting import_routes of one nameserver
        LOG/             store of a broker, one for each log
        offset/          store of the offset service
        report.json      offsets of each group, with the reason
        unfinished.json  while a restore runs, and after a failure: its backups and its results
        lock             excludes a second restore

A store or file is complete when it has its name; until then its name ends in ".partial". So a
restore of the same backups continues one that failed or was killed. All bytes that are read from
the backup are compared with their checksums.

The packages of the services write the stores and must be installed on this machine.
"""

import contextlib
import errno
import hashlib
import importlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rockoon.backup.destination import (
    PARTIAL_SUFFIX,
    BackupError,
    Destination,
    disk_failures,
    locked_directory,
    sync_directory,
)
from rockoon.backup.manifest import BackupFile, BackupManifest, LogBackup
from rockoon_core.clock import wall_clock_ms
from rockoon_core.disk import LOCK_FILE
from rockoon_core.restored_stores import restored_store_id
from rockoon_core.valid_text import exception_text
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import MAGIC_BLANK
from rockoon_proto.v1.nameserver_pb2 import ReadRoutesReply

ROUTES, OFFSET, REPORT = "routes", "offset", "report.json"
SNAPSHOT, UNFINISHED = "etcd.snapshot", "unfinished.json"
LOG_DIRECTORY = "commitlog"
# Errors of a write to a disk without room.
FULL = (errno.ENOSPC, errno.EDQUOT)
_BLANK = struct.Struct(">ii")

Begins = dict[str, dict[str, dict[int, int]]]
"""Log → topic → queue id → offset of the oldest message."""


def checked(destination: Destination, file: BackupFile) -> Iterator[bytes]:
    """Yield the content of a file, and compare it with its checksum. Raises BackupError: the file
    is missing or damaged; after the last chunk, if a byte is wrong."""
    digest, size = hashlib.sha256(), 0
    for chunk in destination.read(file.name):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    place = f"{destination.shown}/{file.name}"
    if size != file.bytes:
        raise BackupError(f"{place} is damaged: it has {size} bytes instead of {file.bytes}")
    if digest.hexdigest() != file.sha256:
        raise BackupError(f"{place} is damaged: its checksum does not match")


def faults(destination: Destination, manifest: BackupManifest) -> Iterator[str]:
    """Read every file of a backup; yield a sentence about each missing or damaged one."""
    for file in manifest.files():
        try:
            for _ in checked(destination, file):
                pass
        except BackupError as fault:
            yield str(fault)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's offset of a queue after a restore.

    Attributes:
        group, member: the reader; `member` is empty for a group's own progress.
        topic, broker, queue_id: the queue.
        before, offset: in the backup, and in the restored store.
        end: end of the queue in the restored log; None: the log was not restored.
        deleted: messages from `offset` on that retention had deleted before the backup.
        explanation: as `rockoon offsets why` prints it.
    """

    group: str
    member: str
    topic: str
    broker: str
    queue_id: int
    before: int
    offset: int
    end: int | None
    deleted: int
    explanation: str

    @property
    def has_gap(self) -> bool:
        return self.before != self.offset or self.deleted > 0


@dataclass(slots=True)
class RestoreReport:
    """Result of a restore.

    Attributes:
        backup: name of the backup of the logs.
        restored: names in the directory that were written.
        logs: log → physical offset of the cut.
        groups: offsets of all readers.
    """

    backup: str
    restored: list[str] = field(default_factory=list)
    logs: dict[str, int] = field(default_factory=dict)
    groups: list[GroupOffset] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """State of a restore that failed or was killed.

    Attributes:
        backups: names of the backups of logs, progress and routes.
        targets: names in the directory that the restore writes.
        begins: offset of the oldest message of each queue of the restored logs.
    """

    backups: Sequence[str]
    targets: Sequence[str]
    begins: Begins


def read_unfinished(directory: Path) -> Unfinished | None:
    """Read the state of the unfinished restore in a directory; None if there is none. Raises
    BackupError: the file is damaged or cannot be read."""
    path = directory / UNFINISHED
    if not path.exists():
        return None
    try:
        with disk_failures(str(path), "read"):
            found = json.loads(path.read_bytes())
        logs, progress, routes = found["backups"]
        begins = {
            log: {
                topic: {int(queue_id): begin for queue_id, begin in queues.items()}
                for topic, queues in topics.items()
            }
            for log, topics in found["begins"].items()
        }
        return Unfinished((logs, progress, routes), found["targets"], begins)
    except (ValueError, TypeError, KeyError, AttributeError) as failure:
        raise BackupError(f"{path} is damaged: restore into a new directory") from failure


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """The backups of each part. They differ only if the operator says so. `logs`, `progress`,
    `routes`: manifests."""

    logs: BackupManifest
    progress: BackupManifest
    routes: BackupManifest

    def names(self) -> tuple[str, str, str]:
        """Return the names of the backups of logs, progress and routes."""
        return self.logs.backup, self.progress.backup, self.routes.backup

    def explain(self) -> str:
        """Return the beginning of the explanation of each restored offset."""
        logs, progress = self.logs, self.progress
        text = (
            f"restored from backup {logs.backup}: progress of {moment(progress.progress_ms)}, "
            f"messages up to {moment(max((each.cut_ms for each in logs.logs), default=0))}"
        )
        if progress.backup > logs.backup:
            text += f"; progress is of the later backup {progress.backup}"
        elif progress.backup < logs.backup:
            text += (
                f"; progress is of the earlier backup {progress.backup}, so messages that were "
                "read after it are delivered again"
            )
        return text


def moment(epoch_ms: int) -> str:
    """Return a time in UTC, for example "2026-01-31T12:00:00Z"."""
    import datetime

    found = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    return found.isoformat(timespec="seconds").replace("+00:00", "Z")


class Restore:
    """Writes the directories of one restore. `report`: called with a sentence about each step."""

    def __init__(
        self,
        destination: Destination,
        sources: RestoreSources,
        directory: Path,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._destination = destination
        self._sources = sources
        self._directory = directory
        self._report = report
        # Names in the directory that this restore, or the one that it continues, writes.
        self._targets: list[str] = []
        self._begins: Begins = {}

    def run(self, only: Collection[str] = ()) -> RestoreReport:
        """Restore; see the module. `only`: names in the directory; empty: all. Raises BackupError:
        a target exists, another restore runs, the backup is damaged, or a store cannot be
        opened."""
        logs = self._sources.logs
        names = [ROUTES, OFFSET, *(log.name for log in logs.logs)]
        if len({*names, LOCK_FILE}) <= len(names):
            raise BackupError("a log has the name of another part of the restore")
        if unknown := sorted(set(only).difference(names)):
            raise BackupError(f"{unknown[0]} is not in the backup: it has {', '.join(names)}")
        wanted = [each for each in names if not only or each in only]
        busy = "another restore writes there, wait until it ends"
        with locked_directory(self._directory, busy):
            self._continue()
            found = [each for each in wanted if is_used(self._directory / each)]
            if others := [each for each in found if each not in self._targets]:
                raise BackupError(
                    f"{self._directory / others[0]} exists: restore into a new directory"
                )
            created_again: set[str] = set()
            if OFFSET in wanted and OFFSET not in found:
                # It fails if routes are damaged: before the directory belongs to these backups.
                created_again = self._created_again()
            self._targets += [each for each in wanted if each not in self._targets]
            self._write_unfinished()
            result = self._restored(wanted, found, created_again)
            if all(is_used(self._directory / each) for each in self._targets):
                (self._directory / UNFINISHED).unlink()
                sync_directory(self._directory)
        return result

    def _continue(self) -> None:
        """Continue the unfinished restore in the directory. Raises BackupError if that restore is
        of other backups."""
        unfinished = read_unfinished(self._directory)
        if unfinished is None:
            return
        if unfinished.backups != self._sources.names():
            logs, progress, routes = unfinished.backups
            options = f"--backup {logs}"
            options += f" --progress-of {progress}" if progress != logs else ""
            options += f" --routes-of {routes}" if routes != logs else ""
            raise BackupError(
                f"{self._directory} has an unfinished restore: continue it with {options}, or "
                "restore into a new directory"
            )
        self._targets, self._begins = [*unfinished.targets], unfinished.begins

    def _write_unfinished(self) -> None:
        content = asdict(Unfinished(self._sources.names(), self._targets, self._begins))
        with self._new(UNFINISHED) as partial:
            write_file(partial, [json.dumps(content).encode()])

    def _restored(
        self, wanted: Collection[str], found: Collection[str], created_again: Collection[str]
    ) -> RestoreReport:
        """Restore logs, offsets and routes, except those that an unfinished restore has completed.

        Args:
            wanted: names in the directory.
            found: names that are complete.
            created_again: see `_created_again`.
        """
        logs = self._sources.logs
        result = RestoreReport(logs.backup, [*wanted])
        for log in logs.logs:
            if log.name in wanted:
                if log.name not in found:
                    self._restore_log(log)
                result.logs[log.name] = log.records_end
                self._report(f"restored the log of {log.name} up to {log.records_end}")
        if OFFSET in found:
            report = json.loads((self._directory / REPORT).read_bytes())
            result.groups = [GroupOffset(**each) for each in report["groups"]]
        elif OFFSET in wanted:
            self._restore_offsets(result, created_again)
        if ROUTES in wanted and ROUTES not in found:
            self._restore_routes()
        return result

    def _restore_routes(self) -> None:
        service = service_module("rockoon_nameserver.etcd_snapshot")
        routes = self._sources.routes
        with self._new(ROUTES) as partial:
            write_file(partial, checked(self._destination, routes.routes))
            with self._new(SNAPSHOT) as snapshot:
                service.restore(snapshot, partial, routes.cluster)

    @contextlib.contextmanager
    def _new(self, name: str) -> Iterator[Path]:
        """Return a temporary path that gets its name if no error is raised."""
        partial = self._directory / f"{name}{PARTIAL_SUFFIX}"
        if partial.is_dir():
            shutil.rmtree(partial)
        try:
            yield partial
            complete(partial)
            partial.replace(self._directory / name)
            sync_directory(self._directory)
        except BackupError:
            raise
        except OSError as failure:
            step = "make room on this disk" if failure.errno in FULL else "repair the cause"
            raise BackupError(
                f"{failure.filename or partial} cannot be written: {failure.strerror or failure}; "
                f"{step} and repeat the command, which continues"
            ) from failure
        except Exception as failure:
            # Of the services' packages, whose classes are not known here.
            raise BackupError(f"{name} cannot be restored: {exception_text(failure)}") from failure

    def _store_id(self, kind: str, log: str) -> str:
        return restored_store_id(self._sources.logs.cluster_id, kind, log)

    def _restore_log(self, log: LogBackup) -> None:
        service = service_module("rockoon_broker.restoring")
        with self._new(log.name) as partial:
            for each in (partial, partial / LOG_DIRECTORY):
                each.mkdir(mode=0o700, parents=True)
            self._write_log(partial / LOG_DIRECTORY, log)
            for name, file in log.generation_files.items():
                (partial / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_file(partial / name, checked(self._destination, file))
            self._begins[log.name] = service.restore(
                partial,
                self._store_id("broker", log.name),
                log.file_bytes,
                log.records_end,
                log.queue_ends(),
                log.dropped,
                log.overtaken,
            )
            # Before the store gets its name: a later restore needs the begins of complete stores.
            self._write_unfinished()

    def _write_log(self, directory: Path, log: LogBackup) -> None:
        """Write the CommitLog files. The bytes after the last record of a file are a blank, or
        zero at the end of the log."""
        parts = log.parts
        if not parts:
            # Otherwise the log would begin at 0 again.
            with (directory / offset_to_file_name(log.begin)).open("wb") as file:
                file.truncate(log.file_bytes)
        for number, part in enumerate(parts):
            start = part.start - part.start % log.file_bytes
            is_last = number + 1 == len(parts) or parts[number + 1].start >= start + log.file_bytes
            path = directory / offset_to_file_name(start)
            with named_errors(path), path.open("r+b" if path.exists() else "wb") as file:
                file.truncate(log.file_bytes)
                file.seek(part.start - start)
                for chunk in checked(self._destination, part.file):
                    file.write(chunk)
                left = start + log.file_bytes - part.end
                if is_last and number + 1 < len(parts) and left >= _BLANK.size:
                    file.write(_BLANK.pack(left, MAGIC_BLANK))

    def _restore_offsets(self, result: RestoreReport, created_again: Collection[str]) -> None:
        """Restore the store of the offset service, and write the report."""
        service = service_module("rockoon_offset.restoring")
        progress, logs = self._sources.progress, self._sources.logs
        ends = {
            log.name: {
                (topic, queue_id): end
                for topic, queues in log.queue_ends().items()
                for queue_id, end in queues.items()
            }
            for log in logs.logs
        }
        content = b"".join(checked(self._destination, progress.progress))
        with self._new(OFFSET) as partial:
            found = service.restore(
                partial,
                self._store_id("offset", progress.offset_log),
                content,
                ends,
                created_again,
                self._sources.explain(),
                wall_clock_ms(),
            )
            result.groups = [self._group_offset(each, ends) for each in found]
            # Before the store gets its name: a later restore reads the report.
            with self._new(REPORT) as report:
                write_file(report, [json.dumps(asdict(result), indent=1).encode() + b"\n"])

    def _created_again(self) -> set[str]:
        """Return the topics that were created again between the backups of the progress and of the
        logs: offsets of one topic are no offsets of the other topic."""
        logs, progress = self._sources.logs, self._sources.progress
        if progress.revision == logs.revision:
            return set()
        # If the routes of a backup are damaged, the restore fails: the groups might skip messages.
        read, restored = (self._topic_revisions(each) for each in (progress, logs))
        # Older progress without the topic can only be that of a former topic of this name. Newer
        # progress without the topic was stored before the topic was deleted.
        is_older = progress.revision < logs.revision
        return {
            topic
            for topic, revision in restored.items()
            if read.get(topic, 0 if is_older else revision) != revision
        }

    def _topic_revisions(self, manifest: BackupManifest) -> dict[str, int]:
        """Return topic → revision of its creation."""
        content = b"".join(checked(self._destination, manifest.routes))
        prefix = "topics/"
        return {
            each.key.removeprefix(prefix): each.create_revision
            for each in ReadRoutesReply.FromString(content).keys
            if each.key.startswith(prefix)
        }

    def _group_offset(self, found: Any, ends: dict[str, dict[tuple[str, int], int]]) -> GroupOffset:
        queue = found.queue
        end = None
        if queue.broker in ends:
            end = ends[queue.broker].get((queue.topic, queue.queue_id), 0)
        begin = self._begins.get(queue.broker, {}).get(queue.topic, {}).get(queue.queue_id, 0)
        return GroupOffset(
            group=found.group,
            member=found.member,
            topic=queue.topic,
            broker=queue.broker,
            queue_id=queue.queue_id,
            before=found.before,
            offset=found.offset,
            end=end,
            deleted=max(0, begin - found.offset),
            explanation=found.explanation,
        )


def is_used(path: Path) -> bool:
    """True if a target exists and is not an empty directory."""
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the path to an OSError of a write, which has none."""
    try:
        yield
    except OSError as failure:
        failure.filename = failure.filename or str(path)
        raise


def write_file(path: Path, chunks: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with named_errors(path), os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


def complete(path: Path) -> None:
    """Restrict a file, or a directory with all its files, to the owner, and sync it to disk."""
    for each in (path, *path.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with named_errors(each):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def service_module(name: str) -> Any:
    """Import a module of a service. Raises BackupError if the service is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        raise BackupError(
            f"a restore needs {failure.name}: `pip install 'rockoon[local]'` on this machine"
        ) from failure
