"""Below feature level 1 the journal has no field that services of a former version cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_core.protocol import LEVEL
from rockoon_core.start_position import Decision, StartReason
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import FrameKind
from rockoon_offset.journal.store import JournalStore
from rockoon_offset.progress.records import Acquired, Settled

QUEUE = MessageQueue("orders", "broker-a", 0)
GROUP = "billing"
# Fields of the records of commit 8e2a733, with the kind.
FORMER_FIELDS = {"put": 18, "vacated": 18, "acquired": 12, "settled": 9}


def acquire(store: JournalStore, number: int) -> Acquired:
    """Acquire one message for a receiver, with all fields of the present version."""
    ledger = store.ledger
    if ledger.find(GROUP, QUEUE) is None:
        decision = Decision(0, StartReason.FIRST, "")
        store.write(ledger.start(GROUP, 1, QUEUE, 1, decision, "", 0))
    where = (GROUP, QUEUE, number, 0, number, 1)
    record = Acquired(*where, 1, 9, "", "refused", "receiver-a", "key", 99, "call")
    store.write(ledger.apply_all([record]))
    return record


def settle(store: JournalStore, acquired: Acquired) -> None:
    done = Settled(GROUP, QUEUE, acquired.number, acquired.first, 1, 7, "receiver-b")
    store.write(store.ledger.apply_all([done]))


def records(root: Path) -> list[list[Any]]:
    """All records of the journal's files, decoded from JSON."""
    found = []
    for path in sorted((root / "journal").glob("*.journal")):
        content = path.read_bytes()
        position = frames.decode_header(content).position  # type: ignore[union-attr]
        for frame in frames.whole_frames(content[frames.FILE_HEADER_BYTES :], position):
            if frame.kind in (FrameKind.RECORDS, FrameKind.STATE):
                found += [json.loads(each) for each in frames.unpack(frame.payload)]
    return found


def has_present_fields(root: Path) -> bool:
    return any(len(each) > FORMER_FIELDS.get(each[0], 1 << 30) for each in records(root))


def holder_of(store: JournalStore, acquired: Acquired) -> str:
    acquisition = store.ledger.windows.of(GROUP, QUEUE).find(acquired.number)
    assert acquisition is not None
    return acquisition.holder


async def test_a_journal_of_level_0_is_one_of_the_former_version(tmp_path: Path) -> None:
    # Small, so that a restart begins another file with the whole state.
    store = JournalStore(tmp_path, pytest.fail, journal_bytes_max=1)
    first, second = acquire(store, 1), acquire(store, 2)
    settle(store, first)
    await store.durable()
    # This process knows the holder: it notifies and extends as usual.
    assert holder_of(store, second) == "receiver-a"
    store.close()
    assert not has_present_fields(tmp_path)
    again = JournalStore(tmp_path, pytest.fail)
    assert holder_of(again, second) == ""
    again.raise_level(LEVEL)
    third = acquire(again, 3)
    await again.durable()
    again.close()
    assert has_present_fields(tmp_path)
    # A restart keeps the level of the records that are there, before it knows the cluster's.
    last = JournalStore(tmp_path, pytest.fail, journal_bytes_max=1)
    last.raise_level(0)
    assert holder_of(last, third) == "receiver-a"
    settle(last, third)
    fourth = acquire(last, 4)
    await last.durable()
    last.close()
    final = JournalStore(tmp_path, pytest.fail)
    assert holder_of(final, fourth) == "receiver-a"
    progress = final.ledger.find(GROUP, QUEUE)
    assert progress is not None
    final.close()
