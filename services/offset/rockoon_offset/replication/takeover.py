"""An older journal, of one copy, becomes the first generation of one with copies.

Its state becomes the records of epoch 0, from position 0 on. The file is there whole or not at all,
and with it the former files are nothing but leftovers.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal.frames import JOURNAL_MAGIC
from rockoon_offset.journal.generation_files import (
    drop_clean,
    generations,
    is_copied,
    journal_path,
    read_contents,
    snapshot_path,
)
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode, encode
from rockoon_offset.replication import frames
from rockoon_offset.replication.frames import Epochs, Kind, LogFileHeader

log = logging.getLogger(__name__)

# Records of a state that share a frame.
STATE_RECORDS = 1000
STATE_BYTES_MAX = 1 << 20


def take_over(directory: Path, replica: str, disk: Disk) -> None:
    """Make a directory one of a journal with copies.

    Raises:
        StoreCorrupt: the former journal cannot be read.
        OSError: the disk.
    """
    for leftover in directory.glob("*.new"):
        disk.unlink(leftover)
    journals = generations(directory, "journal")
    snapshots = generations(directory, "snapshot")
    copied = [each for each in journals if is_copied(journal_path(directory, each))]
    former = [each for each in journals if is_former(journal_path(directory, each))]
    if not former and not snapshots:
        return
    if not copied:
        drop_clean(directory, disk)
        records = read_contents(directory).records
        if records:
            generation = max([*journals, *snapshots]) + 1
            content = _first_file(generation, replica, _ledger(records, directory))
            disk.replace_file(journal_path(directory, generation), content)
            log.info("the journal in %s is one with copies from now on", directory)
        former = journals
    for number in snapshots:
        disk.unlink(snapshot_path(directory, number))
    for number in former:
        disk.unlink(journal_path(directory, number))
    disk.sync_directory(directory)


def is_former(path: Path) -> bool:
    """Whether a file is of a journal of one copy."""
    with path.open("rb") as file:
        return file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC


def _ledger(records: list[bytes], directory: Path) -> Ledger:
    ledger = Ledger()
    for number, data in enumerate(records):
        try:
            ledger.apply(decode(data))
        except (ValueError, TypeError, KeyError) as failure:
            raise StoreCorrupt(
                path=directory, reason=f"record {number} makes no sense: {failure!r}"
            ) from failure
    return ledger


def _first_file(generation: int, replica: str, ledger: Ledger) -> bytes:
    content = bytearray(frames.encode_header(LogFileHeader(generation, 0, 0)))
    first = frames.encode_epochs(Epochs(True, False, replica, ((0, 0),)))

    def add(kind: Kind, payload: bytes) -> None:
        content.extend(frames.encode(kind, len(content) - frames.FILE_HEADER_BYTES, 0, payload))

    add(Kind.EPOCH, first)
    for payload in state_payloads(map(encode, ledger.snapshot()), STATE_RECORDS):
        add(Kind.STATE, payload)
    add(Kind.STATE_END, b"")
    return bytes(content)


def state_payloads(records: Iterator[bytes], records_max: int) -> Iterator[bytes]:
    """The payloads of a state's frames: each has what fits, and is sent as a whole."""
    part: list[bytes] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record)
        # What receivers have of one queue may be half a megabyte.
        if len(part) == records_max or size >= STATE_BYTES_MAX:
            yield frames.pack(part)
            part, size = [], 0
    if part:
        yield frames.pack(part)
