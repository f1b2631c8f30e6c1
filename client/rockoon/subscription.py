"""Subscriptions: all messages of a topic, messages with certain tags, or messages selected by an
SQL92 expression on their properties.

Tags are filtered twice: the broker compares hashes (its ConsumeQueue entries contain no text), the
client compares the text, because different tags can have one hash ("Aa" and "BB" do). Expressions
are compiled here, so that the subscriber gets the error, and evaluated by the broker only.

Missing topics are subscribed topics that were deleted while a consumer runs.

Source: FilterAPI#buildSubscriptionData, #build.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rockoon_core.errors import InvalidArgument, InvalidExpression, InvalidTopicName
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import text_fault
from rockoon_format import sql92
from rockoon_format.hashes import TAG_HASHES_MAX, tags_code
from rockoon_format.names import is_retry_topic

ALL = "*"
_OR = "||"
_SQL_MARK = "SQL92:"
EXCERPT_CHARACTERS_MAX = 200


class Sql(str):
    """An SQL92 expression on properties; accepted wherever a tag expression is.

        cluster.push_consumer("group", {"orders": Sql("price > 100 AND region = 'north'")}, handler)

    A text that starts with `SQL92:` is equivalent. `rockoon_format.sql92` describes the language:
    comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and a filter; created by `Subscription.parse` or `Subscription.sql`."""

    topic: str
    tags: frozenset[str]
    """Empty means all messages."""
    tag_hashes: tuple[int, ...]
    """Java hash codes of the tags, sorted and unique: the broker's tag filter."""
    sql_expression: str = ""
    """The broker's SQL92 filter; empty for all messages. Never set together with tags."""

    @classmethod
    def parse(cls, topic: str, expression: str) -> "Subscription":
        """Parse `*` (all messages), tags joined by `||` as in `TagA || TagB`, or an `Sql`.

        A text that starts with `SQL92:`, as `expression` does, is an `Sql` too.

        Spaces around a tag, repeated tags and empty parts between bars are ignored, as in RocketMQ.

        Raises:
            InvalidExpression: the expression has no tag or more than 4096 tags, or `*` is combined
                with tags (RocketMQ treats it as a tag then); or as `sql`.
            InvalidTopicName: the name is not valid Unicode. Nameservers check all other rules.
        """
        if isinstance(expression, Sql):
            return cls.sql(topic, expression)
        if not isinstance(expression, str):
            raise InvalidExpression(
                expression=repr(expression), reason='it is not "*", "TagA || TagB", or an Sql'
            )
        if expression.startswith(_SQL_MARK):
            return cls.sql(topic, expression.removeprefix(_SQL_MARK).strip())
        _check_texts(topic, expression)
        if expression.strip() == ALL:
            return cls(topic, frozenset(), ())
        tags = frozenset(tag for part in expression.split(_OR) if (tag := part.strip()))
        if not tags:
            raise InvalidExpression(expression=expression, reason="it has no tag")
        if ALL in tags:
            raise InvalidExpression(expression=expression, reason="'*' must be the only tag")
        if len(tags) > TAG_HASHES_MAX:
            reason = f"it has {len(tags)} tags, more than {TAG_HASHES_MAX}"
            raise InvalidExpression(expression=expression[:EXCERPT_CHARACTERS_MAX], reason=reason)
        return cls(topic, tags, tuple(sorted({tags_code(tag) for tag in tags})))

    @classmethod
    def sql(cls, topic: str, expression: str) -> "Subscription":
        """Return a subscription to the messages for which an SQL92 expression is true.

        Raises:
            InvalidExpression: the expression is invalid; the text shows the position with a caret.
        """
        text = str(expression)
        _check_texts(topic, text)
        try:
            sql92.compile(text)
        except sql92.Sql92Error as failure:
            excerpt, _, caret = failure.pointer.partition("\n")
            raise InvalidExpression(
                expression=excerpt,
                reason=f"{failure}\n    {excerpt}\n    {caret}",
                position=failure.position,
            ) from failure
        return cls(topic, frozenset(), (), text)

    @property
    def expression(self) -> str:
        """Normalized expression: equal subscriptions have equal expressions."""
        if self.sql_expression:
            return f"{_SQL_MARK} {self.sql_expression}"
        return f" {_OR} ".join(sorted(self.tags)) or ALL

    def matches(self, tags: str | None) -> bool:
        """Return whether the tag filter accepts a TAGS value (None: no tags).

        An SQL92 expression accepts everything here: the broker has already filtered.
        """
        return not self.tags or tags in self.tags

    def matching(self, tags: Sequence[str | None]) -> list[int] | None:
        """Return the indexes of the accepted values; None if all are accepted."""
        if not self.tags:
            return None
        wanted = [index for index, value in enumerate(tags) if value in self.tags]
        return None if len(wanted) == len(tags) else wanted


def parsed(subscriptions: Mapping[str, str], own_topic: str | None) -> dict[str, Subscription]:
    """Return a push consumer's subscriptions by topic, sorted.

    Args:
        subscriptions: topic → expression.
        own_topic: the group's retry topic, which is read without a filter; None if there is none.

    Raises:
        InvalidArgument: `subscriptions` is empty or not a mapping.
        InvalidExpression, InvalidTopicName: as `Subscription.parse`.
    """
    if not isinstance(subscriptions, Mapping):
        raise InvalidArgument(
            reason=f'subscriptions {subscriptions!r} are not a mapping such as {{"orders": "*"}}'
        )
    if not subscriptions:
        raise InvalidArgument(reason="a consumer needs at least one subscription")
    texts = {**({own_topic: ALL} if own_topic else {}), **subscriptions}
    return {topic: Subscription.parse(topic, texts[topic]) for topic in sorted(texts)}


def _check_texts(topic: str, expression: str) -> None:
    """Raise InvalidTopicName or InvalidExpression for text that cannot be sent."""
    if fault := text_fault(topic):
        raise InvalidTopicName(topic=topic, reason=fault)
    if fault := text_fault(expression):
        raise InvalidExpression(expression=expression, reason=fault)


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
