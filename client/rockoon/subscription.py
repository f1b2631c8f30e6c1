"""What a consumer wants of a topic: all messages, or those with certain tags.

Tags are filtered twice: the broker compares hashes (all its ConsumeQueue entries hold), the client
compares the text, because different tags can share a hash ("Aa" and "BB" do).
Source: FilterAPI#buildSubscriptionData.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_format.hashes import tags_code
from rockoon_proto.errors import InvalidExpression

ALL = "*"
_OR = "||"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic and the tags wanted of it; made by `Subscription.parse`."""

    topic: str
    tags: frozenset[str]
    """Empty means all messages."""
    tag_hashes: tuple[int, ...]
    """Java hash codes of the tags, sorted, without repeats: the broker's filter."""

    @classmethod
    def parse(cls, topic: str, expression: str) -> "Subscription":
        """Parse `*` (everything) or tags joined by `||`, as in `TagA || TagB`.

        Blanks around a tag, repeats and empty places between bars do not count, as in RocketMQ.

        Raises:
            InvalidExpression: nothing is wanted, or `*` stands beside other tags (RocketMQ would
                take it for the name of a tag there, which nobody means).
        """
        if expression.strip() == ALL:
            return cls(topic, frozenset(), ())
        tags = frozenset(tag for part in expression.split(_OR) if (tag := part.strip()))
        if not tags:
            raise InvalidExpression(expression=expression, reason="it names no tag")
        if ALL in tags:
            raise InvalidExpression(expression=expression, reason="'*' must stand alone")
        return cls(topic, tags, tuple(sorted({tags_code(tag) for tag in tags})))

    @property
    def expression(self) -> str:
        """The same subscription in one spelling: equal subscriptions have equal expressions."""
        return f" {_OR} ".join(sorted(self.tags)) or ALL

    def matches(self, tags: str | None) -> bool:
        """Return whether a message with this TAGS value (None: without one) is wanted."""
        return not self.tags or tags in self.tags

    def matching(self, tags: Sequence[str | None]) -> list[int] | None:
        """Return the indexes of the wanted ones; None when that is all of them."""
        if not self.tags:
            return None
        wanted = [index for index, value in enumerate(tags) if value in self.tags]
        return None if len(wanted) == len(tags) else wanted
