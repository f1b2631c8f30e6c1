"""Selection of records by their bytes, before they are converted to columns, and by the generation
that covers them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rockoon_format.frames import IntArray
from rockoon_format.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, is_system_topic
from rockoon_format.properties import PROPERTY_TAGS
from rockoon_spark.records.columns import LogRecords
from rockoon_spark.records.properties import integers_of

if TYPE_CHECKING:
    # Its import would cost each start of a stream.
    from rockoon_format.generation import Manifest

Mask = NDArray[np.bool_]
Bound = TypeVar("Bound")

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

# Numeric columns that can be selected by a range; times are in microseconds, as in Spark.
RANGED: Mapping[str, Callable[[LogRecords], IntArray]] = {
    "store_time": lambda records: records.store_timestamps_ms * 1000,
}


Named = tuple[Sequence[bytes | None], NDArray[np.integer[Any]]]
"""The distinct values of a column, and the index of each record's value, int[n]."""


def _tags(records: LogRecords) -> Named:
    values = records.properties.values(PROPERTY_TAGS).cast(pa.binary())
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), integers_of(encoded.indices)


def _broker(records: LogRecords) -> Named:
    return [records.broker.encode()], np.zeros(len(records), np.int32)


NAMED: Mapping[str, Callable[[LogRecords], Named]] = {
    "topic": lambda records: records.topics,
    "tags": _tags,
    "broker": _broker,
}
"""Text columns that can be selected by a set of values."""

QueueKey = tuple[str, str, int]
"""Key of a queue: topic, broker and queue id. An empty broker means all brokers without their own
key.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of whole numbers from `least` to `most`, both included."""

    least: int = INT64_MIN
    most: int = INT64_MAX

    def within(self, other: "Range") -> "Range":
        """Return the intersection of both ranges."""
        return Range(max(self.least, other.least), min(self.most, other.most))


@dataclass(frozen=True)
class Selection:
    """Selects records: a selected record meets all conditions."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Range of values for each selected column of RANGED."""
    one_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Set of values for each selected column of NAMED."""
    topic_pattern: str = "*"
    """Pattern of the topics, with `*`, `?` and `[…]` like patterns of file names."""
    includes_internal: bool = True
    """True to include the brokers' internal topics (`is_system_topic`): delayed messages before
    they are due, half messages, the broker's own log. Reads of users exclude them by default."""
    starts: Mapping[QueueKey, int] = field(default_factory=dict)
    """First queue offset per queue; queues without one are read from their beginning."""
    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    """End offset per queue, exclusive."""
    topic_regex: str | None = None
    """Regular expression that the whole name of a topic matches; None for all topics."""
    assigned: frozenset[QueueKey] = frozenset()
    """The only queues to read; empty for all."""
    queue_times: Mapping[QueueKey, Range] = field(default_factory=dict)
    """Range of store times per queue, in microseconds."""

    def ranged(self, column: str, wanted: Range) -> "Selection":
        """Return this selection with an additional range of a column."""
        narrowed = self.ranges.get(column, Range()).within(wanted)
        return replace(self, ranges={**self.ranges, column: narrowed})

    def among(self, column: str, values: frozenset[str]) -> "Selection":
        """Return this selection with an additional set of values of a column."""
        narrowed = self.one_of.get(column, values) & values
        return replace(self, one_of={**self.one_of, column: narrowed})

    def of_any_tags(self) -> "Selection":
        """Return this selection without the condition on tags."""
        return replace(self, one_of={c: names for c, names in self.one_of.items() if c != "tags"})

    @property
    def is_empty(self) -> bool:
        """True if no record can meet the conditions."""
        return any(not values for values in self.one_of.values()) or any(
            each.least > each.most for each in self.ranges.values()
        )

    def wants_broker(self, name: str) -> bool:
        """True if records of a broker can meet the conditions."""
        brokers = self.one_of.get("broker")
        return brokers is None or name in brokers

    @property
    def narrows_topics(self) -> bool:
        """True if topics are named, or a pattern of topics is given."""
        return "topic" in self.one_of or self.topic_pattern != "*" or self.topic_regex is not None

    def wants_queue(self, topic: str, broker: str, queue: int) -> bool:
        """True if records of a queue can meet the conditions."""
        keys = {(topic, broker, queue), (topic, "", queue)}
        is_assigned = not self.assigned or not self.assigned.isdisjoint(keys)
        return is_assigned and self.wants_topic(topic)

    def times_of(self, topic: str, broker: str, queue: int) -> Range:
        """Return the range of store times of a queue that meets the conditions."""
        own = _bound(self.queue_times, topic, broker, queue, Range())
        return self.ranges.get("store_time", Range()).within(own)

    def offsets_of(self, topic: str, broker: str, queue: int) -> tuple[int, int]:
        """Return the first offset of a queue, and the end offset, that meet the conditions.

        The first offset of a queue that is not read is the greatest one.
        """
        if self.assigned and not self.wants_queue(topic, broker, queue):
            return INT64_MAX, INT64_MAX
        least = _bound(self.starts, topic, broker, queue, INT64_MIN)
        return least, _bound(self.ends, topic, broker, queue, INT64_MAX)

    def wants_topic(self, topic: str) -> bool:
        """True if records of a topic can meet the conditions."""
        topics = self.one_of.get("topic")
        return (topics is None or topic in topics) and self._matches(topic)

    def _matches(self, topic: str) -> bool:
        """True if a topic matches the pattern, and internal topics are included or it is none."""
        if not self.includes_internal and is_system_topic(topic):
            return False
        if self.topic_regex is not None and not re.fullmatch(self.topic_regex, topic):
            return False
        return fnmatchcase(topic, self.topic_pattern)

    def _literal_part(self) -> tuple[str, bool]:
        """Return the text with which all topics begin by pattern or regular expression, and True if
        other text can follow.
        """
        if self.topic_regex is None:
            literal, *rest = re.split(r"[*?\[]", self.topic_pattern, maxsplit=1)
            return literal, bool(rest)
        if "|" in self.topic_regex:
            return "", True
        literal, *more = re.split(r"(?=[^\w%-])", self.topic_regex, maxsplit=1)
        # A quantifier belongs to the character before it.
        is_quantified = bool(more) and more[0][0] in "*?{"
        return literal[:-1] if is_quantified else literal, bool(more)

    @property
    def excluded_names(self) -> list[str]:
        """The named topics, and the pattern, that select only excluded internal topics; sorted."""
        if self.includes_internal:
            return []
        named = [each for each in self.one_of.get("topic", ()) if is_system_topic(each)]
        literal, has_wildcards = self._literal_part()
        is_internal = (
            literal.startswith(SYSTEM_TOPIC_PREFIX) if has_wildcards else is_system_topic(literal)
        )
        return sorted([*named, *([self.topic_regex or self.topic_pattern] if is_internal else [])])

    @property
    def may_have_internal(self) -> bool:
        """True if internal topics can be among the names, or can match the pattern."""
        if "topic" in self.one_of:
            return any(map(is_system_topic, self.one_of["topic"]))
        literal, has_wildcards = self._literal_part()
        if not has_wildcards:
            return is_system_topic(literal)
        return literal.startswith(SYSTEM_TOPIC_PREFIX) or any(
            each.startswith(literal) for each in (*SYSTEM_TOPICS, SYSTEM_TOPIC_PREFIX)
        )

    def mask(self, records: LogRecords) -> Mask:
        """Return a mask of the records that meet the conditions, bool[n]."""
        wanted = np.ones(len(records), np.bool_)
        for column, allowed in self.ranges.items():
            values = RANGED[column](records)
            wanted &= (values >= allowed.least) & (values <= allowed.most)
        for column, names in self.one_of.items():
            wanted &= _is_one_of(*NAMED[column](records), names.__contains__)
        # If other topics are named, internal ones are excluded already and need no second check.
        excludes = not self.includes_internal and self.may_have_internal
        if self.topic_pattern != "*" or self.topic_regex is not None or excludes:
            wanted &= _is_one_of(*records.topics, self._matches)
        if self.starts or self.ends or self.assigned or self.queue_times:
            wanted &= self._within_bounds(records)
        return wanted

    def _within_bounds(self, records: LogRecords) -> Mask:
        stored, codes = records.topics
        topics = [topic.decode(errors="replace") for topic in stored]
        queues, offsets = records.prefix("queue_id"), records.prefix("queue_offset")
        times = RANGED["store_time"](records) if self.queue_times else None
        # Queues that are not assigned are excluded; all others only by their bounds.
        wanted = np.full(len(records), not self.assigned)
        named = [*self.starts, *self.ends, *self.assigned, *self.queue_times]
        for topic, queue in {(topic, queue) for topic, _, queue in named}:
            if topic not in topics:
                continue
            least, end = self.offsets_of(topic, records.broker, queue)
            own = (codes == topics.index(topic)) & (queues == queue)
            allowed = (offsets >= least) & (offsets < end)
            if times is not None:
                own_times = self.times_of(topic, records.broker, queue)
                allowed &= (times >= own_times.least) & (times <= own_times.most)
            wanted[own] = allowed[own]
        return wanted


EVERYTHING = Selection(MappingProxyType({}), MappingProxyType({}))


def _bound(
    bounds: Mapping[QueueKey, Bound], topic: str, broker: str, queue: int, default: Bound
) -> Bound:
    found = bounds.get((topic, broker, queue))
    return bounds.get((topic, "", queue), default) if found is None else found


def _is_one_of(
    values: Sequence[bytes | None],
    codes: NDArray[np.integer[Any]],
    is_wanted: Callable[[str], bool],
) -> Mask:
    """Return a mask of the records whose value meets a predicate; False for null."""
    good = [raw is not None and is_wanted(raw.decode(errors="replace")) for raw in values]
    found: Mask = np.array(good, np.bool_)[codes]
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Records of a log that readers get from a generation instead of the log.

    Args:
        log_end: physical offset; records that start below it are covered.
        topics: the covered topics.
    """

    log_end: int
    topics: frozenset[str]

    @classmethod
    def of(cls, manifest: "Manifest", marks: Mapping[str, int]) -> "Coverage":
        """Return the coverage of a generation.

        Args:
            manifest: manifest of the generation.
            marks: per topic, the physical offset below which compacted records are hidden.
        """
        served = (
            topic.topic
            for topic in manifest.topics
            if marks.get(topic.topic, 0) <= topic.dropped_below
        )
        return cls(manifest.log_end, frozenset(served))

    def holds_all(self, selection: Selection) -> bool:
        """True if all selected topics are covered by the generation."""
        return selection.one_of.get("topic", {""}) <= self.topics

    def left(self, records: LogRecords) -> LogRecords:
        """Return those of some records that the generation does not cover."""
        if records.base >= self.log_end or not len(records):
            return records
        covered = Selection().among("topic", self.topics).mask(records)
        covered &= records.prefix("physical_offset") < self.log_end
        return records.chosen(np.logical_not(covered)) if covered.any() else records
