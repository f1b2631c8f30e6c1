"""The rows that options leave out are those that Spark would leave out by the columns."""

import random
from typing import Any

import numpy as np
import pytest

from rockoon_format.record import Record, encode_record
from rockoon_spark.records.columns import LogRecords, to_batch
from rockoon_spark.records.selection import EVERYTHING, NAMED, RANGED, Range, Selection


@pytest.fixture(scope="module")
def records() -> LogRecords:
    """Return records with few different values in each column, and no two equal columns."""
    choose = random.Random(1)
    frames = [
        encode_record(
            Record(
                topic=choose.choice([b"orders", b"bills"]),
                properties=choose.choice([b"", b"TAGS\x01new\x02", b"TAGS\x01paid\x02"]),
                queue_id=choose.randrange(4),
                queue_offset=choose.randrange(10, 15),
                physical_offset=1000 * number,
                born_timestamp_ms=choose.randrange(2000, 2004),
                store_timestamp_ms=choose.randrange(3000, 3004),
            )
        )
        for number in range(100)
    ]
    sizes = np.array([len(frame) for frame in frames])
    buffer = np.frombuffer(b"".join(frames), np.uint8)
    return LogRecords.of(buffer, 0, np.cumsum(sizes) - sizes, sizes, "broker-a")


def values(records: LogRecords, column: str) -> list[Any]:
    found: list[Any] = to_batch(records, [column])[column].to_pylist()
    return found


def taken(records: LogRecords, selection: Selection) -> list[int]:
    return np.flatnonzero(selection.mask(records)).tolist()


@pytest.mark.parametrize("column", RANGED)
def test_both_ends_of_a_range_are_in_it(records: LogRecords, column: str) -> None:
    each = [round(value.timestamp() * 1_000_000) for value in values(records, column)]
    for value in sorted(set(each)):
        for least in (value - 1, value, value + 1):
            for most in (least - 1, least, value + 1000):
                expected = [n for n, found in enumerate(each) if least <= found <= most]
                chosen = EVERYTHING.ranged(column, Range(least=least))
                assert taken(records, chosen.ranged(column, Range(most=most))) == expected
                assert chosen.ranged(column, Range(most=most)).is_empty == (least > most)


@pytest.mark.parametrize("column", NAMED)
def test_names_are_one_of_those_wanted_and_none_is_none_of_them(
    records: LogRecords, column: str
) -> None:
    each = values(records, column)
    for name in {*each, "nothing"} - {None}:
        expected = [n for n, found in enumerate(each) if found == name]
        chosen = EVERYTHING.among(column, frozenset({name, "other"}))
        assert taken(records, chosen) == expected
        assert chosen.among(column, frozenset({"other"})).is_empty is False
        assert taken(records, chosen.among(column, frozenset({"another"}))) == []
