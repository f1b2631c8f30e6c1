"""JSON as fastjson reads and writes it.

Brokers in Java write maps with unquoted integer keys, or with objects as keys, and accept single
quotes, bare words as keys and trailing commas. This parser accepts all of these. Every key becomes
a string: an integer its digits, an object its JSON text with sorted names.
"""

import json
import re
from typing import Any, NoReturn

Json = Any
"""The result type of `json.loads`."""

DEPTH_MAX = 32
INTEGER_DIGITS_MAX = 40

_SPACE = re.compile(r"[ \t\r\n\f\v]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES = {
    '"': '"', "'": "'", "\\": "\\", "/": "/",
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0", "v": "\v",
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}


class ConfigError(ValueError):
    """A configuration text that cannot be read; `line` and `column` count from 1.

    Both are 0 if the text is JSON but a value has the wrong type; the message then names the value.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


def parse_json(content: bytes | str) -> Json:
    """Parse one JSON value.

    Raises:
        ConfigError: not UTF-8, not JSON even by fastjson's rules, or nested deeper than 32.
    """
    if isinstance(content, bytes):
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - content.rfind(b"\n", 0, error.start)
            raise ConfigError("not UTF-8", line, column) from error
    else:
        text = content
    reader = _JsonCursor(text)
    value = reader.value(0)
    reader.skip_space()
    if reader.at < len(text):
        reader.fail("unexpected text after the value")
    return value


class _JsonCursor:
    """A cursor over the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        position = self.at if at is None else at
        line = self._text.count("\n", 0, position) + 1
        column = position - self._text.rfind("\n", 0, position)
        raise ConfigError(message, line, column)

    def skip_space(self) -> None:
        match = _SPACE.match(self._text, self.at)
        assert match is not None
        self.at = match.end()

    def peek(self) -> str:
        self.skip_space()
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Json:
        if depth > DEPTH_MAX:
            self.fail(f"nested deeper than {DEPTH_MAX}")
        first = self.peek()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first in ('"', "'"):
            return self.string()
        if match := _NUMBER.match(self._text, self.at):
            return self.number(match)
        match = _WORD.match(self._text, self.at)
        if match is None or match.group() not in _CONSTANTS:
            self.fail("expected a value" if first else "the text ends before a value")
        self.at = match.end()
        return _CONSTANTS[match.group()]

    def number(self, match: re.Match[str]) -> int | float:
        digits = match.group()
        if len(digits) > INTEGER_DIGITS_MAX:
            self.fail("a number with too many digits")
        self.at = match.end()
        return float(digits) if set(digits) & set(".eE") else int(digits)

    def object(self, depth: int) -> dict[str, Json]:
        self.at += 1
        result: dict[str, Json] = {}
        while self.peek() != "}":
            key = self.key(depth)
            if self.peek() != ":":
                self.fail("expected ':' after a key")
            self.at += 1
            result[key] = self.value(depth + 1)
            self.separator("}")
        self.at += 1
        return result

    def array(self, depth: int) -> list[Json]:
        self.at += 1
        result = []
        while self.peek() != "]":
            result.append(self.value(depth + 1))
            self.separator("]")
        self.at += 1
        return result

    def separator(self, closing: str) -> None:
        """Read one comma; without one, the closing bracket must be next."""
        if self.peek() == ",":
            self.at += 1
        elif self.peek() != closing:
            self.fail(f"expected ',' or '{closing}'")

    def key(self, depth: int) -> str:
        first = self.peek()
        if first in ('"', "'"):
            return self.string()
        if first == "{":
            if depth + 1 > DEPTH_MAX:
                self.fail(f"nested deeper than {DEPTH_MAX}")
            return json.dumps(self.object(depth + 1), sort_keys=True, ensure_ascii=False)
        match = _WORD.match(self._text, self.at) or _NUMBER.match(self._text, self.at)
        if match is None:
            self.fail("expected a key" if first else "the text ends inside an object")
        self.at = match.end()
        return match.group()

    def string(self) -> str:
        start = self.at
        quote = self._text[start]
        plain = _PLAIN[quote]
        self.at += 1
        pieces = []
        while True:
            match = plain.match(self._text, self.at)
            assert match is not None
            pieces.append(match.group())
            self.at = match.end()
            if self.at >= len(self._text):
                self.fail("a string that does not end", start)
            if self._text[self.at] == quote:
                self.at += 1
                break
            pieces.append(self.escape())
        text = "".join(pieces)
        if any("\ud800" <= character <= "\udfff" for character in text):
            # Combines the escaped halves of one character.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def escape(self) -> str:
        kind = self._text[self.at + 1 : self.at + 2]
        if kind in ("u", "x"):
            width = 4 if kind == "u" else 2
            digits = self._text[self.at + 2 : self.at + 2 + width]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{width}}}", digits):
                self.fail("an escape without its hex digits")
            self.at += 2 + width
            return chr(int(digits, 16))
        if kind not in _ESCAPES:
            self.fail("an unknown escape")
        self.at += 2
        return _ESCAPES[kind]
