"""Comparison of Debian versions.

`[epoch:]upstream[-revision]`, compared part by part, texts and numbers alternating. In texts,
letters sort before other characters, and a tilde before everything, even the end.
Source: deb-version(7).
"""

import re
from functools import total_ordering

_PARTS = re.compile(r"([^0-9]*)([0-9]*)")


@total_ordering
class Version:
    """A version that sorts as dpkg sorts it."""

    def __init__(self, text: str) -> None:
        epoch, colon, rest = text.partition(":")
        if not colon:
            epoch, rest = "0", text
        upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "0")
        self._order = (int(epoch), _order(upstream), _order(revision))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._order == other._order

    def __lt__(self, other: "Version") -> bool:
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)


def _order(part: str) -> list[tuple[tuple[int, ...], int]]:
    found = []
    for text, number in _PARTS.findall(part):
        weights = (*map(_weight, text), _END)
        found.append((weights, int(number or 0)))
    return found


_END = 0


def _weight(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256
