"""Header blocks: bounds of the headers that a connection decodes and keeps."""

import pytest

from rockoon_core.http2.frames import ConnectionBroken, ErrorCode
from rockoon_core.http2.headers import HeaderReader, block

# A value of 4,000 bytes that the table keeps (RFC 7541, section 6.2.1), and its entry's index.
KEPT = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"v" * 4_000
ENTRY = b"\xbe"
TABLE_SIZE = b"\x3f\xe1\x1f"


def error_of(reader: HeaderReader, raw: bytes) -> ErrorCode:
    with pytest.raises(ConnectionBroken) as broken:
        reader.read(raw)
    return broken.value.code


@pytest.mark.parametrize("times", [5, 10_000])
def test_a_short_block_that_names_a_long_entry_often_ends_the_connection(times: int) -> None:
    reader = HeaderReader()
    reader.read(KEPT)
    assert len(reader.read(ENTRY * 4)) == 4
    assert error_of(reader, ENTRY * times) is ErrorCode.ENHANCE_YOUR_CALM


def test_a_short_list_is_decoded_once_and_a_long_one_is_not_kept() -> None:
    reader = HeaderReader()
    short = block([(":path", "/test")])
    assert reader.read(short) is reader.read(short)
    assert reader.is_known
    assert reader.decoded_bytes == 0
    reader.read(KEPT)
    assert reader.read(ENTRY) is not reader.read(ENTRY)
    assert not reader.is_known
    assert reader.decoded_bytes > 4_000


def test_a_block_begins_with_two_table_sizes_at_most() -> None:
    reader = HeaderReader()
    assert reader.read(b"\x20" + TABLE_SIZE + b"\x88") == ((":status", "200"),)
    assert error_of(reader, b"\x20" + TABLE_SIZE + b"\x20\x88") is ErrorCode.COMPRESSION_ERROR
    assert error_of(reader, 10_000 * b"\x20") is ErrorCode.COMPRESSION_ERROR
