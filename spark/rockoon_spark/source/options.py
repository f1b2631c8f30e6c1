"""Options of `spark.read.format("rockoon")` (`source.data_source`), and values of options that
streams and writes have too.
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePath

import pyarrow as pa

from rockoon.errors import InvalidArgument
from rockoon.net.access import from_environment as access_from_environment
from rockoon.net.addresses import parse_addresses
from rockoon.net.tls import Tls
from rockoon_core.valid_text import redacted
from rockoon_spark.endpoint import ClusterEndpoint
from rockoon_spark.records.columns import COLUMNS, arrow_schema
from rockoon_spark.records.selection import (
    INT64_MAX,
    INT64_MIN,
    QueueKey,
    Range,
    Selection,
)
from rockoon_spark.source.column_names import columns_of
from rockoon_spark.source.log_source import (
    SPLIT_BYTES,
    DamagedRange,
    ExistingQueues,
    LogPartition,
    LogSource,
    rows_of_schema,
)
from rockoon_spark.source.option_table import (
    OF_CLUSTER,
    OF_DIRECTORY,
    OF_S3,
    OF_SECURITY,
    OptionError,
    Use,
    given_options,
    nearest,
    one_of,
)

log = logging.getLogger(__name__)


class DamagedLog(Exception):
    """The log that is read has damaged bytes."""


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of a read."""

    source: LogSource
    schema: pa.Schema
    """Schema of the rows."""
    topics: Mapping[str, str]
    """The named topics, with the option that names each; they must exist."""
    selection: Selection
    bounded: Mapping[str, frozenset[QueueKey]]
    """The named queues, by option; they must exist."""
    skips_damage: bool
    split_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: pa.Schema | None = None) -> "SourceOptions":
        """Parse Spark's options; names are case-insensitive.

        Args:
            options: of the read.
            schema: of the rows; None for the columns of the options.

        Raises:
            OptionError: an option is missing, unknown or invalid.
        """
        given = given_options(options, Use.BATCH)
        source = _source(given)
        bounds = {
            "startingOffsets": _bounds(
                given, "startingOffsets", unbounded="earliest", empty="latest"
            ),
            "endingOffsets": _bounds(given, "endingOffsets", unbounded="latest", empty="earliest"),
            "startingOffsetsByTimestamp": times_of(given, "startingOffsetsByTimestamp"),
            "endingOffsetsByTimestamp": times_of(given, "endingOffsetsByTimestamp"),
        }
        selection = _selection(given, bounds)
        selected = selection
        if given.get("path"):
            selected = selection.among("broker", frozenset({_broker_of_path(given)}))
        named = {**bounds, "assign": dict.fromkeys(selection.assigned, 0)}
        for option, queues in named.items():
            _refuse_unselected(option, queues, selected)
        return cls(
            source=source,
            schema=schema_of(given, schema),
            topics=named_topics(given),
            selection=selection,
            bounded={option: frozenset(queues) for option, queues in named.items()},
            skips_damage=one_of(given, "onDamage", "fail", "skip") == "skip",
            split_bytes=whole_number("splitBytes", given.get("splitbytes"), SPLIT_BYTES),
        )

    def partitions(self) -> Sequence[LogPartition]:
        """Plan the read: divide it into partitions.

        Raises:
            OptionError: an option names a topic or queue that does not exist.
            Exception: see `LogSource.partitions`.
        """
        if self.selection.is_empty:
            return []
        has_names = self.topics or any(self.bounded.values())
        check = partial(_refuse_absent, self) if has_names else None
        columns = self.schema.names
        return self.source.partitions(self.selection, self.split_bytes, check, columns)

    def rows(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition.

        Raises:
            DamagedLog: damage was found, and the options do not skip it.
            Exception: see `LogPartition.read`.
        """
        return rows_of_schema(partition.read(), self.selection, self.schema, self._report)

    def _report(self, damage: DamagedRange) -> None:
        if not self.skips_damage:
            raise DamagedLog(f"{damage}; option onDamage=skip skips damaged bytes")
        log.warning("%s: skipped", damage)


# Special offsets, the same as in Kafka's source.
_WORDS = {"latest": -1, "earliest": -2}


def _source(given: Mapping[str, str]) -> LogSource:
    endpoint, path = given.get("endpoint", ""), given.get("path", "")
    if bool(endpoint) == bool(path):
        raise OptionError(
            "set either option path (a store directory) or option endpoint (a live cluster)"
        )
    foreign = OF_DIRECTORY if endpoint else OF_CLUSTER
    wrong = [name for name in foreign if name.lower() in given]
    if wrong:
        kind = "live cluster" if endpoint else "store directory"
        raise OptionError(f"option {wrong[0]} cannot be used with a {kind}")
    compacted = one_of(given, "compacted", "true", "false") == "true"
    fails_on_data_loss = one_of(given, "failOnDataLoss", "true", "false") == "true"
    # A stream imports this module too, but has no batch sources; their import costs more CPU than
    # the plan of a stream.
    if path:
        from rockoon_spark.object_stores import with_s3_settings
        from rockoon_spark.source.store_directory import StoreDirectory

        settings = {name: given[name.lower()] for name in OF_S3 if name.lower() in given}
        try:
            location = with_s3_settings(path, settings)
        except ValueError as error:
            raise OptionError(str(error)) from None
        return StoreDirectory(location, _broker_of_path(given), compacted, fails_on_data_loss)
    from rockoon_spark.source.live_cluster import LiveCluster

    return LiveCluster(
        endpoint_of(given),
        skips_brokers_away=one_of(given, "onBrokerAway", "fail", "skip") == "skip",
        fails_on_data_loss=fails_on_data_loss,
        compacted=compacted,
    )


def _broker_of_path(given: Mapping[str, str]) -> str:
    """Return the name of the broker of a store directory."""
    return given.get("broker") or PurePath(redacted(given["path"]).partition("?")[0]).name


_ACCESS_VARIABLES = {
    "ROCKOON_ACCESS_KEY": "accessKey",
    "ROCKOON_ACCESS_SECRET": "accessSecret",
    "ROCKOON_ACCESS_SECRET_FILE": "accessSecretFile",
}


def endpoint_of(given: Mapping[str, str]) -> ClusterEndpoint:
    """Parse option endpoint and the options for TLS and the access key.

    Raises:
        OptionError: an option is missing or invalid, or a file cannot be used. The text has no
            secret.
    """
    try:
        parse_addresses(given.get("endpoint", ""))
    except InvalidArgument as error:
        raise OptionError(f"option endpoint: {error}") from error
    chosen = {name: given.get(name.lower(), "") for name in OF_SECURITY}
    if empty := [name for name in OF_SECURITY if name.lower() in given and not chosen[name]]:
        raise OptionError(f"option {empty[0]}: it is empty")
    tls = Tls(
        chosen["tlsCa"] or None,
        chosen["tlsCertificate"] or None,
        chosen["tlsKey"] or None,
        chosen["tlsServerName"],
    )
    try:
        access = access_from_environment(
            {variable: chosen[name] for variable, name in _ACCESS_VARIABLES.items()}
        )
        endpoint = ClusterEndpoint(given["endpoint"], None if tls == Tls() else tls, access)
        if endpoint.tls or endpoint.access:
            endpoint.dialer()
    except InvalidArgument as error:
        text = str(error)
        for variable, name in _ACCESS_VARIABLES.items():
            text = re.sub(rf"\b{variable}\b", f"option {name}", text)
        options = ", ".join(name for name in OF_SECURITY if chosen[name])
        raise OptionError(f"options {options}: {text}") from None
    return endpoint


def schema_of(given: Mapping[str, str], schema: pa.Schema | None = None) -> pa.Schema:
    """Return the schema of the rows: the one that Spark passes, or the columns of the options.

    Args:
        given: the options.
        schema: of the user, of a table, or the result of this function without a schema.

    Raises:
        OptionError: the schema has an unknown column, a column of another type, or one that the
            options exclude; or an option is invalid.
    """
    known = columns_of(given)
    if schema is None:
        return arrow_schema(known)
    for each in schema:
        if each.name not in known:
            hint = nearest(each.name, known) or f": choose from {', '.join(known)}"
            raise OptionError(f"the schema has column {each.name!r}, which is unknown{hint}")
        wanted = COLUMNS[each.name].type
        if each.type != wanted:
            raise OptionError(
                f"the schema has column {each.name!r} as {each.type}, but its type is {wanted}"
            )
    if len(set(schema.names)) < len(schema.names) or not schema.names:
        raise OptionError(f"the schema has no column, or one twice: {', '.join(schema.names)}")
    return schema


def named_topics(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the topics that options name, with the option that names each.

    Raises:
        OptionError: an option is set but names no topic or is invalid.
    """
    assigned = {topic: "assign" for topic, _, _ in queues_of(given)}
    return {**assigned, **dict.fromkeys(sorted(_names(given, "topics", "topic")), "topics")}


def queues_of(given: Mapping[str, str]) -> frozenset[QueueKey]:
    """Parse option assign; empty if it is not set.

    Raises:
        OptionError: it is invalid, or names no queue.
    """
    text = given.get("assign")
    if text is None:
        return frozenset()
    try:
        given_keys = json.loads(text)
        # The characters of a text would be other queues.
        is_valid = all(isinstance(keys, list) and keys for keys in given_keys.values())
        found = frozenset(
            _queue(topic, str(key)) for topic, keys in given_keys.items() for key in keys
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        is_valid, found = False, frozenset()
    if not is_valid or not found:
        raise OptionError(
            f"option assign: {text!r} is invalid, expected for example"
            ' {"orders": [0, 1], "payments": ["broker-a:0"]}'
        )
    return found


def topics_selection(given: Mapping[str, str]) -> Selection:
    """Parse the options that select topics and queues.

    Raises:
        OptionError: an option is invalid, several contradict each other, or one selects only
            internal topics.
    """
    chosen = [name for name in ("topics", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) > 1:
        raise OptionError(f"set only one of the options {' and '.join(chosen)}")
    for name in ("topicPattern", "subscribePattern"):
        if not given.get(name.lower(), "*"):
            raise OptionError(f"option {name}: it is empty, so that no topic matches it")
    regex = given.get("subscribepattern")
    if regex is not None:
        try:
            re.compile(regex)
        except re.error as error:
            raise OptionError(
                f"option subscribePattern: {regex!r} is not a regular expression: {error};"
                " option topicPattern has a pattern with * and ?"
            ) from None
    selection = Selection(
        topic_pattern=given.get("topicpattern", "*"),
        topic_regex=regex,
        assigned=queues_of(given),
        includes_internal=one_of(given, "includeInternalTopics", "false", "true") == "true",
    )
    if topics := frozenset(named_topics(given)):
        selection = selection.among("topic", topics)
    if excluded := selection.excluded_names:
        raise OptionError(
            f"option {[*chosen, 'topicPattern'][0]}: {excluded[0]!r} is an internal topic of the"
            " brokers: option includeInternalTopics=true reads it"
        )
    for topic in sorted(topics):
        if not selection.wants_topic(topic):
            raise OptionError(
                f"option {[*chosen, 'topicPattern'][0]}: topic {topic!r} does not match option"
                f" topicPattern, {selection.topic_pattern!r}"
            )
    return selection


def _names(given: Mapping[str, str], option: str, kind: str) -> frozenset[str]:
    named = frozenset(name.strip() for name in given.get(option, "").split(",")) - {""}
    if option in given and not named:
        raise OptionError(f"option {option}: names no {kind}")
    return named


def _selection(given: Mapping[str, str], bounds: Mapping[str, Mapping[QueueKey, int]]) -> Selection:
    def offsets(option: str) -> dict[QueueKey, int]:
        words = _WORDS.values()
        return {queue: offset for queue, offset in bounds[option].items() if offset not in words}

    least, end = bounds["startingOffsetsByTimestamp"], bounds["endingOffsetsByTimestamp"]
    chosen = replace(
        topics_selection(given),
        starts=offsets("startingOffsets"),
        ends=offsets("endingOffsets"),
        queue_times={queue: _times_of_queue(queue, least, end) for queue in [*least, *end]},
    )
    wanted = {"tags": _names(given, "tags", "tag"), "broker": _names(given, "brokers", "broker")}
    for column, names in wanted.items():
        if names:
            chosen = chosen.among(column, names)
    if "startingtimestamp" in given:
        first = time_us_of("startingTimestamp", given["startingtimestamp"])
        chosen = chosen.ranged("store_time", Range(least=first))
    if "endingtimestamp" in given:
        after = time_us_of("endingTimestamp", given["endingtimestamp"])
        chosen = chosen.ranged("store_time", Range(most=after - 1))
    return chosen


def _times_of_queue(
    queue: QueueKey, leasts: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]
) -> Range:
    """Return the range of store times of a queue; bounds for all brokers apply if it has no own."""
    topic, _, number = queue
    least, end = (bounds.get(queue, bounds.get((topic, "", number))) for bounds in (leasts, ends))
    return Range(INT64_MIN if least is None else least, INT64_MAX if end is None else end - 1)


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
    word = text.lower()
    if word == unbounded:
        return {}
    bounds = {} if word == empty else offsets_of(name, text)
    if word == empty or _WORDS[empty] in bounds.values():
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
            others = selection.one_of.get("topic", ())
            raise OptionError(
                f"option {name}: topic {topic!r} is not among the topics that are read"
                f"{nearest(topic, others)}"
            )
        if broker and not selection.wants_broker(broker):
            raise OptionError(
                f"option {name}: broker {broker!r} is not among the brokers that are read"
            )


def no_such_topic(name: str, topic: str, known: Iterable[str]) -> OptionError:
    """Return the error for an option that names a missing topic; `known` are the topics."""
    return OptionError(f"option {name}: topic {topic!r} does not exist{nearest(topic, known)}")


def no_such_queue(name: str, queue: QueueKey, known: Iterable[QueueKey]) -> OptionError:
    """Return the error for an option that names a missing queue.

    Args:
        name: of the option.
        queue: as the option names it.
        known: the existing queues, as an option may name them.
    """
    topic, broker, number = queue
    key = f"{broker}:{number}" if broker else str(number)
    existing = list(known)
    own = sorted({each for each in existing if each[0] == topic and bool(each[1]) == bool(broker)})
    hint = nearest(topic, {each[0] for each in existing})
    if own:
        shown = ", ".join(f"{each[1]}:{each[2]}" if broker else str(each[2]) for each in own[:8])
        hint = f"; its queues: {shown}{', ...' if len(own) > 8 else ''}"
    return OptionError(
        f"option {name}: topic {topic!r} has no queue {key!r}, or the topic does not exist{hint}"
    )


def _refuse_absent(options: SourceOptions, existing: ExistingQueues | None) -> None:
    """Check that the topics and queues that options name exist.

    Args:
        options: of the read.
        existing: topics and queues of the source; None if they are not known.

    Raises:
        OptionError: one does not exist.
    """
    if existing is None:
        return
    for topic in existing.absent_topics(options.topics):
        raise no_such_topic(options.topics[topic], topic, existing.topics)
    for name, queues in options.bounded.items():
        for queue in existing.absent_queues(queues):
            raise no_such_queue(name, queue, existing.queues)


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
    if text is None or text.lower() in ("earliest", "latest"):
        return {}
    return _by_queue(name, text, "17")


def times_of(given: Mapping[str, str], name: str) -> Mapping[QueueKey, int]:
    """Parse an option with store times by queue; return epoch microseconds. Empty if it is not set.

    Raises:
        OptionError: it is invalid.
    """
    text = given.get(name.lower())
    if text is None:
        return {}
    found = _by_queue(name, text, "1790000000000")
    return {queue: time_us_of(name, str(time_ms)) for queue, time_ms in found.items()}


def _by_queue(name: str, text: str, example: str) -> Mapping[QueueKey, int]:
    """Parse an option with integers by queue; `example` is one."""
    try:
        return {
            _queue(topic, key): _offset(offset)
            for topic, queues in json.loads(text).items()
            for key, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise OptionError(
            f"option {name}: {text!r} is invalid, expected for example "
            f'{{"orders": {{"0": {example}, "broker-a:1": {example}}}}}'
        ) from error


def _queue(topic: str, key: str) -> QueueKey:
    """Parse a queue id, or "broker:id"."""
    broker, _, number = key.rpartition(":")
    # int() would accept a sign, spaces and underscores.
    if not re.fullmatch(r"[0-9]+", number):
        raise ValueError(key)
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
