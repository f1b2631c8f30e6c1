"""A flipped bit in an entry's tag code hides no message from a reader with a filter."""

from pathlib import Path

import numpy as np
import pytest

from rockoon_broker.store.queues import codes as queue_codes
from rockoon_format.batch import decode_columns
from rockoon_format.hashes import tags_code
from support.store_directory import Owner, crashed_copy, settings

WANTED = np.array([tags_code("TagA")], np.int64)
COUNT = 24
BODIES = [b"%d" % number for number in range(COUNT)]


def filled(root: Path) -> Owner:
    """Every other message has TagA; their entries are in three files."""
    owner = Owner(settings(root))
    for number, body in enumerate(BODIES):
        owner.append("T", 0, [body], "TagB" if number % 2 else "TagA")
    return owner


def wanted(owner: Owner) -> list[bytes]:
    """Return the messages of a subscription to TagA."""
    found: list[bytes] = []
    offset = 0
    while offset < owner.store.max_offset("T", 0):
        result = owner.store.get("T", 0, offset, tag_codes=WANTED)
        if result.count:
            found += decode_columns(result.frames, result.lengths).bodies
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def flip(root: Path, bit: int) -> None:
    """Flip a bit of a queue's codes, counted through all its entries."""
    entry, bit = divmod(bit, 64)
    path = root / "consumequeue/T/0" / f"{entry // 10 * 200:020d}"
    content = bytearray(path.read_bytes())
    content[entry % 10 * 20 + 12 + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


# Each of the 24 codes, and each of the 64 bits of one.
BITS = [*range(3 * 64, 4 * 64, 7), *(64 * entry + (11 * entry) % 64 for entry in range(COUNT))]


def test_no_bit_of_a_code_hides_a_message_after_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "s").store.close()
    for number, bit in enumerate(BITS):
        root = crashed_copy(tmp_path / "s", tmp_path / str(number))
        flip(root, bit)
        owner = Owner(settings(root))
        caplog.clear()
        assert wanted(owner) == BODIES[::2]
        assert "was damaged" in caplog.text
        assert (root / "consumequeue/T/0/00000000000000000000").read_bytes() == (
            tmp_path / "s/consumequeue/T/0/00000000000000000000"
        ).read_bytes()
        caplog.clear()
        assert wanted(owner) == BODIES[::2]
        assert caplog.text == ""
        owner.store.close()


def test_no_bit_of_a_code_hides_a_message_while_the_broker_runs(tmp_path: Path) -> None:
    owner = filled(tmp_path)
    owner.write_point()
    for bit in BITS:
        assert wanted(owner) == BODIES[::2]
        flip(tmp_path, bit)
    assert wanted(owner) == BODIES[::2]
    owner.append("T", 0, [b"new"])
    assert wanted(owner) == [*BODIES[::2], b"new"]
    owner.store.close()


def test_what_is_proved_is_not_read_from_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[int] = []
    prove = queue_codes.proved_count

    def counted(log: object, key: object, offset: int, entries: object, levels: object) -> int:
        proved.append(offset)
        return prove(log, key, offset, entries, levels)  # type: ignore[arg-type]

    monkeypatch.setattr("rockoon_broker.store.reading.reader.proved_count", counted)
    owner = filled(tmp_path)
    assert wanted(owner) == BODIES[::2]
    assert proved == []
    owner.store.close()
    owner = Owner(settings(tmp_path))
    owner.append("T", 0, [b"new"], "TagC")
    for _ in range(2):
        assert wanted(owner) == BODIES[::2]
    assert proved == [0, 10, 20]
    owner.store.close()


def test_one_read_proves_no_more_than_its_share_and_goes_on_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path).store.close()
    monkeypatch.setattr(queue_codes, "PROOF_BYTES_MAX", 300)
    owner = Owner(settings(tmp_path))
    first = owner.store.get("T", 0, 0, tag_codes=WANTED)
    assert 0 < first.next_offset < 5
    assert wanted(owner) == BODIES[::2]
    owner.store.close()


def test_a_damaged_message_of_another_queue_keeps_no_entry_from_being_written_anew(
    tmp_path: Path,
) -> None:
    owner = filled(tmp_path)
    place = owner.append("T", 1, [b"<body>"]).first_physical_offset
    owner.append("T", 0, [b"last"], "TagA")
    owner.write_point()
    log = tmp_path / "commitlog" / f"{place - place % 4096:020d}"
    with log.open("r+b") as file:
        file.seek(place % 4096 + 88)
        file.write(b"<bory>")
    flip(tmp_path, 64 * COUNT)
    assert wanted(owner) == [*BODIES[::2], b"last"]
    owner.store.close()
