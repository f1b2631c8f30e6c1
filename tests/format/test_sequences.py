"""Sequence numbers in records: written ones are found, and no others."""

import random

import numpy as np
import pytest

from rockoon_format.batch import encode_batch
from rockoon_format.record import encode_host
from rockoon_format.sequences import (
    SECTION_BYTES,
    SEQUENCE_MAX,
    encode_sequences,
    find_sequences,
    first_without_sequence,
)
from support.seeds import seeds

BORN_HOST = encode_host("127.0.0.1", 54321)


def records(*sections: bytes, bodies: list[bytes] | None = None) -> tuple[bytes, np.ndarray]:
    bodies = [b"body"] * len(sections) if bodies is None else bodies
    return encode_batch(b"T", 0, bodies, list(sections), 0, BORN_HOST)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def found_in(frames: bytes, lengths: np.ndarray) -> list[tuple[int, int, int, int]]:
    found = find_sequences(frames, starts_of(lengths), lengths)
    columns = (found.indices, found.producer_ids, found.first_sequences, found.batch_indices)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_batch_bears_the_numbers_it_was_given() -> None:
    producer, first = 0xFEDC_BA98_7654_3210, SEQUENCE_MAX - 3
    sections = encode_sequences(producer, first, 3).tolist()
    assert sections[1] == b"__SEQ\x01fedcba9876543210fffffffffffc0001\x02"
    assert {len(section) for section in sections} == {SECTION_BYTES}
    frames, lengths = records(sections[0], b"TAGS\x01a\x02" + sections[1], sections[2])
    assert found_in(frames, lengths) == [(i, producer, first, i) for i in range(3)]
    assert first_without_sequence(frames, lengths, producer, first) is None


def test_records_of_others_are_passed_over() -> None:
    own = encode_sequences(7, 100, 2).tolist()
    frames, lengths = records(b"", b"TAGS\x01x\x02", own[0], b"UNIQ_KEY\x01aa\x02", own[1])
    assert found_in(frames, lengths) == [(2, 7, 100, 0), (4, 7, 100, 1)]
    assert found_in(b"", np.zeros(0, np.uint32)) == []


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(b"x" + encode_sequences(7, 0, 1).tolist()[0], id="a longer name"),
        pytest.param(encode_sequences(7, 0, 1).tolist()[0] + b"a\x01b\x02", id="not the last"),
        pytest.param(b"__SEQ\x01" + b"G" * 32 + b"\x02", id="no digits"),
        pytest.param(b"__SEQ\x01" + b"0" * 32 + b"\x01", id="no end"),
        pytest.param(b"", id="none"),
    ],
)
def test_what_only_looks_like_a_sequence_number_is_none(section: bytes) -> None:
    own = encode_sequences(7, 0, 1).tolist()[0]
    # The body ends like the property.
    frames, lengths = records(section, bodies=[own])
    assert found_in(frames, lengths) == []
    assert first_without_sequence(frames, lengths, 7, 0) == 0


def test_the_first_record_with_another_number_is_named() -> None:
    own = encode_sequences(7, 40, 5).tolist()
    frames, lengths = records(*own[:3], own[4], own[3])
    assert first_without_sequence(frames, lengths, 7, 40) == 3
    assert first_without_sequence(frames, lengths, 8, 40) == 0
    assert first_without_sequence(frames, lengths, 7, 41) == 0


@pytest.mark.parametrize(
    ("producer", "first", "count"),
    [(0, 0, 1), (1 << 64, 0, 1), (1, -1, 1), (1, SEQUENCE_MAX, 1), (1, 0, 0), (1, 0, 65_537)],
)
def test_numbers_that_do_not_fit_are_refused(producer: int, first: int, count: int) -> None:
    with pytest.raises(ValueError, match="not"):
        encode_sequences(producer, first, count)


@pytest.mark.parametrize("seed", seeds(1))
def test_random_records_give_back_what_they_bear(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        sections: list[bytes] = []
        expected = []
        for _ in range(chance.randrange(1, 6)):
            count = chance.randrange(1, 5)
            head = chance.choice([b"", b"TAGS\x01t\x02", b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02"])
            if chance.random() < 0.5:
                sections += [head] * count
                continue
            producer, first = chance.randrange(1, 1 << 64), chance.randrange(1 << 47)
            own = encode_sequences(producer, first, count).tolist()
            expected += [(len(sections) + i, producer, first, i) for i in range(count)]
            sections += [head + section for section in own]
        bodies = [chance.randbytes(chance.randrange(50)) for _ in sections]
        assert found_in(*records(*sections, bodies=bodies)) == expected
