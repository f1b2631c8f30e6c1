"""Keys are compared by hashes, and the newest record of each key is found."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rockoon_spark.compaction.newest import (
    SECRET_BYTES,
    Hashes,
    KeyHash,
    KeyRows,
    in_buckets,
    newest,
)
from support.random_messages import many_examples

SECRET = bytes(range(SECRET_BYTES))
TOPICS = ["T", "U", "%RETRY%" + 200 * "g"]

keys = st.one_of(
    st.binary(min_size=1, max_size=40),
    # Lengths around the widths that are hashed together, and longer ones.
    st.builds(lambda count, end: count * b"k" + end, st.integers(0, 260), st.binary(min_size=1)),
)


def hashes_of(named: list[tuple[int, bytes]], gap: bytes = b"", secret: bytes = SECRET) -> Hashes:
    data, starts = bytearray(), []
    for _, key in named:
        data += gap
        starts.append(len(data))
        data += key
    return KeyHash(secret).of_keys(
        np.frombuffer(bytes(data), np.uint8),
        np.array(starts, np.int64),
        np.array([len(key) for _, key in named], np.int64),
        TOPICS,
        np.array([topic for topic, _ in named], np.int64),
    )


@given(st.lists(st.tuples(st.integers(0, 2), keys), min_size=1, max_size=20), st.binary(max_size=9))
@many_examples
def test_hashes_are_equal_exactly_where_topics_and_keys_are(
    named: list[tuple[int, bytes]], gap: bytes
) -> None:
    together = [tuple(each) for each in hashes_of(named, gap).tolist()]
    for one, other in zip(together, named, strict=True):
        assert [tuple(each) for each in hashes_of([other]).tolist()] == [one]
    assert len(set(together)) == len(set(named))


def test_zeros_at_a_keys_end_and_keys_that_share_words_make_a_difference() -> None:
    named = [
        (0, key) for key in (b"a", b"a\0", b"a\0\0", b"\0a", 8 * b"a", 9 * b"a", b"\0", b"\0\0")
    ]
    assert len({tuple(each) for each in hashes_of(named).tolist()}) == len(named)


def test_another_secret_makes_other_hashes() -> None:
    named = [(0, b"key"), (1, 300 * b"k")]
    other = hashes_of(named, secret=bytes(SECRET_BYTES))
    assert not (hashes_of(named) == other).any()


def test_each_bit_of_the_hashes_is_set_in_about_half_of_them() -> None:
    hashes = hashes_of([(0, b"key-%d" % number) for number in range(4000)])
    bits = np.unpackbits(hashes.view(np.uint8).reshape(4000, 16), axis=1).mean(axis=0)
    assert (abs(bits - 0.5) < 0.05).all()


def test_records_without_a_key_have_hashes_of_their_own() -> None:
    places = np.array([0, 1, 2, 1 << 40, (1 << 61) - 1], np.int64)
    hashes = KeyHash(SECRET).of_offsets(places)
    assert len({tuple(each) for each in hashes.tolist()}) == len(places)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=60),
    st.integers(1, 9),
)
@many_examples
def test_the_newest_row_of_each_hash_is_found_whatever_its_half_and_bucket(
    rows: list[tuple[int, int, bool]], buckets: int
) -> None:
    # The first halves of the hashes are equal in groups, in all buckets.
    pairs = [(first * (2**64 // 6) + first, second) for first, second, _ in rows]
    hashes = np.array(pairs, np.uint64).reshape(-1, 2)
    physical = np.random.default_rng(len(rows)).permutation(len(rows)).astype(np.int64) << 40
    flags = np.array([flag for *_, flag in rows], np.bool_)
    made = KeyRows.decode(KeyRows.of(hashes, physical, ~flags, flags).encode())
    expected: dict[tuple[int, int], tuple[int, bool]] = {}
    for pair, place, flag in zip(pairs, physical.tolist(), flags.tolist(), strict=True):
        if pair not in expected or expected[pair][0] < place:
            expected[pair] = place, flag
    left = made[newest(made)]
    found = {}
    for bucket, own in in_buckets(left, buckets):
        assert 0 <= bucket < buckets
        columns = (own.hashes.tolist(), own.physical_offsets.tolist(), own.are_expired.tolist())
        for (first, second), place, flag in zip(*columns, strict=True):
            assert (first, second) not in found
            found[first, second] = place, flag
    assert found == expected
