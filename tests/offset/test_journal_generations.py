"""Files of the journal of one copy: each begins with the state before it."""

import shutil
from pathlib import Path

import pytest
from offset.journals import found, newest, numbers, opened, put, write

from rockoon_core.errors import StoreCorrupt
from rockoon_offset.journal import frames
from rockoon_offset.journal.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameKind
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_replica.replica_file import ACKNOWLEDGED


async def rotated(root: Path, files: int) -> list[int]:
    """A store with several files; return all changes."""
    store = opened(root, journal_bytes_max=1)
    number = 0
    while generations(root / "journal")[-1] < files or store._is_writing_state:
        put(store, [number])
        await store.durable()
        number += 1
    store.close()
    return list(range(number))


def damage_state(path: Path) -> None:
    """Change a byte of each frame of a state in a file."""
    data = bytearray(path.read_bytes())
    header = frames.decode_header(bytes(data))
    assert header is not None
    at = FILE_HEADER_BYTES
    while frame := frames.decode(bytes(data), at, header.position + at - FILE_HEADER_BYTES):
        if frame.kind is FrameKind.STATE:
            data[at + FRAME_HEADER_BYTES] ^= 1
        at += frame.end - frame.position
    path.write_bytes(data)


async def test_a_journal_past_its_bound_begins_a_new_file(tmp_path: Path) -> None:
    records = await rotated(tmp_path, 5)
    assert generations(tmp_path / "journal") == [4, 5]
    assert found(tmp_path) == records


async def test_a_damaged_state_costs_nothing_while_the_file_before_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = await rotated(tmp_path, 4)
    path = newest(tmp_path)
    whole = path.read_bytes()
    header = frames.decode_header(whole)
    assert header is not None
    first = frames.decode(whole, FILE_HEADER_BYTES, header.position)
    assert first is not None
    state = frames.decode(whole, FILE_HEADER_BYTES + first.end - first.position, first.end)
    assert state is not None
    assert state.kind is FrameKind.STATE
    begin = FILE_HEADER_BYTES + first.end - first.position + FRAME_HEADER_BYTES
    for position in range(begin, begin + len(state.payload), 7):
        bad = bytearray(whole)
        bad[position] ^= 0x01
        path.write_bytes(bytes(bad))
        assert found(tmp_path) == records
    assert "damaged frame of a state" in caplog.text
    # The next change begins a file with another state.
    store = opened(tmp_path)
    while store._is_writing_state or generations(tmp_path / "journal") != [4, 5]:
        put(store, [len(records)])
        records.append(len(records))
        await store.durable()
    store.close()
    assert found(tmp_path) == records
    await rotated(tmp_path, 7)


async def test_two_damaged_states_are_refused(tmp_path: Path) -> None:
    await rotated(tmp_path, 4)
    for generation in generations(tmp_path / "journal"):
        damage_state(journal_path(tmp_path / "journal", generation))
    with pytest.raises(StoreCorrupt, match="a frame of the state fails its checksum"):
        opened(tmp_path)


@pytest.mark.parametrize("power_cut", [True, False])
async def test_an_acknowledged_frame_cut_off_an_older_file_is_refused(
    tmp_path: Path, *, power_cut: bool
) -> None:
    await rotated(tmp_path, 4)
    if power_cut:
        (tmp_path / ACKNOWLEDGED).unlink()
    path = journal_path(tmp_path / "journal", 3)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreCorrupt, match="no valid frame at"):
        opened(tmp_path)


async def test_a_missing_newest_file_is_refused(tmp_path: Path) -> None:
    await rotated(tmp_path, 4)
    newest(tmp_path).unlink()
    with pytest.raises(StoreCorrupt, match="no valid frame at"):
        opened(tmp_path)


async def test_a_kill_while_the_state_was_written_loses_nothing(tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    store = opened(root, journal_bytes_max=3 << 20)
    # Long enough for a state of several parts.
    for number in range(3):
        put(store, [number], 1 << 20)
        await store.durable()
    put(store, [3])
    await store.durable()
    assert generations(root / "journal") == [1, 2]
    assert store._is_writing_state
    put(store, [4])
    await store.durable()
    shutil.copytree(root, copy)
    store.close()
    assert found(copy) == [0, 1, 2, 3, 4]
    await write(copy, [(5,)])
    assert found(copy) == [0, 1, 2, 3, 4, 5]


async def test_the_state_has_no_change_twice(tmp_path: Path) -> None:
    """Changes that wait while a file begins are in its state or after it, never in both."""
    store = opened(tmp_path, journal_bytes_max=1)
    for number in range(40):
        for each in range(3):
            put(store, [3 * number + each])
        if number % 3:
            await store.durable()
    await store.durable()
    before = sorted(store.ledger.snapshot(), key=repr)
    store.close()
    again = opened(tmp_path)
    assert sorted(again.ledger.snapshot(), key=repr) == before
    assert numbers(again.ledger) == list(range(120))
    again.close()


async def test_other_files_are_no_generation(tmp_path: Path) -> None:
    await write(tmp_path, [(0,)])
    (tmp_path / "journal" / "notes.txt").write_text("x")
    assert generations(tmp_path / "journal") == [1]
    assert found(tmp_path) == [0]
