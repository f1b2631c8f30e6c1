"""Entries of 20 bytes, their fillers, and the names of their files."""

import pytest

from rockoon_format.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from rockoon_format.consume_queue import (
    decode_entries,
    encode_entries,
    filler_entries,
)
from rockoon_format.file_names import file_name_to_offset, offset_to_file_name


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((0, 178, 2598919), "0000000000000000000000b2000000000027a807"),
        ((293, 108, 0), "00000000000001250000006c0000000000000000"),
        ((401, 157, 1_700_000_014_500), "00000000000001910000009d0000018bcfe5a0a4"),
        ((0x1000, 0xC26, 2598921), "000000000000100000000c26000000000027a809"),
        ((1, 2, -(2**31)), "000000000000000100000002ffffffff80000000"),
    ],
)
def test_an_entry_is_that_of_apache(entry: tuple[int, int, int], expected: str) -> None:
    offset, size, code = entry
    raw = encode_entries([offset], [size], [code]).tobytes()
    assert raw.hex() == expected
    assert decode_entries(raw)[0].item() == entry


def test_a_queue_that_starts_late_has_fillers_in_front() -> None:
    raw = filler_entries(3) + encode_entries([4096], [3110], [2598921]).tobytes() + bytes(40)
    assert raw[:20].hex() == "00000000000000007fffffff0000000000000000"
    assert decode_entries(raw)[:4].tolist() == [(0, 0x7FFFFFFF, 0)] * 3 + [(4096, 3110, 2598921)]


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0, "00000000000000000000"),
        (6_000_000, "00000000000006000000"),
        (2**63 - 1, "09223372036854775807"),
    ],
)
def test_a_file_is_named_after_its_first_byte(offset: int, name: str) -> None:
    assert offset_to_file_name(offset) == name
    assert file_name_to_offset(name) == offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "000000000000000000000",
        "0000000000000000000a",
        "foo.tmp",
        "99999999999999999999",
        "\u0660" * 20,
        "-0000000000000000001",
    ],
)
def test_other_files_are_not_log_files(name: str) -> None:
    with pytest.raises(ValueError, match=r"name|beyond"):
        file_name_to_offset(name)


def test_a_checkpoint_is_one_page_and_steps_back_three_seconds() -> None:
    checkpoint = Checkpoint(10_000, 9_000, 8_000, 77, 88)
    page = encode_checkpoint(checkpoint)
    assert len(page) == 4096
    assert page[:40].hex() == "".join(f"{n:016x}" for n in (10_000, 9_000, 8_000, 77, 88))
    assert decode_checkpoint(page) == checkpoint
    assert checkpoint.dispatched_timestamp_ms() == 6_000
    assert Checkpoint().dispatched_timestamp_ms() == 0
    with pytest.raises(ValueError, match="cut short"):
        decode_checkpoint(page[:39])


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_no_file_starts_outside_the_log(offset: int) -> None:
    with pytest.raises(ValueError, match="no file"):
        offset_to_file_name(offset)
