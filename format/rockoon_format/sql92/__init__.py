"""Filter expressions on message properties: the SQL92 of RocketMQ.

    >>> wanted = compile("price > 9.5 AND region IN ('north', 'south')")
    >>> wanted.matches({"price": "12", "region": "south"})
    True

An expression evaluates to True, False, or None: NULL, SQL's unknown value. A message matches if the
value is True.

- A property that a message does not have is NULL. A property that is not a number is NULL in a
  comparison with a number. A comparison with NULL is NULL; NOT, AND and OR have SQL's truth tables.
- Numbers are compared as numbers: '10' > 9.5. Integers are exact. A number is an optional sign and
  decimal digits with at most one point and exponent, without blanks.
- = and <> compare a property with a text, or with another property, as text. With TRUE or FALSE
  they compare the property's truth value: "true" in any case is true, every other text is false.
- IN accepts texts, other comparisons numbers or properties; texts have no order.
- CONTAINS, STARTSWITH and ENDSWITH compare a property with a non-empty text, case-sensitively.
  `a NOT CONTAINS 'x'` is `NOT (a CONTAINS 'x')`.
- Keywords are case-insensitive, property names are case-sensitive. Two quotes in a text are one.

Differs from RocketMQ if RocketMQ's result depends on the spelling of an expression: in RocketMQ,
`5 = a` is FALSE but `a = 5` NULL without a property a; two missing properties are equal; `NOT`
covers less (see `grammar`); a text that is not a number makes the whole expression fail; the
property 5.0 is not a number beside 5; and CONTAINS, STARTSWITH, ENDSWITH and their negations are
FALSE for a missing property: `NOT (a CONTAINS 'x')` matches a message without a in RocketMQ, and
does not match here.
Comments are not supported.
Source: ComparisonExpression, UnaryExpression, LogicExpression, SelectorParser.
"""

from collections.abc import Mapping

from rockoon_format.properties import find_value
from rockoon_format.sql92.evaluation import comparisons, question
from rockoon_format.sql92.grammar import CHARACTERS_MAX, DEPTH_MAX, Sql92Error, parse

__all__ = ["CHARACTERS_MAX", "DEPTH_MAX", "Expression", "Sql92Error", "compile"]


class Expression:
    """A compiled expression; immutable, and equal to another of the same text. See `compile`."""

    __slots__ = ("_of_bytes", "_of_mapping", "comparisons", "text")

    def __init__(self, text: str) -> None:
        predicate = parse(text)
        self.text = text
        self.comparisons = comparisons(predicate)
        """Maximum number of comparisons per message; each costs about the same."""
        self._of_mapping = question(predicate, _property)
        self._of_bytes = question(predicate, find_value)

    def matches(self, properties: Mapping[str, str]) -> bool | None:
        """Return the value for a message with these properties; None is NULL."""
        return self._of_mapping(properties)

    def matches_encoded(self, properties: bytes) -> bool | None:
        """Return the value for properties encoded as in a record; reads only the needed ones."""
        return self._of_bytes(properties)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"compile({self.text!r})"


def compile(text: str) -> Expression:
    """Compile an expression of at most 4096 characters, nested at most 50 deep. Raises Sql92Error:
    not a valid expression; has the reason and the position."""
    return Expression(text)


def _property(properties: Mapping[str, str], name: str) -> str | None:
    # Empty values count as missing, because readers of records drop them.
    return properties.get(name) or None
