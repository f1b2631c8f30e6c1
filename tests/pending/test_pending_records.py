"""Pending records: the log has the record that completes one exactly once, despite concurrent
tries."""

import asyncio
from pathlib import Path

import pytest

from rockoon_broker.append import AppendLimits, Appends
from rockoon_broker.idempotence.ledger import MemoryLimits, SequenceLedger
from rockoon_broker.pending.pending_index import PendingIndex
from rockoon_broker.pending.pending_queue import named_source
from rockoon_broker.pending.pending_records import CompletedMeanwhile, PendingRecords
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.settings import Flush
from rockoon_core.disk import Disk
from rockoon_core.errors import TopicNotFound
from rockoon_format.record import NO_HOST, Record, encode_record
from rockoon_runtime.waking import Bell
from support.aside_desk import TwoClocks
from support.store_directory import BORN_HOST, Owner, settings
from support.waiting import DEADLINE_SECONDS

WAITING = ("W", 0)


class Desk:
    """Records that wait in a store with room for one batch that is not synced."""

    def __init__(self, root: Path) -> None:
        self.owner = Owner(
            settings(root, flush=Flush.SYNC, unsynced_bytes_max=4096, commit_log_file_bytes=1 << 16)
        )
        store = self.owner.store
        self.appends = Appends(
            store,
            AppendLimits(1 << 20, 1000, 1 << 20, 32767),
            SequenceLedger(MemoryLimits(10, 1000)),
            TwoClocks(),
            waits_for_sync=True,
            arrived=set[QueueKey]().add,
            store_changed=Bell(),
        )
        index = PendingIndex(store, root / "config", Disk())
        self.records = PendingRecords(store, self.appends, index, [WAITING])
        index.load({})

    def sync(self) -> None:
        """Make the whole log durable, and leave space for the next batch."""
        end = self.owner.store.appended_end
        while self.owner.store.durable_end < end or not self.owner.synced.empty():
            self.appends.confirmed(self.owner.synced.get(timeout=DEADLINE_SECONDS))

    def fill(self) -> None:
        self.owner.append(bodies=[bytes(5000)])

    async def complete(self, source: int, body: bytes) -> bool:
        """Return whether this call has completed the record."""
        try:
            await self.records.complete_by(made_of(source, body), [source])
        except CompletedMeanwhile:
            return False
        return True


def made_of(source: int, body: bytes) -> AppendBatch:
    record = Record(
        topic=b"D",
        body=body,
        born_host=BORN_HOST,
        store_host=NO_HOST,
        prepared_transaction_offset=named_source(source),
    )
    return AppendBatch.of_records("D", 0, [encode_record(record)])


@pytest.fixture
async def desk(tmp_path: Path):  # type: ignore[no-untyped-def]
    desk = Desk(tmp_path / "store")
    yield desk
    desk.owner.store.close()


async def test_of_two_that_waited_for_room_to_complete_a_record_one_appends(desk: Desk) -> None:
    source = desk.owner.append("W").first_physical_offset
    desk.sync()
    # Not read yet: no call has read the log.
    assert len(desk.records) == 0
    desk.fill()
    bodies = [b"1" * 5000, b"2" * 5000]
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(desk.complete(source, body)) for body in bodies]
        while not all(each.done() for each in both):
            await asyncio.sleep(0)
            desk.sync()
    assert [each.result() for each in both] == [True, False]
    assert desk.owner.bodies("D") == bodies[:1]
    assert len(desk.records) == 0


async def test_what_was_refused_waits_on(desk: Desk) -> None:
    source = desk.owner.append("W").first_physical_offset
    desk.sync()

    def refuse() -> None:
        raise TopicNotFound(topic="D")

    with pytest.raises(TopicNotFound):
        await desk.records.complete_by(made_of(source, b"refused"), [source], refuse)
    assert desk.records.all_wait([source])
    await desk.records.complete_by(made_of(source, b"taken"), [source])
    desk.sync()
    assert desk.owner.bodies("D") == [b"taken"]


async def test_a_completion_that_is_cancelled_while_it_waits_for_room_changes_nothing(
    desk: Desk,
) -> None:
    source = desk.owner.append("W").first_physical_offset
    desk.sync()
    desk.fill()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(desk.complete(source, b"cancelled"))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
    assert waiting.cancelled()
    desk.sync()
    assert desk.records.all_wait([source])
    assert desk.owner.bodies("D") == []
