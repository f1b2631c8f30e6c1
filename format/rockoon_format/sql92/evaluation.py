"""Nodes of a parsed expression, and closures that evaluate it without a walk of the syntax tree.

`grammar` has checked the types of the nodes.

A question returns True, False or None (NULL), and no other object, so that callers can compare its
result with `is`.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

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

Source = TypeVar("Source")
Find = Callable[[Source, str], str | None]
"""Finds a property in the message's properties; None is NULL."""
Question = Callable[[Source], bool | None]

_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
"""Tests whether a text contains, starts with or ends with another text."""
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
# An integer with more digits is compared as a double.
_INTEGER_CHARACTERS_MAX = 40


def number_of(text: str) -> Number | None:
    """Return the decimal number in a text; None if it is not a number.

    Integers stay exact: ids of more than 53 bits must not become equal to their neighbours.
    """
    if len(text) <= _INTEGER_CHARACTERS_MAX and text.isascii():
        if text.isdigit():
            return int(text)
        if text[:1] in ("-", "+") and text[1:].isdigit():
            return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def question(node: Predicate, find: Find[Source]) -> Question[Source]:
    """Return a function that evaluates a predicate for a message."""
    match node:
        case Equal(left, right):
            return _equal(left, right, find)
        case Ordered(left, symbol, right):
            return _ordered(left, symbol, right, find)
        case OneOf(name, texts):
            return _one_of(name, texts, find)
        case HasText(name, keyword, text):
            return _has_text(name, TEXT_TESTS[keyword], text, find)
        case IsNull(name):
            return lambda source: find(source, name) is None
        case Truth(value):
            return lambda _source: value
        case Not(term):
            return _opposite(question(term, find))
        case All(terms):
            return _joined([question(term, find) for term in terms], decisive=False)
        case Any(terms):
            return _joined([question(term, find) for term in terms], decisive=True)


def _joined(terms: list[Question[Source]], *, decisive: bool) -> Question[Source]:
    """AND (one False decides) or OR (one True decides); undecided with a NULL term, it is NULL."""

    def answer(source: Source) -> bool | None:
        result: bool | None = not decisive
        for term in terms:
            truth = term(source)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return answer


def _opposite(term: Question[Source]) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        truth = term(source)
        return None if truth is None else not truth

    return answer


def _one_of(name: str, texts: frozenset[str], find: Find[Source]) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        text = find(source, name)
        return None if text is None else text in texts

    return answer


def _has_text(
    name: str, has: Callable[[str, str], bool], text: str, find: Find[Source]
) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        found = find(source, name)
        return None if found is None else has(found, text)

    return answer


def _equal(left: Operand, right: Operand, find: Find[Source]) -> Question[Source]:
    match left, right:
        case Constant(), Property():
            return _equal(right, left, find)
        case Property(name), Constant(str() as text):
            return _is_text(name, text, find)
        case Property(name), Constant(bool() as truth):
            return _is_truth(name, truth, find)
        case Property(name), Property(other):
            return _same_text(name, other, find)
        case Constant(value), Constant(other_value) if type(value) is type(other_value):
            same = value == other_value
            return lambda _source: same
        case (Constant(str() as text), Constant(bool() as truth)) | (
            Constant(bool() as truth),
            Constant(str() as text),
        ):
            same = _truth_of(text) is truth
            return lambda _source: same
    return _ordered(left, "=", right, find)


def _is_text(name: str, text: str, find: Find[Source]) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        found = find(source, name)
        return None if found is None else found == text

    return answer


def _is_truth(name: str, truth: bool, find: Find[Source]) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        found = find(source, name)
        return None if found is None else _truth_of(found) is truth

    return answer


def _truth_of(text: str) -> bool:
    """Java's Boolean.valueOf: every text except "true" is false."""
    return text.lower() == "true"


def _same_text(name: str, other: str, find: Find[Source]) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        one = find(source, name)
        if one is None:
            return None
        two = find(source, other)
        return None if two is None else one == two

    return answer


def _ordered(left: Operand, symbol: str, right: Operand, find: Find[Source]) -> Question[Source]:
    match left, right:
        case Property(name), Constant(int() | float() as bound):
            return _compared(name, _COMPARE[symbol], bound, find)
        case Constant(), Property():
            return _ordered(right, _MIRRORED[symbol], left, find)
    one, other, compare = _number(left, find), _number(right, find), _COMPARE[symbol]

    def answer(source: Source) -> bool | None:
        first = one(source)
        if first is None:
            return None
        second = other(source)
        return None if second is None else compare(first, second)

    return answer


def _compared(
    name: str, compare: Callable[[Number, Number], bool], bound: Number, find: Find[Source]
) -> Question[Source]:
    def answer(source: Source) -> bool | None:
        text = find(source, name)
        if text is None:
            return None
        number = number_of(text)
        return None if number is None else compare(number, bound)

    return answer


def _number(operand: Operand, find: Find[Source]) -> Callable[[Source], Number | None]:
    if isinstance(operand, Constant):
        value = operand.value
        number = number_of(value) if isinstance(value, str) else value
        return lambda _source: number
    name = operand.name

    def found(source: Source) -> Number | None:
        text = find(source, name)
        return None if text is None else number_of(text)

    return found
