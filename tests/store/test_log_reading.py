"""The log as its followers read it."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rockoon_broker.rpc.log_reads import LogReadState, RecordFilter, WantedColumns, read
from rockoon_broker.store.settings import Flush
from rockoon_broker.store.store import Store
from rockoon_core.errors import LogTrimmed
from rockoon_format.batch import decode_columns
from rockoon_proto.v1 import broker_pb2 as pb
from support.seeds import seeds
from support.store_directory import Owner, settings

FILE_BYTES = 4096


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    configured = settings(tmp_path, commit_log_file_bytes=FILE_BYTES, flush=Flush.ASYNC)
    return Owner(configured)


def bodies_from(store: Store, position: int = 0, bytes_max: int = 1 << 20) -> list[bytes]:
    found: list[bytes] = []
    while position < store.visible_end:
        chunk = store.read_log(position, bytes_max)
        assert position < chunk.next_offset <= store.visible_end
        if chunk.records.count:
            columns = decode_columns(chunk.frames, chunk.lengths)
            found += columns.bodies
            first = chunk.start + int(chunk.records.offsets[0])
            assert int(columns.physical_offsets[0]) == first
        position = chunk.next_offset
    return found


@pytest.mark.parametrize("seed", seeds(1))
def test_a_follower_sees_every_record_once_in_the_order_of_the_log(owner: Owner, seed: int) -> None:
    chance = random.Random(seed)
    written: list[bytes] = []
    for number in range(80):
        size = chance.choice([0, 1, 50, 900])
        bodies = [b"%d.%d" % (number, n) + bytes(size) for n in range(chance.randint(1, 3))]
        owner.append(f"T{number % 3}", 0, bodies)
        written += bodies
    assert owner.store.visible_end > 2 * FILE_BYTES
    for bytes_max in (1, 100, 1000, 1 << 20):
        assert bodies_from(owner.store, bytes_max=bytes_max) == written
    owner.store.close()


def test_the_end_of_a_closed_file_is_no_damage_however_little_is_read(owner: Owner) -> None:
    for body in (bytes(3000), bytes(3000), b"last"):
        owner.append("T", 0, [body])
    position = 0
    while position < owner.store.visible_end:
        chunk = owner.store.read_log(position, 1)
        assert chunk.skipped_bytes == 0
        position = chunk.next_offset
    owner.store.close()


def test_a_follower_at_the_end_goes_on_with_what_is_appended_next(owner: Owner) -> None:
    end = owner.append("T", 0, [b"old"]).end_offset
    assert owner.store.read_log(end).next_offset == end
    assert owner.store.read_log(end).records.count == 0
    owner.append("T", 0, [bytes(3800)])
    owner.append("T", 0, [b"new"])
    assert bodies_from(owner.store, end) == [bytes(3800), b"new"]
    owner.store.close()


def test_a_damaged_stretch_is_skipped_and_told(owner: Owner, tmp_path: Path) -> None:
    ends = [owner.append("T", 0, [b"body %d" % n]).end_offset for n in range(20)]
    log = tmp_path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(ends[4] + 4)
        file.write(b"xxxx")  # the magic of record 5
        file.seek(ends[9])
        file.write(b"\0\0\7\7")  # the size of record 10
    assert bodies_from(owner.store) == [b"body %d" % n for n in range(20) if n not in (5, 10)]
    assert owner.store.read_log(ends[4]).skipped_bytes == ends[5] - ends[4]
    owner.store.close()


def test_a_stretch_that_is_damaged_to_the_end_of_its_file_leads_to_the_next_file(
    owner: Owner, tmp_path: Path
) -> None:
    first = owner.append("T", 0, [b"whole"]).end_offset
    owner.append("T", 0, [b"lost"])
    owner.append("T", 0, [bytes(3700)])
    owner.append("T", 0, [b"next file"])
    log = tmp_path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(first)
        file.write(b"x" * (FILE_BYTES - first))
    assert bodies_from(owner.store) == [b"whole", b"next file"]
    owner.store.close()


async def test_columns_that_were_cut_before_retention_deleted_their_file_are_sent(
    owner: Owner,
) -> None:
    for body in (bytes(3000), bytes(3000), b"last"):
        owner.append("T", 0, [body])
    begin = 0

    class Retained:
        """The store of the owner; its first file is deleted after the first read."""

        log_min_offset = property(lambda _: begin)

        def __getattr__(self, name: str) -> object:
            return getattr(owner.store, name)

        def read_log(self, *place: int) -> object:
            nonlocal begin
            begin = owner.store.visible_end
            return owner.store.read_log(*place)

    broker: Any = SimpleNamespace(store=Retained(), settings=SimpleNamespace(name="broker-a"))
    request = pb.ReadLogRequest(at_record=True, columns=[pb.COLUMN_QUEUE_OFFSET])
    filters = RecordFilter.of(request), False, WantedColumns.of(request)
    state = LogReadState(0, 0, True, *filters)
    await read(broker, state, owner.store.visible_end, 1 << 20)
    assert state.batches
    assert state.position == FILE_BYTES
    rest = LogReadState(state.position, state.position, True, *filters)
    with pytest.raises(LogTrimmed):
        await read(broker, rest, owner.store.visible_end, 1 << 20)
    owner.store.close()
