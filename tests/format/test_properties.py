"""Property sections, as written by every version of the broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format import properties
from support.random_messages import many_examples, sections


def test_pairs_keep_their_order_and_end_in_a_separator() -> None:
    pairs = {"TAGS": "a", "KEYS": "k1 k2"}
    assert properties.encode(pairs) == b"TAGS\x01a\x02KEYS\x01k1 k2\x02"
    assert properties.encode({}) == b""


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"A\x01b\x02", {"A": "b"}),
        (b"A\x01b", {"A": "b"}),
        (b"A\x01b\x02C\x01d", {"A": "b", "C": "d"}),
        (b"A\x01\x02C\x01d\x02", {"C": "d"}),
        (b"\x01b\x02C\x01d\x02", {"C": "d"}),
        (b"A\x01b\x02A\x01c\x02", {"A": "c"}),
        (b"A\x01b\x02A\x01\x02", {"A": "b"}),
        (b"A\x01b\x01c\x02", {"A": "b\x01c"}),
        (b"nothing", {}),
        (b"\x02\x02\x02", {}),
        (b"", {}),
    ],
)
def test_reading_drops_what_a_broker_drops(raw: bytes, expected: dict[str, str]) -> None:
    assert properties.decode(raw) == expected


@pytest.mark.parametrize("pair", [("", "v"), ("n", ""), ("a\x01", "v"), ("a", "\x02")])
def test_pairs_that_would_read_back_differently_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        properties.encode(dict([pair]))


def test_properties_longer_than_their_length_field_are_refused() -> None:
    assert len(properties.encode({"N": "v" * 32764})) == 32767
    with pytest.raises(ValueError, match="32768"):
        properties.encode({"N": "v" * 32765})


names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)


@given(pairs=st.dictionaries(names, names, max_size=6))
@many_examples
def test_any_properties_read_back(pairs: dict[str, str]) -> None:
    raw = properties.encode(pairs)
    assert properties.decode(raw) == pairs
    assert properties.decode(raw[:-1]) == pairs


@given(raw=sections, name=st.sampled_from(["TAGS", "KEYS", "K"]))
@many_examples
def test_looking_for_one_property_finds_what_reading_all_finds(raw: bytes, name: str) -> None:
    assert properties.find_value(raw, name) == properties.decode(raw).get(name)


def test_malformed_text_is_replaced_as_java_replaces_it() -> None:
    assert properties.decode_text(b"a\xffb") == "a\ufffdb"
    assert properties.decode_text(b"\xed\xa0\x80") == "\ufffd"


def test_keys_are_the_tokens_between_spaces() -> None:
    assert properties.split_keys("a  b c ") == ["a", "b", "c"]
    assert properties.split_keys("") == []


def test_reserved_names_are_the_ones_on_disk() -> None:
    assert {"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#", "1ST_POP_TIME"} <= properties.RESERVED_NAMES
    assert "PROPERTY_SEPARATOR" not in properties.RESERVED_NAMES
