"""File of a replica's durable facts, beside its log.

    config/replica       one line of JSON; on the next one the CRC-32 of the first, as 8 hex digits
    config/replicated    empty; made behind the first `replica`
    config/acknowledged  see acknowledged_end.py
    config/halted        see halt.py
    config/replica.room  zeros; its blocks are used for `replica` and `halted` if the disk is full

Invariants:
- Before a promise is acted on it is in the file: the disk has it when `write` returns.
- A file that was there and is gone, or does not hold what was written, is told, never guessed: a
  replica that forgot what it promised could acknowledge what a later leader never hears of.
  `replicated` is how a loss is known from a store that never had copies.
- A full disk does not keep a replica from promising: it may be needed for an election.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rockoon_core.disk import SHORTAGES, Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_core.replication_rules import Config
from rockoon_node.store_id import BOOT_ID
from rockoon_replica.acknowledged_end import AcknowledgedEnd
from rockoon_replica.halt import write_halt
from rockoon_replica.log_state import Run, Version
from rockoon_replica.replica_facts import ReplicaFacts

FILE, MARKER, ROOM = "replica", "replicated", "replica.room"
ROOM_BYTES = 16 << 10
FORMAT = 1


class Kept(NamedTuple):
    """Content of the file.

    Attributes:
        unsynced_boot: the start of the machine in which acknowledgements were of what may have been
            in its memory only; None when they were of what is on disk.
    """

    facts: ReplicaFacts
    unsynced_boot: str | None


class ReplicaFile:
    """Keeps the facts of one replica. Its calls wait for the disk.

    Args:
        directory: the store's `config`; it exists.
        disk: the file layer.
        acknowledges_unsynced: whether this process acknowledges what is written (flush = async),
            or what is synced.
        boot: which start of the machine this is; by default the system is asked.

    Attributes:
        directory: as given.
        acknowledged: up to where the log was acknowledged.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        *,
        acknowledges_unsynced: bool = False,
        boot: str | None = None,
    ) -> None:
        self.directory = directory
        self._path = directory / FILE
        self._marker = directory / MARKER
        self._room = directory / ROOM
        self._disk = disk
        self._acknowledges_unsynced = acknowledges_unsynced
        self._boot = this_boot() if boot is None else boot
        self.acknowledged = AcknowledgedEnd(directory, disk)

    def read(self) -> ReplicaFacts | None:
        """What was written last; None in a store that never was a replica.

        `sound` is false where the process before acknowledged what was not on disk, and the machine
        may have been started again since.

        Raises:
            StoreCorrupt: the file is damaged, or gone.
            OSError: the disk.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            if self._marker.exists():
                raise StoreCorrupt(path=self._path, reason="it was there, and is gone") from None
            return None
        try:
            kept = decode(content)
        except (ValueError, KeyError, TypeError) as failure:
            raise StoreCorrupt(path=self._path, reason=str(failure)) from failure
        # A crash may have come between the two.
        self._mark()
        if kept.unsynced_boot is None or (self._boot and kept.unsynced_boot == self._boot):
            return kept.facts
        return kept.facts._replace(sound=False)

    def write(self, facts: ReplicaFacts) -> None:
        """Replace the file; the facts are durable when it returns.

        Raises:
            OSError: the disk. It holds these facts, or the ones before.
        """
        unsynced_boot = self._boot if self._acknowledges_unsynced else None
        content = encode(Kept(facts, unsynced_boot))
        self._with_room(lambda: self._disk.replace_file(self._path, content))
        self._mark()
        self._reserve_room()

    def halt(self, reason: str) -> None:
        """Keep the replica from participating, durably; see `read_halt`. Raises OSError."""
        self._with_room(lambda: write_halt(self.directory, self._disk, reason))

    def begin_run(self, number: int) -> None:
        """Count a start of the process, durably. A store that never was a replica counts nothing.

        The store is written before nameservers hear of the start. If a crash comes between, the
        store has counted more than etcd, which is sound; a store that has counted less is an older
        snapshot.

        Args:
            number: random, of this process.

        Raises:
            StoreCorrupt, OSError: see `read` and `write`.
        """
        facts = self.read()
        if facts is not None and (after := facts.in_next_run(number)) != facts:
            try:
                self.write(after)
            except OSError as failure:
                # On a full disk the start is not counted: it belongs to the run before.
                if failure.errno not in SHORTAGES:
                    raise

    def doubt_short(self, log_end: int) -> str:
        """Note that a log has lost what this replica has acknowledged, if it ends too early.

        Returns:
            What it has lost; empty if it has all, or was never a replica's.

        Raises:
            StoreCorrupt, OSError: as of `read` and `write`.
        """
        acknowledged = self.acknowledged.end
        if log_end >= acknowledged or not self.doubt():
            return ""
        # It is known now, whatever is written there next.
        self.acknowledged.lower(log_end)
        return f"the log ends at {log_end}, and was acknowledged up to {acknowledged}"

    def doubt(self) -> bool:
        """Note that the log may have lost what this replica has acknowledged; durable on return.

        Returns:
            Whether there is anything to note: a store that was never a replica has acknowledged
            nothing to anybody.

        Raises:
            StoreCorrupt, OSError: as of `read` and `write`.
        """
        facts = self.read()
        if facts is None:
            return False
        if facts.sound:
            self.write(facts._replace(sound=False))
        return True

    def _with_room(self, write: Callable[[], None]) -> None:
        """Write a small file; if the disk is full, free the reserved blocks first."""
        try:
            write()
        except OSError as failure:
            if failure.errno not in SHORTAGES or not self._room.exists():
                raise
            self._disk.unlink(self._room)
            write()

    def _reserve_room(self) -> None:
        """Reserve blocks, unless they are reserved; on a full disk those of the replaced file."""
        if self._room.exists():
            return
        try:
            fd = self._disk.open_or_create(self._room)
            try:
                self._disk.allocate(fd, ROOM_BYTES)
            finally:
                self._disk.close(fd)
        except OSError:
            # Tried again at the next write.
            with suppress(OSError):
                self._disk.unlink(self._room)

    def _mark(self) -> None:
        if not self._marker.exists():
            self._disk.replace_file(self._marker, b"")


def this_boot() -> str:
    """Which start of the machine this is; empty where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def encode(kept: Kept) -> bytes:
    """A file's content."""
    facts = kept.facts
    told = {
        "format": FORMAT,
        "promised": facts.promised,
        "led": facts.led,
        "alone": facts.alone,
        "sound": facts.sound,
        "history": facts.version.history,
        "version": facts.version.number,
        "inSync": None if facts.config is None else sorted(facts.config.in_sync),
        "quorum": None if facts.config is None else facts.config.quorum,
        "damaged": facts.damaged,
        "unsyncedBoot": kept.unsynced_boot,
        "starts": facts.run.starts,
        "run": facts.run.number,
        "runSeen": facts.run_seen,
    }
    line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
    return line + b"%08x\n" % zlib.crc32(line)


def decode(content: bytes) -> Kept:
    """What `encode` was given; ValueError, KeyError or TypeError when it has not made this."""
    line, end, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(line + end):
        raise ValueError("its checksum is not that of its content")
    told: Mapping[str, Any] = json.loads(line)
    if told["format"] != FORMAT:
        raise ValueError(f"this version does not know format {told['format']!r}")
    in_sync = told["inSync"]
    facts = ReplicaFacts(
        promised=told["promised"],
        led=told["led"],
        alone=told["alone"],
        sound=told["sound"],
        version=Version(told["history"], told["version"]),
        config=None if in_sync is None else Config(frozenset(in_sync), told["quorum"]),
        # Files of earlier versions do not have it.
        damaged=tuple(told.get("damaged", ())),
        # A file of a version that did not count starts.
        run=Run(told.get("starts", 0), told.get("run", 0)),
        run_seen=told.get("runSeen", False),
    )
    return Kept(facts, told["unsyncedBoot"])
