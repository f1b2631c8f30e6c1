"""The whole KEYS of many records, as compaction compares them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format.index_entries import whole_keys
from rockoon_format.properties import decode_text, find_value
from support.random_messages import many_examples

FRAGMENTS = [
    b"KEYS\x01",
    b"KEYS",
    b"TAGS\x01TagA\x02",
    b"MONKEYS\x01no\x02",
    b"KEYS\x02\x01",
    b"\x02",
    b"\x01",
    b" ",
    b"a",
    90 * b"k",
    300 * b"z",
    "schlüssel".encode(),
    b"\xe2\x02",
    b"KEYS\x01k1 k2  k3\x02",
    b"KEYS\x01 \x02",
]
sections = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map(b"".join)
WORDS = [b"", b"\0" * 9, b" \x02KEYS\x01no\x02 ", b"\xff \x02\x02"]


@given(
    records=st.lists(st.tuples(sections, st.sampled_from([*WORDS, 20 * b"w"])), max_size=24),
)
@many_examples
def test_whole_keys_of_many_records_are_what_each_has(records: list[tuple[bytes, bytes]]) -> None:
    data, starts = bytearray(), []
    for section, gap in records:
        data += gap
        starts.append(len(data))
        data += section
    lengths = [len(section) for section, _ in records]
    found = {}
    for numbers, rows, at, sizes in whole_keys(
        bytes(data), np.array(starts, np.int64), np.array(lengths, np.int64)
    ):
        assert len(rows) >= int((at + sizes).max(initial=0)) + 8
        for number, start, size in zip(numbers.tolist(), at.tolist(), sizes.tolist(), strict=True):
            found[number] = decode_text(rows[start : start + size].tobytes())
    each = ((number, find_value(section, "KEYS")) for number, (section, _) in enumerate(records))
    assert found == {number: keys for number, keys in each if keys}
