"""Creation of a backup. The order makes it consistent:

1. the state of the offset service,
2. the end of each log, with the ends of its queues: the cut,
3. the keys of the nameservers,
4. the records of each log up to the cut.

So no offset is beyond the end of its queue, and the routes have each topic of the logs. Steps 1 to
3 last moments. Producers and consumers continue during step 4.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from rockoon.admin.reads import live_brokers, missing_brokers
from rockoon.backup.copying import LogCopier, Pace, SourceLog
from rockoon.backup.destination import (
    BackupError,
    ContentUnreadable,
    Destination,
    FileMissing,
    OtherFormat,
)
from rockoon.backup.manifest import (
    FORMAT,
    INTERRUPTED,
    LOGS,
    MANIFEST,
    REMOVED,
    BackupFile,
    BackupManifest,
    Backups,
    LogBackup,
    LogPart,
    encode,
    sealed,
)
from rockoon.errors import OffsetServiceUnavailable
from rockoon.net.retried import retried
from rockoon_core.clock import wall_clock_ms
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE, ReadRoutesReply, ReadRoutesRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.offset_pb2 import ReadStateRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# The whole state is read by one call.
STATE_SECONDS_MAX = 300.0

Parts = Mapping[str, Sequence[LogPart]]


async def create(
    connection: "Connection",
    destination: Destination,
    *,
    without: Sequence[str] = (),
    bytes_per_second: float = 0.0,
    report: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], object] = lambda _: None,
) -> BackupManifest:
    """Make a backup of a running cluster.

    Args:
        connection: to the cluster; its key needs `admin` on `cluster`.
        destination: the destination, with the backups before this one.
        without: brokers to leave out.
        bytes_per_second: limit of the copy; 0: none.
        report: called with a sentence about each step.
        warn: called with the reason why a former backup is not used, and what to do.

    Raises:
        BackupError: the destination has backups of another cluster, or perhaps of another cluster;
            or a log cannot be copied.
        RockoonError: a service refuses a call, or does not answer.
    """
    with destination.locked() as is_alone:
        making = Creation(connection, destination, Pace(bytes_per_second), report, warn)
        try:
            making.begin()
            if is_alone:
                making.remove_unused()
            manifest = await making.run(without)
        except BaseException:
            making.end_without_parts()
            raise
        if is_alone:
            making.remove_interrupted()
        return manifest


class Creation:
    """Makes one backup; see `create`."""

    def __init__(
        self,
        connection: "Connection",
        destination: Destination,
        pace: Pace,
        report: Callable[[str], None],
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._destination = destination
        self._pace = pace
        self._report = report
        self._warn = warn
        self._begun_ms = wall_clock_ms()
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._begun_ms / 1000))
        # Names are in the order of time.
        self.name = f"{moment}{self._begun_ms % 1000:03d}Z-{secrets.token_hex(2)}"
        # Parts of each log in former backups, the newest backup first.
        self._known: dict[str, list[Sequence[LogPart]]] = {}
        self._parts: dict[str, Sequence[LogPart]] = {}
        # Cluster of the former backups; None if there is none.
        self._cluster_id: int | None = None
        self._files: dict[str, int] = {}
        self._has_unreadable = False
        self._backups = Backups(destination, {})

    def begin(self) -> None:
        """Read the former backups. Before that, register this one: see `pruning`. Raises
        BackupError: the destination cannot be read, or has no readable manifest."""
        self._write_parts()
        own = f"{self.name}/"
        names = self._destination.names()
        self._files = {name: size for name, size in names.items() if not name.startswith(own)}
        self._backups = Backups(self._destination, self._files)
        has_other_format = False
        for backup in sorted((*self._backups.complete, *self._backups.interrupted), reverse=True):
            try:
                found = self._parts_of(backup)
            except (ContentUnreadable, FileMissing) as fault:
                self._has_unreadable = True
                if backup in self._backups.complete:
                    has_other_format |= isinstance(fault, OtherFormat)
                self._warn(f"{fault}. The new backup does not use the files of backup {backup}")
                continue
            for log, parts in found.items():
                self._known.setdefault(log, []).append(parts)
        if self._backups.complete and self._cluster_id is None:
            advice = (
                "Use the version that wrote them, or another destination"
                if has_other_format
                else "Replace one by an intact copy, or use another destination. If they are of "
                "this cluster, delete them"
            )
            raise BackupError(
                f"{self._destination.shown} may have backups of another cluster: none of its "
                f"manifests can be read. {advice}"
            )

    def _parts_of(self, backup: str) -> Parts:
        if backup in self._backups.complete:
            manifest = self._backups.manifest(backup)
            self._cluster_id = manifest.cluster_id
            return {log.name: log.parts for log in manifest.logs}
        return self._backups.interrupted_parts(backup)

    def remove_unused(self) -> None:
        """Remove parts of logs that no backup has: a backup was interrupted while it wrote them.

        If a manifest is unreadable, its parts are not known, and all parts stay.
        """
        if self._has_unreadable:
            return
        used = {
            part.file.name for chains in self._known.values() for each in chains for part in each
        }
        for name in self._files:
            if name.startswith(f"{LOGS}/") and name not in used:
                self._destination.remove(name)

    def end_without_parts(self) -> None:
        """End a backup that has failed. If it has no parts, it is not kept as interrupted."""
        if not self._parts:
            with suppress(BackupError):
                self._destination.remove(f"{self.name}/{INTERRUPTED}")

    async def run(self, without: Sequence[str]) -> BackupManifest:
        brokers = await self._brokers(without)
        progress_ms = wall_clock_ms()
        progress, offset_log = await self._copy_progress()
        self._report("copied the progress of the consumer groups")
        copies = {name: self._log_copy(name) for name in brokers}
        for each in copies.values():
            await each.cut()
        routes_ms = wall_clock_ms()
        routes, found = await self._copy_routes()
        if self._cluster_id not in (None, found.cluster_id):
            raise BackupError(
                f"{self._destination.shown} has backups of another cluster: use another destination"
            )
        self._report(f"copied the routes, at revision {found.revision}")
        logs = [await self._copy_log(name, each) for name, each in copies.items()]
        manifest = BackupManifest(
            backup=self.name,
            cluster=found.cluster,
            cluster_id=found.cluster_id,
            version=metadata.version("rockoon"),
            begun_ms=self._begun_ms,
            finished_ms=wall_clock_ms(),
            progress=progress,
            progress_ms=progress_ms,
            offset_log=offset_log,
            routes=routes,
            routes_ms=routes_ms,
            revision=found.revision,
            logs=logs,
            without=sorted(without),
        )
        self._store_manifest(manifest)
        return manifest

    def _store_manifest(self, manifest: BackupManifest) -> None:
        name = f"{self.name}/{MANIFEST}"
        self._destination.write(name, encode(manifest))
        found = self._destination.names()
        gone = [each.name for each in manifest.files() if each.name not in found]
        if gone or f"{self.name}/{REMOVED}" in found:
            self._destination.remove(name)
            raise BackupError(
                f"{gone[0] if gone else self.name} was removed from {self._destination.shown} "
                "during the backup, for example by `rockoon backup prune --interrupted`: run the "
                "backup again"
            )
        self._destination.remove(f"{self.name}/{INTERRUPTED}")

    def remove_interrupted(self) -> None:
        """Remove the interrupted backups; this backup has their complete parts.

        Without a lock of the destination, one of them may still be running.
        """
        for name in self._files:
            if name.partition("/")[0] in self._backups.interrupted:
                self._destination.remove(name)

    async def _brokers(self, without: Sequence[str]) -> list[str]:
        missing = [each for each in await missing_brokers(self._connection) if each not in without]
        if missing:
            names = ", ".join(missing)
            raise BackupError(
                f"{names} cannot be reached: start it, or leave its messages out: "
                f"--without {missing[0]}"
            )
        return [each for each in live_brokers(self._connection) if each not in without]

    async def _copy_progress(self) -> tuple[BackupFile, str]:
        connection = self._connection

        async def attempt() -> list[Any]:
            stub = connection.offset_service()

            def state(request: ReadStateRequest, **options: Any) -> Any:
                return collected(stub.ReadState(request, **options))

            return await connection.call(
                state,
                ReadStateRequest(),
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=STATE_SECONDS_MAX,
            )

        replies = await retried(attempt, connection.retry_seconds)
        nodes = [each for each in connection.routes.nodes if each.kind == OFFSET_SERVICE]
        content = b"".join(each.records for each in replies)
        return self._stored("progress", content), nodes[0].name if nodes else "offset"

    async def _copy_routes(self) -> tuple[BackupFile, ReadRoutesReply]:
        replies = await self._connection.call_nameserver(
            "ReadRoutes", ReadRoutesRequest(), timeout_seconds=STATE_SECONDS_MAX, service=RoutesStub
        )
        found = ReadRoutesReply()
        for each in replies:
            found.keys.extend(each.keys)
        last = replies[-1]
        found.revision, found.cluster, found.cluster_id = (
            last.revision,
            last.cluster,
            last.cluster_id,
        )
        return self._stored("routes", found.SerializeToString()), found

    def _stored(self, name: str, content: bytes) -> BackupFile:
        place = f"{self.name}/{name}"
        self._destination.write(place, content)
        return BackupFile(place, len(content), hashlib.sha256(content).hexdigest())

    def _log_copy(self, name: str) -> LogCopier:
        reader = SourceLog(self._connection, name)
        return LogCopier(reader, self._destination, self.name, self._pace, self._on_parts)

    def _on_parts(self, log: str, parts: Sequence[LogPart]) -> None:
        """Record the complete parts, which a later backup uses if this one is interrupted."""
        self._parts[log] = tuple(parts)
        self._write_parts()

    def _write_parts(self) -> None:
        found = {name: [asdict(part) for part in each] for name, each in self._parts.items()}
        content = {"format": FORMAT, "parts": found}
        self._destination.write(f"{self.name}/{INTERRUPTED}", sealed(content))

    async def _copy_log(self, name: str, copy: LogCopier) -> LogBackup:
        log = await copy.copy(self._known.get(name, ()), self._files)
        new = sum(each.file.bytes for each in log.parts if each.file.name not in self._files)
        whole = sum(each.file.bytes for each in log.parts)
        self._report(f"copied the log of {name} up to {log.end}: {new} new bytes of {whole}")
        return log


class RoutesStub:
    """Stub whose ReadRoutes returns all replies of the stream as one result. `channel`: to a
    nameserver."""

    def __init__(self, channel: Any) -> None:
        self._stub = NameServerStub(channel)

    def ReadRoutes(self, request: ReadRoutesRequest, **options: Any) -> Any:
        return collected(self._stub.ReadRoutes(request, **options))


async def collected(stream: Any) -> list[Any]:
    return [reply async for reply in stream]
