"""Filter expressions on message properties: the SQL92 of RocketMQ.

    >>> wanted = compile("price > 9.5 AND region IN ('north', 'south')")
    >>> wanted.matches({"price": "12", "region": "south"})
    True

An expression answers True, False, or None: NULL, what SQL says of things it does not know. A
message is wanted when the answer is True.

- A property that a message does not have is NULL. So is a property that spells no number where it
  is compared with one. What is compared with NULL is NULL; NOT, AND and OR have SQL's truth tables.
- Numbers are compared as numbers: '10' > 9.5. Integers are exact. A number is an optional sign and
  decimal digits with at most one point and exponent, without blanks.
- = and <> compare a property with a text, or with another property, as text. With TRUE or FALSE
  they compare whether it spells true, in any case; all other texts count as false.
- IN takes texts, the other comparisons numbers or properties; nothing is larger than a text.
- CONTAINS, STARTSWITH and ENDSWITH compare a property with a text that is not empty, with the case
  of letters. `a NOT CONTAINS 'x'` is `NOT (a CONTAINS 'x')`.
- Keywords have any case, names of properties have theirs. Two quotes in a text are one.

Differs from RocketMQ where its answer depends on how an expression is spelled: there `5 = a` is
FALSE but `a = 5` NULL when there is no a, two missing properties are equal, `NOT` takes in less
(see `grammar`), a text that is no number makes the whole expression fail, 5.0 as a property is no
number beside 5, and CONTAINS, STARTSWITH, ENDSWITH and their opposites are FALSE of a property that
is missing: `NOT (a CONTAINS 'x')` matches a message without a there, and does not here.
Comments are not supported.
Source: ComparisonExpression, UnaryExpression, LogicExpression, SelectorParser.
"""

from collections.abc import Mapping

from rockoon_format.properties import find_value
from rockoon_format.sql92.evaluation import question
from rockoon_format.sql92.grammar import CHARACTERS_MAX, DEPTH_MAX, parse
from rockoon_format.sql92.nodes import comparisons
from rockoon_format.sql92.tokens import InvalidExpression

__all__ = ["CHARACTERS_MAX", "DEPTH_MAX", "Expression", "InvalidExpression", "compile"]


class Expression:
    """A compiled expression; immutable, and equal to another of the same text. See `compile`."""

    __slots__ = ("_of_bytes", "_of_mapping", "comparisons", "text")

    def __init__(self, text: str) -> None:
        predicate = parse(text)
        self.text = text
        self.comparisons = comparisons(predicate)
        """How many comparisons an answer takes at most: each costs about as much."""
        self._of_mapping = question(predicate, _property)
        self._of_bytes = question(predicate, find_value)

    def matches(self, properties: Mapping[str, str]) -> bool | None:
        """Return the answer for a message with these properties; None is NULL."""
        return self._of_mapping(properties)

    def matches_encoded(self, properties: bytes) -> bool | None:
        """Return the answer for properties as a record holds them; reads only those it needs."""
        return self._of_bytes(properties)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"compile({self.text!r})"


def compile(text: str) -> Expression:
    """Compile an expression of at most 4096 characters, nested at most 50 deep.

    Raises:
        InvalidExpression: it is none; says what is wrong, and where.
    """
    return Expression(text)


def _property(properties: Mapping[str, str], name: str) -> str | None:
    # A record holds no empty values: readers drop them.
    return properties.get(name) or None
