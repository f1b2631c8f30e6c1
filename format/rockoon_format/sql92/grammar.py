"""Tokens of filter expressions, and a parser by recursive descent.

    expression = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation    = NOT negation | predicate
    predicate   = operand [ ( = | <> | < | <= | > | >= ) operand
                          | [NOT] BETWEEN operand AND operand
                          | [NOT] IN ( text { , text } )
                          | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) text
                          | IS [NOT] NULL ]
    operand     = name | text | [ + | - ] number | TRUE | FALSE | ( expression )

NOT covers a whole comparison, as in SQL. (In RocketMQ's SelectorParser it covers only the next
operand: `NOT a > 5` is refused there, and `NOT a = 5` never matches.)

Expressions that can never be true, or have no meaning, are refused here, so that the subscriber is
informed: ordering of texts, `= NULL`, numbers among the texts of IN, an empty text after CONTAINS,
a property instead of a condition.

CONTAINS, STARTSWITH and ENDSWITH are keywords only after an operand, because properties may have
these names.
"""

import math
import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, NoReturn

from rockoon_format.sql92.evaluation import (
    TEXT_TESTS,
    All,
    Any,
    Constant,
    Equal,
    HasText,
    IsNull,
    Not,
    Number,
    OneOf,
    Operand,
    Ordered,
    Predicate,
    Property,
    Truth,
)

EXCERPT_CHARACTERS_MAX = 72
KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"})
# Possessive repeats: a missing quote costs one pass without backtracking.
_TOKEN = re.compile(
    r"""
    (?P<blank>  [ \t\r\n\f]+ )
    | (?P<number> (?: [0-9]+ (?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? [lL]? (?![\w$.]) )
    | (?P<word>   (?: [^\W\d] | \$ ) [\w$]* )
    | (?P<text>   ' (?: [^']++ | '' )*+ ' )
    | (?P<symbol> <> | <= | >= | = (?!=) | [<>(),+-] )
    """,
    re.VERBOSE,
)
_NOT_OURS = {"!=": "write <> for 'not equal'", "==": "write a single = for 'equal'"}


class Sql92Error(ValueError):
    """An expression that cannot be compiled.

    The message has the reason and the position; `pointer` shows the position.

    Args:
        reason: the fault, as a clause.
        text: the expression.
        position: index of the character with the fault; the text's length if the end is missing.
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        super().__init__(f"{reason} (at character {position + 1})")
        self.reason = reason
        self.text = text
        self.position = position

    @property
    def pointer(self) -> str:
        """Two lines: the expression around the position, and a caret under it."""
        start = max(0, self.position - EXCERPT_CHARACTERS_MAX // 2)
        shown = self.text[start : start + EXCERPT_CHARACTERS_MAX]
        # Line breaks and tabs would move the caret.
        line = "".join(each if each.isprintable() else " " for each in shown)
        return f"{line}\n{' ' * (self.position - start)}^"


class TokenKind(Enum):
    """Type of a token."""

    KEYWORD = "keyword"
    NAME = "property name"
    TEXT = "text in quotes"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


class Token(NamedTuple):
    """A token of an expression."""

    kind: TokenKind
    value: str
    """Keywords in capitals, texts without quotes, other tokens as written; "" at the end."""
    position: int

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end"
        return f"'{self.value}'" if self.kind is TokenKind.TEXT else self.value


def tokens(text: str) -> Iterator[Token]:
    """Split an expression into tokens; the last token is the end. Raises Sql92Error: a part is no
    token."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Sql92Error(_complaint(text, position), text, position)
        if match.lastgroup != "blank":
            yield _token(match)
        position = match.end()
    yield Token(TokenKind.END, "", len(text))


def _token(match: re.Match[str]) -> Token:
    value, position = match.group(), match.start()
    match match.lastgroup:
        case "word":
            # Only ASCII: capitals of other alphabets can spell keywords too.
            if value.isascii() and value.upper() in KEYWORDS:
                return Token(TokenKind.KEYWORD, value.upper(), position)
            return Token(TokenKind.NAME, value, position)
        case "text":
            return Token(TokenKind.TEXT, value[1:-1].replace("''", "'"), position)
        case "number":
            return Token(TokenKind.NUMBER, value, position)
        case _:
            return Token(TokenKind.SYMBOL, value, position)


def _complaint(text: str, position: int) -> str:
    here = text[position]
    if here == "'":
        return "this text has no closing quote"
    if here == '"':
        return "text must be in single quotes"
    if here.isdecimal() or here == ".":
        return "this is not a number"
    advice = _NOT_OURS.get(text[position : position + 2])
    return advice or f"{here!r} has no meaning here"


CHARACTERS_MAX = 4096
DEPTH_MAX = 50
"""Nested parentheses and NOTs."""

_LONG = range(-(1 << 63), 1 << 63)
_ORDER = frozenset({"<", "<=", ">", ">="})
_COMPARISONS = _ORDER | {"=", "<>"}


def parse(text: str) -> Predicate:
    """Parse an expression. Raises Sql92Error: it is too long, or not an expression."""
    if len(text) > CHARACTERS_MAX:
        reason = f"it is longer than {CHARACTERS_MAX} characters"
        raise Sql92Error(reason, text, CHARACTERS_MAX)
    return _Parser(text).whole()


class _Parser:
    """Reads tokens from left to right; `_token` is the next one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._token = next(self._tokens)
        self._depth = 0

    def whole(self) -> Predicate:
        predicate = self._condition(self._token, self._expression())
        if self._token.kind is TokenKind.END:
            return predicate
        if self._is(")"):
            self._refuse("this parenthesis closes nothing")
        if self._at_comparison():
            self._refuse("comparisons do not follow one another: join them with AND")
        self._refuse(f"expected AND, OR or the end, not {self._token}")

    def _expression(self) -> Predicate | Operand:
        return self._joined("OR")

    def _joined(self, keyword: str) -> Predicate | Operand:
        start = self._token
        first = self._joined("AND") if keyword == "OR" else self._negation()
        if not self._is(keyword):
            return first
        terms = [self._condition(start, first)]
        while self._accept(keyword):
            start = self._token
            term = self._joined("AND") if keyword == "OR" else self._negation()
            terms.append(self._condition(start, term))
        return Any(tuple(terms)) if keyword == "OR" else All(tuple(terms))

    def _negation(self) -> Predicate | Operand:
        if not self._is("NOT"):
            return self._predicate()
        self._enter()
        self._advance()
        start = self._token
        term = self._condition(start, self._negation())
        self._depth -= 1
        return Not(term)

    def _predicate(self) -> Predicate | Operand:
        start = self._token
        left = self._primary()
        if self._at_comparison():
            symbol = self._token.value
            self._advance()
            return self._comparison(start, left, symbol)
        if self._accept("IS"):
            negated = self._accept("NOT")
            if not self._accept("NULL"):
                self._refuse("IS is followed by NULL or NOT NULL")
            null = IsNull(self._name(start, left))
            return Not(null) if negated else null
        negated = self._is("NOT")
        if negated:
            self._advance()
        if self._accept("BETWEEN"):
            return self._between(start, left, negated=negated)
        if self._accept("IN"):
            one = OneOf(self._name(start, left), self._texts())
            return Not(one) if negated else one
        keyword = self._token.value.upper() if self._token.kind is TokenKind.NAME else ""
        if keyword in TEXT_TESTS:
            self._advance()
            test = self._text_test(start, left, keyword)
            return Not(test) if negated else test
        if keyword == "LIKE":
            self._refuse("LIKE is not supported: use CONTAINS, STARTSWITH or ENDSWITH")
        if negated:
            self._refuse("NOT is followed by BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH here")
        return left

    def _text_test(self, start: Token, left: Predicate | Operand, keyword: str) -> Predicate:
        token = self._token
        if token.kind is not TokenKind.TEXT:
            self._refuse(f"{keyword} is followed by a text in single quotes")
        if not token.value:
            self._refuse(f"the text after {keyword} is empty")
        self._advance()
        match left:
            case Property(name):
                return HasText(name, keyword, token.value)
            case Constant(str() as text):
                return Truth(TEXT_TESTS[keyword](text, token.value))
        self._refuse(f"{keyword} compares a property or a text", start)

    def _comparison(self, start: Token, left: Predicate | Operand, symbol: str) -> Predicate:
        second = self._token
        right = self._primary()
        if symbol in _ORDER:
            return Ordered(self._ordinal(start, left), symbol, self._ordinal(second, right))
        equal = Equal(self._operand(start, left), self._operand(second, right))
        kinds = {
            type(each.value) for each in (equal.left, equal.right) if isinstance(each, Constant)
        }
        if kinds in ({bool, int}, {bool, float}):
            self._refuse("a number is neither TRUE nor FALSE", second)
        return Not(equal) if symbol == "<>" else equal

    def _between(self, start: Token, value: Predicate | Operand, *, negated: bool) -> Predicate:
        operand = self._ordinal(start, value)
        low_at = self._token
        low = self._ordinal(low_at, self._primary())
        if not self._accept("AND"):
            self._refuse("BETWEEN needs two bounds, joined by AND")
        high_at = self._token
        high = self._ordinal(high_at, self._primary())
        match low, high:
            case Constant(int() | float() as least), Constant(int() | float() as most):
                empty = least > most
            case _:
                empty = False
        if empty:
            self._refuse("nothing is between these bounds: the lower one comes first", low_at)
        if negated:
            return Any((Ordered(operand, "<", low), Ordered(operand, ">", high)))
        return All((Ordered(operand, ">=", low), Ordered(operand, "<=", high)))

    def _texts(self) -> frozenset[str]:
        if not self._accept("("):
            self._refuse("IN is followed by texts in parentheses")
        texts = set()
        while True:
            if self._token.kind is not TokenKind.TEXT:
                self._refuse("IN compares texts: put each in single quotes")
            texts.add(self._token.value)
            self._advance()
            if self._accept(")"):
                return frozenset(texts)
            if not self._accept(","):
                self._refuse("expected a comma or a closing parenthesis")

    def _primary(self) -> Predicate | Operand:
        token = self._token
        match token.kind:
            case TokenKind.NAME:
                self._advance()
                return Property(token.value)
            case TokenKind.TEXT:
                self._advance()
                return Constant(token.value)
            case TokenKind.NUMBER:
                return Constant(self._number(""))
        if token.value in ("TRUE", "FALSE"):
            self._advance()
            return Constant(token.value == "TRUE")
        if token.value in ("+", "-"):
            self._advance()
            if self._token.kind is not TokenKind.NUMBER:
                self._refuse("a sign must be followed by a number")
            return Constant(self._number(token.value))
        if token.value == "(":
            return self._parenthesised()
        if token.value == "NULL":
            self._refuse("nothing equals NULL: ask with IS NULL or IS NOT NULL")
        self._refuse(f"expected a property, a text or a number, not {token}")

    def _parenthesised(self) -> Predicate | Operand:
        opening = self._token
        self._enter()
        self._advance()
        inner = self._expression()
        if not self._accept(")"):
            if self._token.kind is TokenKind.END:
                self._refuse("this parenthesis is never closed", opening)
            self._refuse(f"expected a closing parenthesis, not {self._token}")
        self._depth -= 1
        return inner

    def _number(self, sign: str) -> Number:
        token = self._token
        self._advance()
        digits = token.value
        if digits[-1] in "lL":
            digits = digits[:-1]
            if not digits.isdecimal():
                self._refuse("L is allowed after integers only", token)
        if digits.isdecimal():
            # A number with 100 digits is too large in any case, and longer ones are slow to parse.
            number = int(sign + digits) if len(digits) < 100 else _LONG.stop
            if number not in _LONG:
                self._refuse("integers have at most 64 bits", token)
            return number
        real = float(sign + digits)
        if math.isinf(real):
            self._refuse("this number is too large", token)
        return real

    def _condition(self, start: Token, found: Predicate | Operand) -> Predicate:
        if isinstance(found, Constant) and isinstance(found.value, bool):
            return Truth(found.value)
        if isinstance(found, Property):
            self._refuse(f"expected a condition: {found.name} = TRUE, perhaps", start)
        if isinstance(found, Constant):
            self._refuse("expected a condition, not a value", start)
        return found

    def _operand(self, start: Token, found: Predicate | Operand) -> Operand:
        if not isinstance(found, Property | Constant):
            self._refuse("only properties and values can be compared, not a condition", start)
        return found

    def _ordinal(self, start: Token, found: Predicate | Operand) -> Operand:
        operand = self._operand(start, found)
        if isinstance(operand, Constant) and isinstance(operand.value, bool | str):
            self._refuse("only numbers can be larger or smaller", start)
        return operand

    def _name(self, start: Token, found: Predicate | Operand) -> str:
        if not isinstance(found, Property):
            self._refuse("expected the name of a property", start)
        return found.name

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"it is nested more than {DEPTH_MAX} deep")

    def _is(self, value: str) -> bool:
        return self._token.value == value and self._token.kind in (
            TokenKind.KEYWORD,
            TokenKind.SYMBOL,
        )

    def _at_comparison(self) -> bool:
        return self._token.kind is TokenKind.SYMBOL and self._token.value in _COMPARISONS

    def _accept(self, value: str) -> bool:
        if not self._is(value):
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self._token = next(self._tokens)

    def _refuse(self, reason: str, token: Token | None = None) -> NoReturn:
        where = self._token if token is None else token
        raise Sql92Error(reason, self._text, where.position)
