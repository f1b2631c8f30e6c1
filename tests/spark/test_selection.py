"""Conditions that are met before a record is decoded: exactly those that Spark would have kept."""

import operator
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from rockoon_format.record import Record, encode_record
from rockoon_spark.log_columns import LogRecords, to_batch
from rockoon_spark.selection import EVERYTHING, NAMED, RANGED
from rockoon_spark.source import narrow

COMPARISONS: Mapping[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@pytest.fixture(scope="module")
def records() -> LogRecords:
    """Few different values in each column, no two columns alike."""
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


def taken(records: LogRecords, condition: Filter) -> list[int]:
    narrowed = narrow(EVERYTHING, condition)
    assert narrowed is not None
    return np.flatnonzero(narrowed.mask(records)).tolist()


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("column", RANGED)
def test_numbers_and_times_are_compared_as_spark_compares_them(
    records: LogRecords, column: str, comparison: Any
) -> None:
    holds = COMPARISONS[comparison]
    each = values(records, column)
    step = timedelta(microseconds=1) if isinstance(each[0], datetime) else 1
    for value in sorted(set(each))[:5]:
        for bound in (value - step, value, value + step):
            expected = [n for n, found in enumerate(each) if holds(found, bound)]
            assert taken(records, comparison((column,), bound)) == expected


@pytest.mark.parametrize("column", NAMED)
def test_names_are_one_of_those_wanted_and_none_is_none_of_them(
    records: LogRecords, column: str
) -> None:
    each = values(records, column)
    for name in {*each, "nothing"} - {None}:
        expected = [n for n, found in enumerate(each) if found == name]
        assert taken(records, EqualTo((column,), name)) == expected
        assert taken(records, In((column,), (name, "other"))) == expected


def test_a_time_without_a_zone_is_of_this_machines(records: LogRecords) -> None:
    bound = datetime.fromtimestamp(3.001, UTC)
    local = bound.astimezone().replace(tzinfo=None)
    aware, naive = (taken(records, LessThan(("store_time",), each)) for each in (bound, local))
    assert aware == naive
    assert 0 < len(aware) < len(records)


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("body",), b"x"),
        EqualTo(("topic",), None),
        EqualTo(("properties", "topic"), "T"),
        GreaterThan(("topic",), "T"),
        In(("queue",), (1, 2)),
        IsNotNull(("tags",)),
        Not(EqualTo(("topic",), "T")),
        StringContains(("topic",), "T"),
    ],
)
def test_what_cannot_be_told_from_a_records_bytes_is_left_to_spark(condition: Filter) -> None:
    assert narrow(EVERYTHING, condition) is None
