"""Options of `spark.read.format("rockoon")` (`source.data_source`) and of
`spark.readStream.format("rockoon")` (`stream.reader`).
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

from rockoon.errors import InvalidArgument
from rockoon.net.addresses import parse_addresses
from rockoon.offsets.start import ConsumeFrom
from rockoon_core.valid_text import redacted
from rockoon_spark.records.columns import COLUMNS
from rockoon_spark.records.selection import QueueKey, Range, Selection
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import SPLIT_BYTES, LogSource
from rockoon_spark.source.store_directory import StoreDirectory


class OptionError(ValueError):
    """An option is missing, unknown or invalid."""


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of a read."""

    source: LogSource
    columns: tuple[str, ...]
    topics: frozenset[str]
    """The named topics; they must exist."""
    selection: Selection
    bounded: Mapping[str, frozenset[QueueKey]]
    """The queues named in startingOffsets and endingOffsets, by option; they must exist."""
    skips_damage: bool
    split_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse Spark's options; names are case-insensitive.

        Raises:
            OptionError: an option is missing, unknown or invalid.
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = given.keys() - {name.lower() for name in _OPTIONS}
        if unknown:
            raise OptionError(f"unknown options: {', '.join(sorted(unknown))}")
        source = _source(given)
        starts = _bounds(given, "startingOffsets", unbounded="earliest", empty="latest")
        ends = _bounds(given, "endingOffsets", unbounded="latest", empty="earliest")
        selection = _selection(given, starts, ends)
        if isinstance(source, StoreDirectory):
            selected = selection.among("broker", frozenset({source.broker}))
        else:
            selected = selection
        _refuse_unselected("startingOffsets", starts, selected)
        _refuse_unselected("endingOffsets", ends, selected)
        return cls(
            source=source,
            columns=columns_of(given.get("columns")),
            topics=topics_of(given),
            selection=selection,
            bounded={"startingOffsets": frozenset(starts), "endingOffsets": frozenset(ends)},
            skips_damage=one_of(given, "onDamage", "fail", "skip") == "skip",
            split_bytes=whole_number("splitBytes", given.get("splitbytes"), SPLIT_BYTES),
        )


# Special offsets, the same as in Kafka's source.
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
    "includeInternalTopics",
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
            "set either option path (a store directory) or option endpoint (a live cluster)"
        )
    foreign = _OF_DIRECTORY if endpoint else _OF_CLUSTER
    wrong = [name for name in foreign if name.lower() in given]
    if wrong:
        kind = "live cluster" if endpoint else "store directory"
        raise OptionError(f"option {wrong[0]} cannot be used with a {kind}")
    compacted = one_of(given, "compacted", "true", "false") == "true"
    fails_on_data_loss = one_of(given, "failOnDataLoss", "true", "false") == "true"
    if path:
        broker = given.get("broker") or PurePath(redacted(path)).name
        return StoreDirectory(path, broker, compacted, fails_on_data_loss)
    return LiveCluster(
        endpoint,
        skips_brokers_away=one_of(given, "onBrokerAway", "fail", "skip") == "skip",
        fails_on_data_loss=fails_on_data_loss,
        compacted=compacted,
    )


def one_of(given: Mapping[str, str], name: str, default: str, other: str) -> str:
    """Return the value of an option that has two possible values.

    Raises:
        OptionError: it has another value.
    """
    chosen = given.get(name.lower(), default)
    if chosen not in (default, other):
        raise OptionError(f"option {name}: {chosen!r} is neither {default} nor {other}")
    return chosen


def columns_of(text: str | None) -> tuple[str, ...]:
    """Parse option columns; all columns if it is not set.

    Raises:
        OptionError: a column is unknown or named twice.
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
    """Parse options topics and topic, which have the same meaning; empty if neither is set.

    Raises:
        OptionError: an option is set but names no topic.
    """
    return _names(given, "topics", "topic") | _names(given, "topic", "topic")


def includes_internal(given: Mapping[str, str]) -> bool:
    """Parse option includeInternalTopics.

    Raises:
        OptionError: it is neither true nor false.
    """
    return one_of(given, "includeInternalTopics", "false", "true") == "true"


def refuse_internal(selection: Selection) -> None:
    """Check that no named topic is an internal topic that the selection excludes.

    Raises:
        OptionError: one is.
    """
    if excluded := selection.excluded_names:
        raise OptionError(
            f"option topics: {excluded[0]!r} is an internal topic of the brokers:"
            " option includeInternalTopics=true reads it"
        )


def _names(given: Mapping[str, str], option: str, kind: str) -> frozenset[str]:
    named = frozenset(name.strip() for name in given.get(option, "").split(",")) - {""}
    if option in given and not named:
        raise OptionError(f"option {option}: names no {kind}")
    return named


def _selection(
    given: Mapping[str, str], starts: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
) -> Selection:
    words = _WORDS.values()
    chosen = Selection(
        topic_pattern=given.get("topicpattern", "*"),
        includes_internal=includes_internal(given),
        starts={queue: offset for queue, offset in starts.items() if offset not in words},
        ends={queue: offset for queue, offset in ends.items() if offset not in words},
    )
    wanted = {
        "topic": topics_of(given),
        "tags": _names(given, "tags", "tag"),
        "broker": _names(given, "brokers", "broker"),
    }
    for column, names in wanted.items():
        if names:
            chosen = chosen.among(column, names)
    refuse_internal(chosen)
    if "startingtimestamp" in given:
        least = time_us_of("startingTimestamp", given["startingtimestamp"])
        chosen = chosen.ranged("store_time", Range(least=least))
    if "endingtimestamp" in given:
        end = time_us_of("endingTimestamp", given["endingtimestamp"])
        chosen = chosen.ranged("store_time", Range(most=end - 1))
    return chosen


def _bounds(
    given: Mapping[str, str], name: str, *, unbounded: str, empty: str
) -> Mapping[QueueKey, int]:
    """Parse the offsets by queue of startingOffsets or endingOffsets.

    Args:
        unbounded: the word of _WORDS that means no bound.
        empty: the word of _WORDS that would exclude all messages of a queue; it is refused.

    Returns:
        An offset, or the number of `unbounded`, for each queue in the option.

    Raises:
        OptionError: the option is invalid, or would exclude all messages.
    """
    text = given.get(name.lower(), unbounded)
    if text == unbounded:
        return {}
    bounds = {} if text == empty else offsets_of(name, text)
    if text == empty or _WORDS[empty] in bounds.values():
        raise OptionError(
            f"option {name}: {empty} would exclude all messages of a batch read;"
            f" {unbounded} sets no bound"
        )
    wrong = [offset for offset in bounds.values() if offset < min(_WORDS.values())]
    if wrong:
        raise OptionError(f"option {name}: {wrong[0]} is not an offset")
    return bounds


def _refuse_unselected(name: str, queues: Collection[QueueKey], selection: Selection) -> None:
    """Check that other options do not exclude the queues of an offset option.

    Raises:
        OptionError: an offset is given for a topic or broker that is not read.
    """
    for topic, broker, _ in sorted(queues):
        if not selection.wants_topic(topic):
            raise OptionError(
                f"option {name}: topic {topic!r} is not among the topics that are read"
            )
        if broker and not selection.wants_broker(broker):
            raise OptionError(
                f"option {name}: broker {broker!r} is not among the brokers that are read"
            )


def no_such_queue(name: str, queue: QueueKey) -> OptionError:
    """Return the error for an option that names a missing queue."""
    topic, broker, number = queue
    key = f"{broker}:{number}" if broker else str(number)
    return OptionError(
        f"option {name}: topic {topic!r} has no queue {key!r}, or the topic does not exist"
    )


def whole_number(name: str, text: str | None, default: int) -> int:
    """Parse an option that is an integer of 1 or more.

    Raises:
        OptionError: it is not.
    """
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"option {name}: {text!r} is not an integer of 1 or more")
    return int(text)


def offsets_of(name: str, text: str | None) -> Mapping[QueueKey, int]:
    """Parse an option with offsets by queue; empty for "earliest" and "latest".

    Raises:
        OptionError: it is invalid.
    """
    if text is None or text in ("earliest", "latest"):
        return {}
    try:
        return {
            _queue(topic, key): _offset(offset)
            for topic, queues in json.loads(text).items()
            for key, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise OptionError(
            f"option {name}: {text!r} is invalid, expected for example "
            '{"orders": {"0": 17, "broker-a:1": 5}}'
        ) from error


def _queue(topic: str, key: str) -> QueueKey:
    """Parse a queue id, or "broker:id"."""
    broker, _, number = key.rpartition(":")
    return topic, broker, int(number)


def _offset(value: object) -> int:
    # Fractions, true and null are refused; int() would convert some of them without an error.
    if type(value) is int or (isinstance(value, str) and value.strip("-").isdigit()):
        return int(value)
    raise ValueError(value)


def time_us_of(name: str, text: str) -> int:
    """Parse an option with a time; return epoch microseconds.

    Args:
        text: epoch milliseconds with 11 to 13 digits, the same as in the command line, or ISO 8601,
            in UTC if it has no time zone.

    Raises:
        OptionError: it is neither. Seconds and microseconds are refused, because as milliseconds
            they would mean another century.
    """
    if re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        if not re.fullmatch(r"[0-9]{11,13}", text.strip()):
            hint = f"; {text}000 are the milliseconds of these seconds" if len(text) == 10 else ""
            raise OptionError(
                f"option {name}: {text} is not in epoch milliseconds, which have 11 to 13"
                f" digits{hint}"
            )
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"option {name}: {text!r} is neither epoch milliseconds nor ISO 8601"
        ) from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000_000)


EARLIEST, LATEST, GROUP = "earliest", "latest", "group"
# Special offsets in startingOffsets, the same as in Kafka's source.
OFFSET_LATEST, OFFSET_EARLIEST = -1, -2

_STREAM_OPTIONS = (
    "endpoint",
    "topic",
    "topics",
    "topicPattern",
    "includeInternalTopics",
    "startingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "consumerGroup",
    "columns",
)


@dataclass(frozen=True, slots=True)
class Starting:
    """Start positions of the queues that exist when the first batch is planned.

    Args:
        policy: for all queues; GROUP means the progress of the consumer group.
        offsets: overrides the policy for some queues; may be OFFSET_LATEST or OFFSET_EARLIEST.
    """

    policy: ConsumeFrom
    offsets: Mapping[QueueKey, int]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parsed options of a stream."""

    endpoint: str
    topics: tuple[str, ...]
    """Names of the topics; empty if a pattern is given."""
    selection: Selection
    """Selection of the topics by the options."""
    starting: Starting
    messages_max: int | None
    """Maximum number of messages in a batch; None for no limit."""
    bytes_max: int | None
    """Approximate maximum size of a batch; None for no limit."""
    partitions_min: int
    fails_on_data_loss: bool
    group: str
    """Consumer group for which offsets are committed; empty: none."""
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamOptions":
        """Parse Spark's options; names are case-insensitive.

        Raises:
            OptionError: an option is missing, unknown or invalid.
        """
        given = {name.lower(): value for name, value in options.items()}
        unknown = given.keys() - {name.lower() for name in _STREAM_OPTIONS}
        if unknown:
            raise OptionError(f"unknown options of a stream: {', '.join(sorted(unknown))}")
        try:
            parse_addresses(given.get("endpoint", ""))
        except InvalidArgument as error:
            raise OptionError(f"option endpoint: {error}") from error
        topics = tuple(sorted(topics_of(given)))
        if bool(topics) == bool(given.get("topicpattern")):
            raise OptionError("set exactly one of the options topics and topicPattern")
        selection = Selection(
            topic_pattern=given.get("topicpattern", "*"), includes_internal=includes_internal(given)
        )
        if topics:
            selection = selection.among("topic", frozenset(topics))
        refuse_internal(selection)
        return cls(
            endpoint=given["endpoint"],
            topics=topics,
            selection=selection,
            starting=_starting(given),
            messages_max=_limit(given, "maxOffsetsPerTrigger"),
            bytes_max=_limit(given, "maxBytesPerTrigger"),
            partitions_min=whole_number("minPartitions", given.get("minpartitions"), 1),
            fails_on_data_loss=one_of(given, "failOnDataLoss", "true", "false") == "true",
            group=given.get("consumergroup", ""),
            columns=columns_of(given.get("columns")),
        )

    def wants(self, topic: str) -> bool:
        """True if the stream reads the messages of a topic."""
        return self.selection.wants_topic(topic)


def _limit(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    return None if text is None else whole_number(name, text, 1)


def _starting(given: Mapping[str, str]) -> Starting:
    text = given.get("startingoffsets")
    when = given.get("startingtimestamp")
    if text is not None and when is not None:
        raise OptionError("set only one of the options startingOffsets and startingTimestamp")
    if when is not None:
        # Rounded up to milliseconds, so that no earlier message is read.
        return Starting(
            ConsumeFrom.timestamp(-(-time_us_of("startingTimestamp", when) // 1000)), {}
        )
    if text == GROUP:
        if not given.get("consumergroup"):
            raise OptionError("option startingOffsets=group needs option consumerGroup")
        return Starting(ConsumeFrom.GROUP, {})
    if text in (None, LATEST):
        return Starting(ConsumeFrom.LAST, {})
    offsets = offsets_of("startingOffsets", text)
    wrong = [offset for offset in offsets.values() if offset < OFFSET_EARLIEST]
    if wrong:
        raise OptionError(f"option startingOffsets: {wrong[0]} is not an offset")
    return Starting(ConsumeFrom.FIRST, offsets)
