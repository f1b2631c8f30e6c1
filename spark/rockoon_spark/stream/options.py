"""Options of `spark.readStream.format("rockoon")`; see `rockoon_spark.stream.reader`."""

from collections.abc import Mapping
from dataclasses import dataclass

from rockoon.errors import InvalidArgument
from rockoon.net.addresses import parse_addresses
from rockoon.offsets.start import ConsumeFrom
from rockoon_spark.records.selection import QueueKey, Selection
from rockoon_spark.source.options import (
    OptionError,
    columns_of,
    includes_internal,
    offsets_of,
    one_of,
    refuse_internal,
    time_us_of,
    topics_of,
    whole_number,
)

EARLIEST, LATEST, GROUP = "earliest", "latest", "group"
# Special offsets in startingOffsets, the same as in Kafka's source.
OFFSET_LATEST, OFFSET_EARLIEST = -1, -2

_OPTIONS = (
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
        unknown = given.keys() - {name.lower() for name in _OPTIONS}
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
