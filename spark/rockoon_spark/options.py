"""What a reader of `format("rockoon")` can be told; see `rockoon_spark.source`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from rockoon_spark.live_cluster import LiveCluster
from rockoon_spark.log_columns import COLUMNS
from rockoon_spark.selection import QueueKey, Range, Selection
from rockoon_spark.splits import SPLIT_BYTES
from rockoon_spark.store_directory import StoreDirectory
from rockoon_spark.stretches import LogPlace


class OptionError(ValueError):
    """An option that cannot be used."""


@dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for."""

    place: LogPlace
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
        return cls(
            place=_place(given),
            columns=_columns(given.get("columns")),
            selection=_selection(given),
            skips_damage=_one_of(given, "onDamage", "fail", "skip") == "skip",
            split_bytes=_whole_number("splitBytes", given.get("splitbytes"), SPLIT_BYTES),
        )


_OF_DIRECTORY = ("path", "broker")
_OF_CLUSTER = ("endpoint", "onBrokerAway", "failOnDataLoss")
_OPTIONS = (
    *_OF_DIRECTORY,
    *_OF_CLUSTER,
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


def _place(given: Mapping[str, str]) -> LogPlace:
    endpoint, path = given.get("endpoint", ""), given.get("path", "")
    if bool(endpoint) == bool(path):
        raise OptionError(
            "option path says which store directory is read, option endpoint which live cluster:"
            " one of them is needed"
        )
    foreign = _OF_DIRECTORY if endpoint else _OF_CLUSTER
    wrong = [name for name in foreign if name.lower() in given]
    if wrong:
        kind = "live cluster" if endpoint else "store directory"
        raise OptionError(f"option {wrong[0]}: means nothing for a {kind}")
    if path:
        return StoreDirectory(path, given.get("broker") or PurePath(path).name)
    return LiveCluster(
        endpoint,
        skips_brokers_away=_one_of(given, "onBrokerAway", "fail", "skip") == "skip",
        fails_on_data_loss=_one_of(given, "failOnDataLoss", "true", "false") == "true",
    )


def _one_of(given: Mapping[str, str], name: str, default: str, other: str) -> str:
    chosen = given.get(name.lower(), default)
    if chosen not in (default, other):
        raise OptionError(f"option {name}: {chosen!r} is neither {default} nor {other}")
    return chosen


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


def _offsets(name: str, text: str | None) -> Mapping[QueueKey, int]:
    if text is None or text in ("earliest", "latest"):
        return {}
    try:
        return {
            _queue(topic, place): int(offset)
            for topic, queues in json.loads(text).items()
            for place, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(
            f'option {name}: {text!r} is not like {{"orders": {{"0": 17, "broker-a:1": 5}}}}'
        ) from error


def _queue(topic: str, place: str) -> QueueKey:
    """A queue named by its number, or by "broker:number"."""
    broker, _, number = place.rpartition(":")
    return topic, broker, int(number)


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
