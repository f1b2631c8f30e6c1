"""Files of a replica's durable state, beside its log.

    config/replica       one line of JSON; on the next one the CRC-32 of the first, as 8 hex digits
    config/replicated    empty; created after the first `replica`
    config/acknowledged  position u64 | CRC-32 u32, little-endian: 12 bytes
    config/halted        one line of text: the reason
    config/replica.room  zeros; its blocks are used for `replica` and `halted` if the disk is full

Invariants:
- A promise is durable before it has effects: it is on the disk when `write` returns.
- A missing or damaged `replica` is an error, never replaced by a guess: a replica that lost its
  promise could acknowledge records that a later leader does not have. `replicated` distinguishes a
  lost file from a store that never had copies.
- A full disk does not prevent promises: the replica may be needed for an election.
- The acknowledged end is never beyond the durable end of the log, and is lowered, durably, before
  the log is cut.
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rockoon_core.disk import SHORTAGES, Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_core.replication_rules import Config
from rockoon_node.store_directory import BOOT_ID
from rockoon_replica.log_state import ProcessRun, StateVersion
from rockoon_replica.replica_facts import ReplicaFacts

ACKNOWLEDGED = "acknowledged"
_POSITION = struct.Struct("<Q")
_CRC = struct.Struct("<I")
ACKNOWLEDGED_BYTES = _POSITION.size + _CRC.size

assert ACKNOWLEDGED_BYTES == 12


class AcknowledgedEnd:
    """File with the acknowledged end of a replica: the position up to which it has acknowledged
    records to its leader. A leader writes the position up to which its own copy counts for the
    quorum.

    A log that ends below it has lost acknowledged records, even if its end looks like an incomplete
    write. The file is written before each acknowledgement and not synced: it survives a killed
    process, and after a power cut it may have an older position (up to half a minute), which is
    still valid. It is read on first use.

    Args:
        directory: the store's `config`; of an offset service with one copy, the store itself.
        disk: the file layer.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / ACKNOWLEDGED
        self._disk = disk
        self._fd: int | None = None
        self._end: int | None = None

    @property
    def end(self) -> int:
        """Position in the file; 0 if the file is missing or damaged. Raises OSError."""
        if self._end is None:
            try:
                self._end = decode_end(self._path.read_bytes())
            except FileNotFoundError:
                self._end = 0
        return self._end

    def raise_to(self, end: int) -> None:
        """Write the position to the file before the replica acknowledges the log up to it; the log
        is durable there.

        If the disk is full, the file keeps an older position.

        Raises:
            OSError: another failure of the disk.
        """
        if end <= self.end:
            return
        try:
            self._write(end)
        except OSError as failure:
            if failure.errno not in SHORTAGES:
                raise

    def lower(self, end: int) -> None:
        """Lower the position in the file, durably, before the log is cut there. Raises OSError."""
        if end < self.end:
            self._disk.fdatasync(self._write(end))

    def sync(self) -> None:
        """Make the position durable. Raises OSError."""
        if self._fd is not None:
            self._disk.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def _write(self, end: int) -> int:
        if self._fd is None:
            self._fd = self._disk.open_or_create(self._path)
        self._disk.write_all(self._fd, encode_end(end), 0)
        self._end = end
        return self._fd


def encode_end(end: int) -> bytes:
    """Return the content of the acknowledged-end file for a position."""
    position = _POSITION.pack(end)
    return position + _CRC.pack(zlib.crc32(position))


def decode_end(content: bytes) -> int:
    """Return the position in an acknowledged-end file's content; 0 if that is damaged."""
    position = content[: _POSITION.size]
    if content[_POSITION.size :] != _CRC.pack(zlib.crc32(position)):
        return 0
    end: int = _POSITION.unpack(position)[0]
    return end


HALTED = "halted"


def read_halt(directory: Path) -> str:
    """Return the reason why the replica of a store is halted; empty if it is not.

    Args:
        directory: the store's `config`.

    Raises:
        OSError: the disk.
    """
    try:
        text = (directory / HALTED).read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    return text or "no reason was written"


def write_halt(directory: Path, disk: Disk, reason: str) -> None:
    """Halt the replica of a store, durably: it does not participate, also after restarts.

    A replica halts when its leader asks it to cut committed records: one of the two has lost data,
    and the replica may be the only one with acknowledged records. An operator rescues the records,
    then empties the store, or removes the file.

    Raises:
        OSError: the disk.
    """
    disk.replace_file(directory / HALTED, " ".join(reason.split()).encode() + b"\n")


FILE, MARKER, ROOM = "replica", "replicated", "replica.room"
ROOM_BYTES = 16 << 10
FORMAT = 1


class Kept(NamedTuple):
    """Content of a replica's facts file.

    Attributes:
        unsynced_boot: boot of the machine in which records were acknowledged before they were
            synced; None if only synced records were.
    """

    facts: ReplicaFacts
    unsynced_boot: str | None


class ReplicaFile:
    """Keeps the facts of one replica in a file. Its calls block on the disk.

    Args:
        directory: the store's `config`; it exists.
        disk: the file layer.
        acknowledges_unsynced: whether this process acknowledges records before they are synced
            (flush = async).
        boot: id of the machine's boot; default: read from the system.

    Attributes:
        acknowledged: the acknowledged end of the log.
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
        """Return the facts written last; None for a store that never was a replica.

        `sound` is False if the former process acknowledged unsynced records, and the machine may
        have been rebooted since.

        Raises:
            StoreCorrupt: the file is damaged, or missing.
            OSError: the disk.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            if self._marker.exists():
                raise StoreCorrupt(path=self._path, reason="the file is missing") from None
            return None
        try:
            kept = decode(content)
        except (ValueError, KeyError, TypeError) as failure:
            raise StoreCorrupt(path=self._path, reason=str(failure)) from failure
        # A crash may have happened between the writes of the two files.
        self._mark()
        if kept.unsynced_boot is None or (self._boot and kept.unsynced_boot == self._boot):
            return kept.facts
        return kept.facts._replace(sound=False)

    def write(self, facts: ReplicaFacts) -> None:
        """Replace the facts file; the facts are durable when this call returns.

        Raises:
            OSError: the disk. The file has these facts, or the former ones.
        """
        unsynced_boot = self._boot if self._acknowledges_unsynced else None
        content = encode(Kept(facts, unsynced_boot))
        self._with_room(lambda: self._disk.replace_file(self._path, content))
        self._mark()
        self._reserve_room()

    def halt(self, reason: str) -> None:
        """Halt the replica, durably; see `read_halt`. Raises OSError."""
        self._with_room(lambda: write_halt(self.directory, self._disk, reason))

    def begin_run(self, number: int) -> None:
        """Add one to the count of starts of the process, durably. In a store that never was a
        replica, nothing is counted.

        The store is written before nameservers see the start. After a crash between the two, the
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
                # On a full disk the start is not counted: it belongs to the former run.
                if failure.errno not in SHORTAGES:
                    raise

    def doubt_short(self, log_end: int) -> str:
        """Mark the replica as unsound if its log ends before the acknowledged end.

        Returns:
            The lost range as text; empty if none, or if the store never was a replica.

        Raises:
            StoreCorrupt, OSError: see `read` and `write`.
        """
        acknowledged = self.acknowledged.end
        if log_end >= acknowledged or not self.doubt():
            return ""
        # The loss is recorded now, so later records there may be acknowledged.
        self.acknowledged.lower(log_end)
        return f"the log ends at {log_end}, and was acknowledged up to {acknowledged}"

    def doubt(self) -> bool:
        """Mark the replica as unsound: its log may lack acknowledged records; durable on return.

        Returns:
            False for a store that never was a replica: it has acknowledged no records.

        Raises:
            StoreCorrupt, OSError: see `read` and `write`.
        """
        facts = self.read()
        if facts is None:
            return False
        if facts.sound:
            self.write(facts._replace(sound=False))
        return True

    def _with_room(self, write: Callable[[], None]) -> None:
        """Write a small file; if the disk is full, release the reserved blocks first."""
        try:
            write()
        except OSError as failure:
            if failure.errno not in SHORTAGES or not self._room.exists():
                raise
            self._disk.unlink(self._room)
            write()

    def _reserve_room(self) -> None:
        """Reserve disk blocks for the next write, unless they are reserved already."""
        if self._room.exists():
            return
        try:
            fd = self._disk.open_or_create(self._room)
            try:
                self._disk.allocate(fd, ROOM_BYTES)
            finally:
                self._disk.close(fd)
        except OSError:
            # Retried at the next write.
            with suppress(OSError):
                self._disk.unlink(self._room)

    def _mark(self) -> None:
        if not self._marker.exists():
            self._disk.replace_file(self._marker, b"")


def this_boot() -> str:
    """Return the id of the machine's boot; empty if the system does not provide it."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def encode(kept: Kept) -> bytes:
    """Return the content of the facts file."""
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
    """Decode the facts file. Raises ValueError, KeyError or TypeError if it is damaged."""
    line, end, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % zlib.crc32(line + end):
        raise ValueError("the checksum does not match")
    told: Mapping[str, Any] = json.loads(line)
    if told["format"] != FORMAT:
        raise ValueError(
            f"its format is {told['format']!r}, and this version knows {FORMAT}: start the newer "
            "version that wrote it"
        )
    in_sync = told["inSync"]
    facts = ReplicaFacts(
        promised=told["promised"],
        led=told["led"],
        alone=told["alone"],
        sound=told["sound"],
        version=StateVersion(told["history"], told["version"]),
        config=None if in_sync is None else Config(frozenset(in_sync), told["quorum"]),
        # Missing in files of earlier versions.
        damaged=tuple(told.get("damaged", ())),
        # Missing in files of versions that did not count starts.
        run=ProcessRun(told.get("starts", 0), told.get("run", 0)),
        run_seen=told.get("runSeen", False),
    )
    return Kept(facts, told["unsyncedBoot"])
