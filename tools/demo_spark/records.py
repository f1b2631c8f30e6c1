"""Records of the demo: the package index of Debian 12 in three suites, one record per package.

Versions `[epoch:]upstream[-revision]` are compared part by part, texts and numbers alternating. In
texts, letters sort before other characters, and a tilde before everything, even the end.
Source: deb-version(7).
"""

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path
from typing import Any

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


SAMPLE = Path(__file__).with_name("packages.ndjson.xz")


@dataclass(frozen=True)
class PackageRecord:
    """One package of one suite."""

    package: str
    version: str
    section: str
    suite: str
    installed_kib: int
    line: bytes
    """The message body, JSON."""


def read_records(file: Path = SAMPLE) -> list[PackageRecord]:
    """All records in the order of the index, except that the versions of each package ascend.

    The index lists one suite after the other, and the version in a later suite is not always
    newer. Therefore the records of a package are sorted among their positions.
    """
    with lzma.open(file) as lines:
        records = [_record(line.rstrip(b"\n")) for line in lines]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        places[record.package].append(place)
    ordered = list(records)
    for own in places.values():
        if len(own) > 1:
            by_version = sorted((records[at] for at in own), key=lambda each: Version(each.version))
            for place, record in zip(own, by_version, strict=True):
                ordered[place] = record
    return ordered


def _record(line: bytes) -> PackageRecord:
    fields: dict[str, Any] = json.loads(line)
    return PackageRecord(
        fields["package"],
        fields["version"],
        fields["section"],
        fields["suite"],
        fields["installed_kib"],
        line,
    )


def newest(records: Iterable[PackageRecord]) -> dict[str, PackageRecord]:
    """The record with the highest version of each package; the last one of equal versions."""
    found: dict[str, PackageRecord] = {}
    for record in records:
        known = found.get(record.package)
        if known is None or Version(record.version) >= Version(known.version):
            found[record.package] = record
    return found
