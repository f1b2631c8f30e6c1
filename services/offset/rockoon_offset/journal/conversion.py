"""Conversion of a single-copy journal to a replicated journal.

The state of the single-copy journal becomes epoch 0 of the new one, from position 0 on. The new
file appears completely or not at all; after that the old files are deleted.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from rockoon_core.disk import Disk
from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import frames
from rockoon_offset.journal.former_frames import JOURNAL_MAGIC
from rockoon_offset.journal.frames import EpochPayload, FrameKind, LogFileHeader
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

log = logging.getLogger(__name__)

# Bounds on one frame of a state.
STATE_RECORDS = 1000
STATE_BYTES_MAX = 1 << 20


def convert_journal(directory: Path, replica: str, disk: Disk) -> None:
    """Convert the journal in a directory if it is a single-copy journal.

    Raises:
        StoreCorrupt: the single-copy journal cannot be read.
        OSError: the disk failed.
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
            log.info("converted the journal in %s to a replicated journal", directory)
        former = journals
    for number in snapshots:
        disk.unlink(snapshot_path(directory, number))
    for number in former:
        disk.unlink(journal_path(directory, number))
    disk.sync_directory(directory)


def is_former(path: Path) -> bool:
    """True if a file belongs to a single-copy journal."""
    with path.open("rb") as file:
        return file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC


def _ledger(records: list[bytes], directory: Path) -> Ledger:
    ledger = Ledger()
    for number, data in enumerate(records):
        try:
            ledger.apply(decode(data))
        except (ValueError, TypeError, KeyError) as failure:
            raise StoreCorrupt(
                path=directory, reason=f"record {number} is invalid: {failure!r}"
            ) from failure
    return ledger


def _first_file(generation: int, replica: str, ledger: Ledger) -> bytes:
    content = bytearray(frames.encode_header(LogFileHeader(generation, 0, 0)))
    first = frames.encode_epochs(EpochPayload(True, False, replica, ((0, 0),)))

    def add(kind: FrameKind, payload: bytes) -> None:
        content.extend(frames.encode(kind, len(content) - frames.FILE_HEADER_BYTES, 0, payload))

    add(FrameKind.EPOCH, first)
    for payload in state_payloads(map(encode, ledger.snapshot()), STATE_RECORDS):
        add(FrameKind.STATE, payload)
    add(FrameKind.STATE_END, b"")
    return bytes(content)


def state_payloads(records: Iterator[bytes], records_max: int) -> Iterator[bytes]:
    """Yield the payloads of the STATE frames of a state, each within the maximum size of a
    frame.
    """
    part: list[bytes] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record)
        # The window of one queue may have half a megabyte.
        if len(part) == records_max or size >= STATE_BYTES_MAX:
            yield frames.pack(part)
            part, size = [], 0
    if part:
        yield frames.pack(part)
