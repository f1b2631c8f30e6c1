"""Java's string hash, of single strings and of many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format import kernel
from rockoon_format.hashes import index_key_hash, java_hash_code, java_hash_codes, tags_code
from rockoon_format.properties import decode_text
from support.random_messages import many_examples


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagC", 2598921),
        ("*", 42),
        ("\u4e2d\u6587", 646394),
        ("TopicTest#key1", -1655984460),
        ("TopicTest#key2", -1655984459),
        ("TopicTest#7F00000100002A139A5500000000", -195084373),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_hashes_are_those_of_java(text: str, code: int) -> None:
    assert java_hash_code(text) == code
    assert tags_code(text) == code


def test_an_index_hash_is_absolute_and_zero_where_there_is_no_absolute() -> None:
    assert index_key_hash("TopicTest#key1") == 1655984460
    assert index_key_hash("TopicTest#7F00000100002A139A5500000000") == 195084373
    assert index_key_hash("polygenelubricants") == 0
    assert index_key_hash("TagA") == 2598919


def test_a_character_beyond_the_basic_plane_counts_as_two() -> None:
    assert java_hash_code("\U0001f600") == 31 * 0xD83D + 0xDE00


pieces = st.one_of(
    st.text(max_size=70).map(str.encode),
    st.binary(max_size=10),
    st.text(alphabet="abcTag", max_size=80).map(str.encode),
    st.integers(0, 300).map(
        lambda length: b"polygenelubricants\x7f"[: length % 20] + length * b"z"
    ),
)


@given(texts=st.lists(pieces, max_size=20), gap=st.integers(0, 3))
@many_examples
def test_hashing_in_bulk_says_what_hashing_one_by_one_says(texts: list[bytes], gap: int) -> None:
    # Bytes before a text must not count, and need not exist.
    data = bytes(range(256)) * gap + (b"#" * gap).join(texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = 256 * gap + np.cumsum(lengths + gap) - lengths - gap
    codes = java_hash_codes(np.frombuffer(data, np.uint8), starts, lengths)
    assert codes.tolist() == [java_hash_code(decode_text(text)) for text in texts]


@pytest.mark.skipif(not kernel.is_compiled(), reason="there is no compiled kernel")
@given(st.text(st.characters(exclude_characters="\x02", codec="utf-8"), max_size=40))
def test_the_compiled_hash_is_that_of_java(text: str) -> None:
    for cut in range(len(text) + 1):
        stored = f"TAGS\x01{text[cut:]}\x02".encode()
        start, length = np.array([0]), np.array([len(stored)])
        codes = kernel.native.tags_codes(stored, start.tobytes(), length.tobytes())
        assert np.frombuffer(codes, np.int64).tolist() == [java_hash_code(text[cut:])]
