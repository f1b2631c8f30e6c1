"""Tokens of a filter expression, and the error of an invalid one."""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

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
    """Split an expression into tokens; the last token is the end.

    Raises:
        Sql92Error: a part of it is not a token.
    """
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
