"""Manifest of a backup: its files with their checksums, the cut, and facts that no file has.

    DESTINATION/
        BACKUP/manifest.json        written last: without it the backup is interrupted
        BACKUP/interrupted.json     parts of logs that are complete; from the beginning until the
                                    manifest is written
        BACKUP/removed              the removal of this backup has begun: it will not be complete
        BACKUP/progress             state of the offset service
        BACKUP/routes               keys of the nameservers
        BACKUP/LOG/...              files of a generation
        logs/LOG/START-END-XXXXXXXX parts of logs; later backups refer to them

A manifest is JSON, and on the last line the SHA-256 of the text before it. Offsets are physical
offsets of the log, unless they are offsets of a queue.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rockoon.backup.destination import BackupError, ContentUnreadable, Destination, OtherFormat

FORMAT = 1
MANIFEST = "manifest.json"
INTERRUPTED = "interrupted.json"
REMOVED = "removed"
LOGS = "logs"
# 64 hexadecimal digits and a line feed.
CHECKSUM_BYTES = 65
BACKUP_NAME = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LogPart:
    """Consecutive records of one CommitLog file, back to back in a file of the backup.

    Attributes:
        start, end: range of the log.
        last_bytes, last_sha256: the last record. A later backup asks the broker for it before it
            refers to this part.
    """

    file: BackupFile
    start: int
    end: int
    last_bytes: int
    last_sha256: str


@dataclass(frozen=True, slots=True)
class LogBackup:
    """The log of a broker in a backup.

    Attributes:
        name: name of the log, which is that of its broker.
        file_bytes: size of a CommitLog file.
        begin, end: range of the log in the backup; `end` is the cut.
        cut_ms: when the cut was made, epoch milliseconds.
        parts: records of the range, in order.
        queues: topic → [[queue id, offset after the last message], ...], at the cut.
        dropped: topic → offset below which its messages are deleted.
        overtaken: topic → offset below which no compacted message is shown.
        generation: number of the active generation of compacted topics; 0: none.
        generation_files: its files, by their names in the store.
    """

    name: str
    file_bytes: int
    begin: int
    end: int
    cut_ms: int
    parts: Sequence[LogPart]
    queues: Mapping[str, Sequence[tuple[int, int]]]
    dropped: Mapping[str, int]
    overtaken: Mapping[str, int]
    generation: int
    generation_files: Mapping[str, BackupFile]

    @property
    def records_end(self) -> int:
        """Physical offset after the last record. `end` is higher if the rest of a file without
        records follows."""
        return self.parts[-1].end if self.parts else self.begin

    def queue_ends(self) -> dict[str, dict[int, int]]:
        """Return topic → queue id → offset after the last message."""
        return {topic: dict(ends) for topic, ends in self.queues.items()}


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """A complete backup.

    Attributes:
        backup: its name.
        cluster, cluster_id: name and identity of the cluster.
        version: version of the program that made it.
        begun_ms, finished_ms: epoch milliseconds.
        progress, progress_ms: state of the offset service, and when it was read.
        offset_log: name of the offset service's log.
        routes, routes_ms, revision: keys of the nameservers, when they were read, and their
            revision.
        logs: logs of the brokers, by name.
        without: brokers that were left out at the operator's request.
    """

    backup: str
    cluster: str
    cluster_id: int
    version: str
    begun_ms: int
    finished_ms: int
    progress: BackupFile
    progress_ms: int
    offset_log: str
    routes: BackupFile
    routes_ms: int
    revision: int
    logs: Sequence[LogBackup]
    without: Sequence[str] = ()

    def files(self) -> Iterator[BackupFile]:
        yield from (self.progress, self.routes)
        for log in self.logs:
            yield from (part.file for part in log.parts)
            yield from log.generation_files.values()

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files())

    def log(self, name: str) -> LogBackup:
        for each in self.logs:
            if each.name == name:
                return each
        raise BackupError(f"backup {self.backup} has no log {name}")


def encode(manifest: BackupManifest) -> bytes:
    return sealed({"format": FORMAT, **asdict(manifest)})


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return content as JSON, followed by its checksum."""
    text = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    return text + hashlib.sha256(text).hexdigest().encode() + b"\n"


def unsealed(content: bytes, place: str) -> dict[str, Any]:
    """Decode `sealed`. Raises ContentUnreadable: the content is damaged; OtherFormat: the content
    is intact, and another version wrote it."""
    text, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if hashlib.sha256(text).hexdigest().encode() + b"\n" != checksum:
        raise ContentUnreadable(
            f"{place} is damaged: its checksum does not match. Replace it by an intact copy, or "
            "delete it: `rockoon backup prune` then removes the other files of this backup"
        )
    found: dict[str, Any] = json.loads(text)
    if found["format"] != FORMAT:
        raise OtherFormat(
            f"{place} has format {found['format']}, and this version reads format {FORMAT}: use "
            f"the version that wrote it, {found.get('version') or 'a newer one'}"
        )
    return found


def decode(content: bytes, place: str) -> BackupManifest:
    """Decode a manifest; raises as `unsealed`."""
    found = unsealed(content, place)
    del found["format"]
    found["progress"], found["routes"] = (
        BackupFile(**found[name]) for name in ("progress", "routes")
    )
    found["logs"] = [log_of(each) for each in found["logs"]]
    return BackupManifest(**found)


def log_of(found: dict[str, Any]) -> LogBackup:
    parts = [part_of(each) for each in found["parts"]]
    files = {name: BackupFile(**each) for name, each in found["generation_files"].items()}
    queues = {
        topic: [(each[0], each[1]) for each in ends] for topic, ends in found["queues"].items()
    }
    return LogBackup(**found | {"parts": parts, "generation_files": files, "queues": queues})


def part_of(found: dict[str, Any]) -> LogPart:
    others = {name: value for name, value in found.items() if name != "file"}
    return LogPart(BackupFile(**found["file"]), **others)


class Backups:
    """Backups at a destination.

    Attributes:
        complete: names of complete backups, the oldest first.
        interrupted: names of interrupted backups, the oldest first.
    """

    def __init__(self, destination: Destination, files: Mapping[str, int]) -> None:
        self._destination = destination
        self._files = files
        folders = {name.partition("/")[0] for name in files}
        found = sorted(each for each in folders if BACKUP_NAME.fullmatch(each))
        self.complete = [each for each in found if f"{each}/{MANIFEST}" in files]
        self.interrupted = [each for each in found if each not in self.complete]

    def manifest(self, backup: str = "") -> BackupManifest:
        """Read the manifest of a backup; of the newest one by default. Raises BackupError: the
        backup does not exist, is damaged, interrupted, or of a newer version."""
        shown = self._destination.shown
        if backup in self.interrupted:
            raise BackupError(f"backup {backup} in {shown} is interrupted: it is not complete")
        if not self.complete or (backup and backup not in self.complete):
            raise BackupError(f"{shown} has no complete backup{f' {backup}' if backup else ''}")
        name = f"{backup or self.complete[-1]}/{MANIFEST}"
        return decode(self._destination.content(name), f"{shown}/{name}")

    def interrupted_parts(self, backup: str) -> dict[str, list[LogPart]]:
        """Read the complete parts of an interrupted backup, by log. Raises BackupError."""
        name = f"{backup}/{INTERRUPTED}"
        if name not in self._files:
            return {}
        found = unsealed(self._destination.content(name), f"{self._destination.shown}/{name}")
        return {log: [part_of(each) for each in parts] for log, parts in found["parts"].items()}
