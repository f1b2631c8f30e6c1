"""Subscriptions: all messages of a topic, those with certain tags, or those that an SQL92
expression on their properties selects.

Tags are filtered twice: the broker compares hashes (all its ConsumeQueue entries hold), the client
compares the text, because different tags can share a hash ("Aa" and "BB" do). Expressions are
checked here, so that whoever subscribes hears of a mistake, and evaluated by the broker alone.
Source: FilterAPI#buildSubscriptionData, #build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rockoon_core.errors import InvalidArgument, InvalidExpression, InvalidTopicName
from rockoon_core.valid_text import text_fault
from rockoon_format import sql92
from rockoon_format.hashes import TAG_HASHES_MAX, tags_code

ALL = "*"
_OR = "||"
_SQL_MARK = "SQL92:"
EXCERPT_CHARACTERS_MAX = 200


class Sql(str):
    """An expression on properties, for every place that otherwise takes tags.

        cluster.push_consumer("group", {"orders": Sql("price > 100 AND region = 'north'")}, handler)

    A text that begins with `SQL92:` says the same. `rockoon_format.sql92` has the language:
    comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic and what is wanted of it; made by `Subscription.parse` or `Subscription.sql`."""

    topic: str
    tags: frozenset[str]
    """Empty means all messages."""
    tag_hashes: tuple[int, ...]
    """Java hash codes of the tags, sorted, without repeats: the broker's filter."""
    sql_expression: str = ""
    """The broker's other filter; empty means all messages. Never together with tags."""

    @classmethod
    def parse(cls, topic: str, expression: str) -> "Subscription":
        """Parse `*` (everything) or tags joined by `||`, as in `TagA || TagB`; or take an `Sql`.

        A text that begins with `SQL92:`, as `expression` does, is an `Sql` too.

        Blanks around a tag, repeats and empty places between bars do not count, as in RocketMQ.

        Raises:
            InvalidExpression: the expression names no tag or more than 4096 tags, or `*` is not
                alone (RocketMQ would read it as the name of a tag); or as `sql`.
            InvalidTopicName: the name is not valid Unicode. Nameservers check all other rules.
        """
        if isinstance(expression, Sql):
            return cls.sql(topic, expression)
        if not isinstance(expression, str):
            raise InvalidExpression(
                expression=repr(expression), reason='it is not text: "*", "TagA || TagB", or an Sql'
            )
        if expression.startswith(_SQL_MARK):
            return cls.sql(topic, expression.removeprefix(_SQL_MARK).strip())
        _check_texts(topic, expression)
        if expression.strip() == ALL:
            return cls(topic, frozenset(), ())
        tags = frozenset(tag for part in expression.split(_OR) if (tag := part.strip()))
        if not tags:
            raise InvalidExpression(expression=expression, reason="it names no tag")
        if ALL in tags:
            raise InvalidExpression(expression=expression, reason="'*' must stand alone")
        if len(tags) > TAG_HASHES_MAX:
            reason = f"it names {len(tags)} tags, more than {TAG_HASHES_MAX}"
            raise InvalidExpression(expression=expression[:EXCERPT_CHARACTERS_MAX], reason=reason)
        return cls(topic, tags, tuple(sorted({tags_code(tag) for tag in tags})))

    @classmethod
    def sql(cls, topic: str, expression: str) -> "Subscription":
        """Take the messages for which an SQL92 expression on their properties is true.

        Raises:
            InvalidExpression: it is none; the sentence names the place, and a caret points at it.
        """
        text = str(expression)
        _check_texts(topic, text)
        try:
            sql92.compile(text)
        except sql92.InvalidExpression as failure:
            excerpt, _, caret = failure.pointer.partition("\n")
            raise InvalidExpression(
                expression=excerpt,
                reason=f"{failure}\n    {excerpt}\n    {caret}",
                position=failure.position,
            ) from failure
        return cls(topic, frozenset(), (), text)

    @property
    def expression(self) -> str:
        """The same subscription in one spelling: equal subscriptions have equal expressions."""
        if self.sql_expression:
            return f"{_SQL_MARK} {self.sql_expression}"
        return f" {_OR} ".join(sorted(self.tags)) or ALL

    def matches(self, tags: str | None) -> bool:
        """Return whether a message with this TAGS value (None: without one) is wanted.

        Of an SQL92 expression the broker sends only what it selects.
        """
        return not self.tags or tags in self.tags

    def matching(self, tags: Sequence[str | None]) -> list[int] | None:
        """Return the indexes of the wanted ones; None when that is all of them."""
        if not self.tags:
            return None
        wanted = [index for index, value in enumerate(tags) if value in self.tags]
        return None if len(wanted) == len(tags) else wanted


def parsed(subscriptions: Mapping[str, str], own_topic: str | None) -> dict[str, Subscription]:
    """Return a push consumer's subscriptions by topic, sorted.

    Args:
        subscriptions: topic to expression.
        own_topic: the group's retry topic, of which all is read; None: there is none.

    Raises:
        InvalidArgument: there are none, or they are no mapping.
        InvalidExpression, InvalidTopicName: as `Subscription.parse`.
    """
    if not isinstance(subscriptions, Mapping):
        raise InvalidArgument(
            reason=f'subscriptions are {subscriptions!r}, not as in {{"orders": "*"}}'
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
