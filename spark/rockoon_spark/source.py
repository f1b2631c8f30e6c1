"""`spark.read.format("rockoon")`: CommitLogs as a DataFrame.

    spark.dataSource.register(RockoonDataSource)
    spark.read.format("rockoon").option("path", "/var/lib/rockoon/store").load()

Options:
    path: a store directory, Rockoon's or RocketMQ's; a path of this machine, or a URI.
    broker: what the column of that name says; by default the directory's name.
    columns: names separated by commas; by default all. Spark does not tell a Python data source
        which columns a query uses, so naming them saves what the others cost.
    topics: names separated by commas; `topicPattern`: with * and ?.
    startingOffsets, endingOffsets: {"topic": {"0": 17}} by queue; other queues are read whole.
    startingTimestamp, endingTimestamp: store time as epoch milliseconds or ISO 8601.
    onDamage: "fail" (default) or "skip" what belongs to no record.
    splitBytes: bytes of log that one task reads.

Conditions on topic, tags, queue, offsets and times are met before a record is decoded where Spark
hands them over (`spark.sql.python.filterPushdown.enabled`).
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rockoon_spark.files import LogFile, dropped_marks, list_log
from rockoon_spark.log_columns import COLUMNS, OPTIONAL, LogRecords, arrow_schema, to_batch
from rockoon_spark.log_ranges import Damage
from rockoon_spark.selection import NAMED, RANGED, Range, Selection
from rockoon_spark.splits import SPLIT_BYTES, Split, files_of_times, read_split, split_files

log = logging.getLogger(__name__)

BATCH_RECORDS = 8192


class OptionError(ValueError):
    """An option that cannot be used."""


class DamagedLog(Exception):
    """Bytes of a log belong to no record."""


@dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for."""

    path: str
    broker: str
    columns: tuple[str, ...]
    selection: Selection
    skips_damage: bool
    split_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Read options as Spark gives them, whose names know no case.

        Raises:
            OptionError: one is missing, unknown or wrong.
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = given.keys() - {name.lower() for name in _OPTIONS}
        if unknown:
            raise OptionError(f"unknown options: {', '.join(sorted(unknown))}")
        path = given.get("path", "")
        if not path:
            raise OptionError("option path: which store directory?")
        on_damage = given.get("ondamage", "fail")
        if on_damage not in ("fail", "skip"):
            raise OptionError(f"option onDamage: {on_damage!r} is neither fail nor skip")
        return cls(
            path=path,
            broker=given.get("broker") or PurePath(path).name,
            columns=_columns(given.get("columns")),
            selection=_selection(given),
            skips_damage=on_damage == "skip",
            split_bytes=_whole_number("splitBytes", given.get("splitbytes"), SPLIT_BYTES),
        )


_OPTIONS = (
    "path",
    "broker",
    "columns",
    "topics",
    "topicPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "onDamage",
    "splitBytes",
)


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if name not in COLUMNS]
    if wrong or len(set(names)) < len(names):
        raise OptionError(
            f"option columns: {', '.join(wrong) or text}: choose from {', '.join(COLUMNS)}"
        )
    return names


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = Selection(
        topic_pattern=given.get("topicpattern", "*"),
        starts=_offsets("startingOffsets", given.get("startingoffsets")),
        ends=_offsets("endingOffsets", given.get("endingoffsets")),
    )
    if "topics" in given:
        names = frozenset(name.strip() for name in given["topics"].split(","))
        chosen = chosen.among("topic", names)
    if "startingtimestamp" in given:
        least = _time_us("startingTimestamp", given["startingtimestamp"])
        chosen = chosen.ranged("store_time", Range(least=least))
    if "endingtimestamp" in given:
        behind = _time_us("endingTimestamp", given["endingtimestamp"])
        chosen = chosen.ranged("store_time", Range(most=behind - 1))
    return chosen


def _whole_number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"option {name}: {text!r} is no number of 1 or more")
    return int(text)


def _offsets(name: str, text: str | None) -> Mapping[tuple[str, int], int]:
    if text is None or text in ("earliest", "latest"):
        return {}
    try:
        return {
            (topic, int(queue)): int(offset)
            for topic, queues in json.loads(text).items()
            for queue, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(
            f'option {name}: {text!r} is not like {{"orders": {{"0": 17}}}}'
        ) from error


def _time_us(name: str, text: str) -> int:
    """Epoch microseconds."""
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"option {name}: {text!r} is neither epoch milliseconds nor ISO 8601"
        ) from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000_000)


class LogPartition(InputPartition):
    """One task's stretch of a log."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class RockoonDataSource(DataSource):
    """Spark's way in; see the module."""

    @classmethod
    def name(cls) -> str:
        return "rockoon"

    def schema(self) -> StructType:
        columns = ReadOptions.parse(self.options).columns
        return from_arrow_schema(arrow_schema(columns))

    def reader(self, schema: StructType) -> "LogReader":
        del schema
        return LogReader(ReadOptions.parse(self.options))


class LogReader(DataSourceReader):
    """Reads the CommitLog of one store directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._selection = options.selection

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what can be told from a record's bytes; Spark checks the others."""
        for each in filters:
            narrowed = narrow(self._selection, each)
            if narrowed is None:
                yield each
            else:
                self._selection = narrowed

    def partitions(self) -> Sequence[InputPartition]:
        if self._selection.is_empty:
            return []
        files = list_log(self._options.path)
        wanted = self._selection.ranges.get("store_time")
        if wanted is not None:
            files = files_of_times(files, wanted.least // 1000, -(-wanted.most // 1000))
        return [LogPartition(split) for split in split_files(files, self._options.split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        split = partition.split
        buffer, found = read_split(split)
        self._report(split.file, found.damages)
        marks = dropped_marks(self._options.path)
        base = split.file.start + split.start
        for at in range(0, len(found.starts), BATCH_RECORDS):
            chosen = slice(at, at + BATCH_RECORDS)
            records = LogRecords.of(
                buffer, base, found.starts[chosen], found.sizes[chosen], self._options.broker
            )
            records = records.chosen(_kept(records, marks) & self._selection.mask(records))
            if len(records):
                yield to_batch(records, self._options.columns)

    def _report(self, file: LogFile, damages: Sequence[Damage]) -> None:
        for damage in damages:
            place = f"{file.uri}: physical offsets {damage.start} to {damage.end} hold no record"
            if not self._options.skips_damage:
                raise DamagedLog(f"{place}; option onDamage=skip reads on behind them")
            log.warning("%s: skipped", place)


def narrow(selection: Selection, condition: Filter) -> Selection | None:
    """A selection that a condition is part of; None if it cannot be told from a record's bytes."""
    column = ".".join(getattr(condition, "attribute", ()))
    if isinstance(condition, IsNotNull) and column in COLUMNS and column not in OPTIONAL:
        return selection
    if column in NAMED:
        match condition:
            case EqualTo(value=str(value)):
                return selection.among(column, frozenset({value}))
            case In(value=values) if all(isinstance(value, str) for value in values):
                return selection.among(column, frozenset(values))
    number = _as_number(getattr(condition, "value", None)) if column in RANGED else None
    if number is None:
        return None
    match condition:
        case EqualTo():
            return selection.ranged(column, Range(number, number))
        case GreaterThan():
            return selection.ranged(column, Range(least=number + 1))
        case GreaterThanOrEqual():
            return selection.ranged(column, Range(least=number))
        case LessThan():
            return selection.ranged(column, Range(most=number - 1))
        case LessThanOrEqual():
            return selection.ranged(column, Range(most=number))
    return None


def _as_number(value: Any) -> int | None:
    if isinstance(value, datetime):
        when = value if value.tzinfo else value.astimezone()
        return round(when.timestamp() * 1_000_000)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kept(records: LogRecords, marks: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which records did not go with their topic."""
    kept = np.ones(len(records), np.bool_)
    for topic, mark in marks.items():
        if records.base < mark:
            of_topic = Selection().among("topic", frozenset({topic})).mask(records)
            kept &= ~(of_topic & (records.prefix("physical_offset") < mark))
    return kept
