"""Nodes of a parsed filter expression; `grammar` has checked their types."""

from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property; its value is text, or NULL if the message does not have it."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, TRUE or FALSE."""

    value: Number | str | bool


Operand = Property | Constant


@dataclass(frozen=True, slots=True)
class Equal:
    """`left = right`."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Ordered:
    """`left < right` and similar; constants are numbers."""

    left: Operand
    symbol: str
    """One of < <= > >=."""
    right: Operand


@dataclass(frozen=True, slots=True)
class OneOf:
    """`property IN (texts)`."""

    name: str
    texts: frozenset[str]


@dataclass(frozen=True, slots=True)
class HasText:
    """`property CONTAINS text` and similar."""

    name: str
    keyword: str
    """One of CONTAINS, STARTSWITH, ENDSWITH."""
    text: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """`property IS NULL`: the only test whose result for NULL is not NULL."""

    name: str


@dataclass(frozen=True, slots=True)
class Truth:
    """The condition TRUE or FALSE."""

    value: bool


@dataclass(frozen=True, slots=True)
class Not:
    """Negation; the negation of NULL is NULL."""

    term: "Predicate"


@dataclass(frozen=True, slots=True)
class All:
    """Terms joined by AND."""

    terms: "tuple[Predicate, ...]"


@dataclass(frozen=True, slots=True)
class Any:
    """Terms joined by OR."""

    terms: "tuple[Predicate, ...]"


def comparisons(node: "Predicate") -> int:
    """Maximum number of comparisons for a message."""
    match node:
        case All(terms) | Any(terms):
            return sum(map(comparisons, terms))
        case Not(term):
            return comparisons(term)
    return 1


Predicate = Equal | Ordered | OneOf | HasText | IsNull | Truth | Not | All | Any
