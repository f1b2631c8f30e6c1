"""Options of `spark.readStream.format("rockoon")` (`stream.reader`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from rockoon.offsets.start import ConsumeFrom
from rockoon_spark.endpoint import ClusterEndpoint
from rockoon_spark.records.selection import QueueKey, Selection
from rockoon_spark.source.option_table import OptionError, Use, given_options, one_of
from rockoon_spark.source.options import (
    endpoint_of,
    named_topics,
    offsets_of,
    schema_of,
    time_us_of,
    times_of,
    topics_selection,
    whole_number,
)

LATEST, GROUP = "latest", "group"
# Special offsets in startingOffsets, the same as in Kafka's source.
OFFSET_LATEST, OFFSET_EARLIEST = -1, -2


@dataclass(frozen=True, slots=True)
class Starting:
    """Start positions of the queues that exist when the first batch is planned.

    Args:
        policy: for all queues; GROUP means the progress of the consumer group.
        offsets: overrides the policy for some queues; may be OFFSET_LATEST or OFFSET_EARLIEST.
        times_ms: overrides the policy for some queues by store time, epoch milliseconds.
    """

    policy: ConsumeFrom
    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    times_ms: Mapping[QueueKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parsed options of a stream."""

    endpoint: ClusterEndpoint
    topics: Mapping[str, str]
    """The named topics, with the option that names each; empty if a pattern is given."""
    selection: Selection
    """Selection of the topics and queues by the options."""
    starting: Starting
    messages_min: int
    """Number of messages for which a batch waits, at most `delay_seconds_max`."""
    delay_seconds_max: float
    """Maximum time between two batches while messages wait."""
    messages_max: int | None
    """Maximum number of messages in a batch; None for no limit."""
    bytes_max: int | None
    """Approximate maximum size of a batch; None for no limit."""
    partitions_min: int
    fails_on_data_loss: bool
    group: str
    """Consumer group for which offsets are committed; empty: none."""
    schema: pa.Schema
    """Schema of the rows."""

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: pa.Schema | None = None) -> "StreamOptions":
        """Parse Spark's options; names are case-insensitive.

        Args:
            options: of the stream.
            schema: of the rows; None for the columns of the options.

        Raises:
            OptionError: an option is missing, unknown or invalid.
        """
        given = given_options(options, Use.STREAM)
        endpoint = endpoint_of(given)
        topics = named_topics(given)
        patterns = [
            name for name in ("topicPattern", "subscribePattern") if given.get(name.lower())
        ]
        if bool(topics) + len(patterns) != 1:
            raise OptionError(
                "set exactly one of the options topics, topicPattern, subscribePattern and assign"
            )
        messages_max = _limit(given, "maxOffsetsPerTrigger")
        messages_min = whole_number("minOffsetsPerTrigger", given.get("minoffsetspertrigger"), 1)
        if messages_max is not None and messages_min > messages_max:
            raise OptionError(
                f"option minOffsetsPerTrigger: {messages_min} is more than maxOffsetsPerTrigger,"
                f" {messages_max}"
            )
        return cls(
            endpoint=endpoint,
            topics=topics,
            selection=topics_selection(given),
            starting=_starting(given),
            messages_min=messages_min,
            delay_seconds_max=seconds_of("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
            messages_max=messages_max,
            bytes_max=_limit(given, "maxBytesPerTrigger"),
            partitions_min=whole_number("minPartitions", given.get("minpartitions"), 1),
            fails_on_data_loss=one_of(given, "failOnDataLoss", "true", "false") == "true",
            group=given.get("consumergroup", ""),
            schema=schema_of(given, schema),
        )


_UNIT_SECONDS = {
    "us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400,
}  # fmt: skip


def seconds_of(name: str, text: str) -> float:
    """Parse an option with a duration in Spark's form, such as 500ms, 30s, 15m or 2h.

    A number without a unit is milliseconds, as in Spark.

    Raises:
        OptionError: it is invalid.
    """
    found = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", text.lower())
    if not found or found[2] not in _UNIT_SECONDS:
        raise OptionError(
            f"option {name}: {text!r} is not a duration such as 500ms, 30s, 15m or 2h"
        )
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def _limit(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    return None if text is None else whole_number(name, text, 1)


def _starting(given: Mapping[str, str]) -> Starting:
    text = given.get("startingoffsets")
    when = given.get("startingtimestamp")
    times = times_of(given, "startingOffsetsByTimestamp")
    if (text is not None) + (when is not None) + bool(times) > 1:
        raise OptionError(
            "set only one of the options startingOffsets, startingTimestamp and"
            " startingOffsetsByTimestamp"
        )
    if when is not None:
        return Starting(ConsumeFrom.timestamp(_ms(time_us_of("startingTimestamp", when))))
    if times:
        return Starting(
            ConsumeFrom.FIRST, times_ms={queue: _ms(time_us) for queue, time_us in times.items()}
        )
    if text is None or text.lower() == LATEST:
        return Starting(ConsumeFrom.LAST)
    if text.lower() == GROUP:
        if not given.get("consumergroup"):
            raise OptionError("option startingOffsets=group needs option consumerGroup")
        return Starting(ConsumeFrom.GROUP)
    offsets = offsets_of("startingOffsets", text)
    wrong = [offset for offset in offsets.values() if offset < OFFSET_EARLIEST]
    if wrong:
        raise OptionError(f"option startingOffsets: {wrong[0]} is not an offset")
    return Starting(ConsumeFrom.FIRST, offsets)


def _ms(time_us: int) -> int:
    """Return microseconds as milliseconds, rounded up, so that no earlier message is read."""
    return -(-time_us // 1000)
