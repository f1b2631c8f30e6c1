"""Short operations on journals, for tests."""

import shutil
from pathlib import Path
from typing import Any

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import OffsetCommitted, Record, decode, encode

QUEUE = MessageQueue("T", "broker-a", 0)
NOW_MS = 1_700_000_000_000


def change(ledger: Ledger, group: str, offset: int) -> list[Record]:
    """Move a group's offset; return the records that the ledger has applied."""
    if ledger.find(group, QUEUE) is None:
        decision = Decision(offset, StartReason.COMMITTED, "")
        return ledger.start(group, 1, QUEUE, 1, decision, "member", NOW_MS)
    return ledger.apply_all([OffsetCommitted(group, QUEUE, offset, "member", NOW_MS, "")])


def append(log: JournalLog, group: str, offset: int) -> int:
    """Append a change as a leader does."""
    records = [encode(record) for record in change(log.ledger, group, offset)]
    # The function of the class: a test may have replaced the `append` of its log.
    return JournalLog.append(log, records)


def content(log: JournalLog) -> bytes:
    """Return all bytes of a log."""
    found = b""
    while data := log.read(log.min_offset + len(found), 1 << 20):
        found += data
    return found


def state_of(log: JournalLog) -> list[Record]:
    """Return the content of a ledger, in an order that does not depend on its history."""
    return ledger_state(log.ledger)


def ledger_state(ledger: Ledger) -> list[Any]:
    return sorted(ledger.snapshot(), key=lambda record: encode(record))


def former(name: str, directory: Path) -> list[Record]:
    """Write a journal of the former format; return the content of its ledger. See
    `offset/former_journals/write.py`."""
    journals = Path(__file__).parent.parent / "offset" / "former_journals"
    shutil.copytree(journals / name, directory, dirs_exist_ok=True)
    lines = (journals / name).with_suffix(".state").read_bytes().splitlines()
    return [decode(line) for line in lines]
