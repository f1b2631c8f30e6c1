"""Options of `spark.read.format("rockoon")`; see `rockoon_spark.source.data_source`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.records.selection import QueueKey, Range, Selection
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import SPLIT_BYTES, LogSource
from rockoon_spark.source.store_directory import StoreDirectory


class OptionError(ValueError):
    """An option that cannot be used."""


@dataclass(frozen=True)
class ReadOptions:
    """What a reader was asked for."""

    source: LogSource
    columns: tuple[str, ...]
    topics: frozenset[str]
    """Those that were named; they have to exist."""
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
            source=_source(given),
            columns=columns_of(given.get("columns")),
            topics=topics_of(given),
            selection=_selection(given),
            skips_damage=one_of(given, "onDamage", "fail", "skip") == "skip",
            split_bytes=whole_number("splitBytes", given.get("splitbytes"), SPLIT_BYTES),
        )


# In the place of an offset, as Kafka's source has them.
_WORDS = {"latest": -1, "earliest": -2}
_OF_DIRECTORY = ("path", "broker")
_OF_CLUSTER = ("endpoint", "brokers", "onBrokerAway")
_OPTIONS = (
    *_OF_DIRECTORY,
    *_OF_CLUSTER,
    "columns",
    "topic",
    "topics",
    "topicPattern",
    "tags",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "compacted",
    "failOnDataLoss",
    "onDamage",
    "splitBytes",
)


def _source(given: Mapping[str, str]) -> LogSource:
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
    compacted = one_of(given, "compacted", "true", "false") == "true"
    fails_on_data_loss = one_of(given, "failOnDataLoss", "true", "false") == "true"
    if path:
        broker = given.get("broker") or PurePath(path).name
        return StoreDirectory(path, broker, compacted, fails_on_data_loss)
    return LiveCluster(
        endpoint,
        skips_brokers_away=one_of(given, "onBrokerAway", "fail", "skip") == "skip",
        fails_on_data_loss=fails_on_data_loss,
        compacted=compacted,
    )


def one_of(given: Mapping[str, str], name: str, default: str, other: str) -> str:
    """An option that is one of two words.

    Raises:
        OptionError: it is another.
    """
    chosen = given.get(name.lower(), default)
    if chosen not in (default, other):
        raise OptionError(f"option {name}: {chosen!r} is neither {default} nor {other}")
    return chosen


def columns_of(text: str | None) -> tuple[str, ...]:
    """Option columns; without it all of them.

    Raises:
        OptionError: there is no such column, or one is named twice.
    """
    if text is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if name not in COLUMNS]
    if wrong or len(set(names)) < len(names):
        raise OptionError(
            f"option columns: {', '.join(wrong) or text}: choose from {', '.join(COLUMNS)}"
        )
    return names


def topics_of(given: Mapping[str, str]) -> frozenset[str]:
    """Options topics and topic, which are one; empty where neither is given.

    Raises:
        OptionError: one is given and names no topic.
    """
    return _names(given, "topics", "topic") | _names(given, "topic", "topic")


def _names(given: Mapping[str, str], option: str, kind: str) -> frozenset[str]:
    named = frozenset(name.strip() for name in given.get(option, "").split(",")) - {""}
    if option in given and not named:
        raise OptionError(f"option {option}: names no {kind}")
    return named


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = Selection(
        topic_pattern=given.get("topicpattern", "*"),
        starts=_bounds(given, "startingOffsets", unbounded="earliest", empty="latest"),
        ends=_bounds(given, "endingOffsets", unbounded="latest", empty="earliest"),
    )
    wanted = {
        "topic": topics_of(given),
        "tags": _names(given, "tags", "tag"),
        "broker": _names(given, "brokers", "broker"),
    }
    for column, names in wanted.items():
        if names:
            chosen = chosen.among(column, names)
    if "startingtimestamp" in given:
        least = time_us_of("startingTimestamp", given["startingtimestamp"])
        chosen = chosen.ranged("store_time", Range(least=least))
    if "endingtimestamp" in given:
        behind = time_us_of("endingTimestamp", given["endingtimestamp"])
        chosen = chosen.ranged("store_time", Range(most=behind - 1))
    return chosen


def _bounds(
    given: Mapping[str, str], name: str, *, unbounded: str, empty: str
) -> Mapping[QueueKey, int]:
    """Offsets by queue at which a batch begins or ends; none for what is not bounded.

    Args:
        unbounded: the word, and the number of _WORDS, for a queue that is read to that end.
        empty: those for one of which nothing would be read, which nobody can have meant.
    """
    text = given.get(name.lower(), unbounded)
    if text == unbounded:
        return {}
    bounds = {} if text == empty else offsets_of(name, text)
    if text == empty or _WORDS[empty] in bounds.values():
        raise OptionError(
            f"option {name}: of a batch that has {empty} there, nothing would be read;"
            f" {unbounded} reads to that end"
        )
    wrong = [offset for offset in bounds.values() if offset < min(_WORDS.values())]
    if wrong:
        raise OptionError(f"option {name}: {wrong[0]} is no offset")
    return {queue: offset for queue, offset in bounds.items() if offset != _WORDS[unbounded]}


def whole_number(name: str, text: str | None, default: int) -> int:
    """An option that is a number of 1 or more.

    Raises:
        OptionError: it is none.
    """
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"option {name}: {text!r} is no number of 1 or more")
    return int(text)


def offsets_of(name: str, text: str | None) -> Mapping[QueueKey, int]:
    """An option that names offsets queue by queue; none for "earliest" and "latest".

    Raises:
        OptionError: it cannot be read.
    """
    if text is None or text in ("earliest", "latest"):
        return {}
    try:
        return {
            _queue(topic, place): int(offset)
            for topic, queues in json.loads(text).items()
            for place, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise OptionError(
            f'option {name}: {text!r} is not like {{"orders": {{"0": 17, "broker-a:1": 5}}}}'
        ) from error


def _queue(topic: str, place: str) -> QueueKey:
    """A queue named by its number, or by "broker:number"."""
    broker, _, number = place.rpartition(":")
    return topic, broker, int(number)


def time_us_of(name: str, text: str) -> int:
    """An option that is a moment, as epoch microseconds.

    Raises:
        OptionError: it is none.
    """
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"option {name}: {text!r} is neither epoch milliseconds nor ISO 8601"
        ) from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000_000)
