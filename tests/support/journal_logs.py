"""Journals with copies, in a test's hands."""

from pathlib import Path
from typing import Any

from rockoon_core.errors import StoreFailed
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.journal.journal import Journal
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import OffsetCommitted, Record, encode

QUEUE = MessageQueue("T", "broker-a", 0)
NOW_MS = 1_700_000_000_000


def change(ledger: Ledger, group: str, offset: int) -> list[Record]:
    """Move a group's offset; returns the records that the ledger has applied."""
    if ledger.find(group, QUEUE) is None:
        decision = Decision(offset, StartReason.COMMITTED, "")
        return ledger.start(group, 1, QUEUE, 1, decision, "member", NOW_MS)
    return ledger.apply_all([OffsetCommitted(group, QUEUE, offset, "member", NOW_MS, "")])


def append(log: JournalLog, group: str, offset: int) -> int:
    """A leader's change."""
    records = [encode(record) for record in change(log.ledger, group, offset)]
    # Of the class: a test may have given its log an `append` of its own.
    return JournalLog.append(log, records)


def content(log: JournalLog) -> bytes:
    """All bytes of a log."""
    found = b""
    while data := log.read(log.min_offset + len(found), 1 << 20):
        found += data
    return found


def state_of(log: JournalLog) -> list[Record]:
    """What a ledger holds, in an order that does not depend on how it came about."""
    return ledger_state(log.ledger)


def ledger_state(ledger: Ledger) -> list[Any]:
    return sorted(ledger.snapshot(), key=lambda record: encode(record))


def step(directory: Path, changes: int) -> list[Record]:
    """Write a journal of one copy; returns what its ledger holds."""
    directory.mkdir(exist_ok=True)

    def failed(failure: StoreFailed) -> None:
        raise failure

    journal = Journal(directory, lambda _: None, failed)
    journal.start()
    ledger = Ledger()
    for number in range(changes):
        records = change(ledger, f"g{number % 3}", number)
        journal.append([encode(record) for record in records])
        if number == 2:
            journal.rotate(map(encode, ledger.snapshot()))
    journal.close()
    return ledger_state(ledger)
