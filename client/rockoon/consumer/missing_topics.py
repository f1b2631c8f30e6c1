"""Missing topics: subscribed topics that were deleted while a consumer runs."""

import logging
from collections.abc import Collection
from typing import Literal, TypeAlias

from rockoon.errors import InvalidArgument
from rockoon_core.repeated_lines import limited
from rockoon_format.names import is_retry_topic

log = limited(logging.getLogger(__name__))

MissingTopicsRule: TypeAlias = Literal["wait", "end"]
"""If a topic is deleted: "wait" until it is created again, or "end" with TopicNotFound."""


class MissingTopics:
    """The missing topics of one consumer; logs each change once.

    Args:
        rule: argument of the consumer.
        reader: names the consumer in log lines.

    Raises:
        InvalidArgument: the rule is neither "wait" nor "end".
    """

    def __init__(self, rule: MissingTopicsRule, reader: str) -> None:
        if rule not in ("wait", "end"):
            raise InvalidArgument(reason=f"missing_topics is {rule!r}, not wait or end")
        self.waits = rule == "wait"
        self._reader = reader
        self._missing: set[str] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self._missing

    def add(self, topic: str, subscribed: Collection[str]) -> None:
        """Record that a topic does not exist.

        Args:
            topic: its name.
            subscribed: all topics of the consumer.
        """
        if topic in self._missing:
            return
        self._missing.add(topic)
        left = sorted(
            each for each in subscribed if each not in self._missing and not is_retry_topic(each)
        )
        log.warning(
            "topic %s was deleted: %s reads %s, and reads %s again if it is created",
            topic,
            self._reader,
            ", ".join(left) if left else "nothing",
            topic,
        )

    def discard(self, topic: str) -> None:
        """Record that a topic exists."""
        if topic in self._missing:
            self._missing.remove(topic)
            log.warning("topic %s was created again: %s reads it", topic, self._reader)
