"""Generations: the records that compaction kept, in an immutable directory beside the log.

    <store>/compacted/
      current                     {"generation": 7}, the one in use
      00000000000000000007/
        manifest.json             its queues and offsets, and checksums of all files
        00000.records             generation_parts.py: CommitLog records, byte for byte
        00000.entries             generation_parts.py: position of each record
        00000.superseded          generation_parts.py: which records a newer one superseded;
                                  only in parts of a former generation
      .incoming-<id>/             incomplete, being written; ignored by readers

The offset of a record is at least `covered_from` and below `covered_to` of its queue; its physical
offset is below `log_end`. A generation may have no parts, and topics without a record, if
compaction kept nothing of them. Docs: adr/0018.

The manifest has its own checksum, of its canonical text: keys sorted, no spaces.

    {"manifest": {"version": 2, "generation": 7, "replaces": 6, ...}, "sha256": "..."}

A manifest of version 1 has neither superseded records nor the age of tombstones.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from rockoon_format.file_names import OFFSET_MAX, offset_to_file_name
from rockoon_format.generation_parts import (
    PART_BYTES_MAX,
    EntriesLayout,
    GenerationError,
    PartEntries,
    check_part,
    encode_superseded,
    part_checks,
    part_entries,
    superseded_bytes,
)
from rockoon_format.names import topic_fault

__all__ = [
    "CURRENT_FILE",
    "FORMER_VERSION",
    "GENERATIONS_DIRECTORY",
    "INCOMING_PREFIX",
    "MANIFEST_FILE",
    "PARTS_MAX",
    "PART_BYTES_MAX",
    "TAIL_BYTES",
    "VERSION",
    "CoveredQueue",
    "EntriesLayout",
    "GenerationError",
    "GenerationPart",
    "GenerationTopic",
    "LogTail",
    "Manifest",
    "PartEntries",
    "PartFile",
    "check_order",
    "check_part",
    "decode_current",
    "encode_current",
    "encode_superseded",
    "generation_name",
    "part_checks",
    "part_entries",
    "part_names",
    "superseded_name",
    "tail_start",
]

GENERATIONS_DIRECTORY = "compacted"
CURRENT_FILE = "current"
MANIFEST_FILE = "manifest.json"
INCOMING_PREFIX = ".incoming-"
TAIL_BYTES = 65_536
PARTS_MAX = 100_000
"""The name of a part has five digits."""

VERSION = 2
FORMER_VERSION = 1
_SHA256_DIGITS = 64

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class CoveredQueue:
    """The offsets of one queue that a generation covers."""

    queue: int
    covered_from: int
    """The queue's first offset; earlier messages were deleted."""
    covered_to: int
    """One more than the last covered offset; this and later offsets are in the log."""
    records: int
    """Number of kept records."""


@dataclass(frozen=True, slots=True)
class GenerationTopic:
    """A compacted topic; it may have no records left."""

    topic: str
    dropped_below: int
    """A deletion of the topic removed its records below this physical offset; 0 if none did."""
    queues: tuple[CoveredQueue, ...]
    """Ascending by queue id."""
    oldest_tombstone_ms: int = 0
    """No tombstone of the topic has an earlier `kept_since_ms`; 0 if the topic has no tombstone."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """Identifies a log: the bytes directly before `log_end`, padding of the file included."""

    start: int
    """Physical offset of the first byte: see `tail_start`."""
    bytes: int
    crc32: int


class PartFile(NamedTuple):
    """A file of a part, as the manifest describes it."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class GenerationPart:
    """The files of one part, and the range of the log that contains its records."""

    number: int
    log_start: int
    log_end: int
    """All its records start between `log_start` and `log_end` (physical offsets)."""
    records: int
    """Number of kept records; the files also have the superseded ones."""
    records_bytes: int
    records_sha256: str
    entries_bytes: int
    entries_sha256: str
    superseded: int = 0
    superseded_sha256: str = ""
    """Checksum of the `.superseded` file; empty without superseded records."""

    @property
    def rows(self) -> int:
        """Number of records in the files."""
        return self.records + self.superseded

    @property
    def files(self) -> tuple[PartFile, ...]:
        """The files: records, entries and, if there are superseded records, their rows."""
        records, entries = part_names(self.number)
        found = (
            PartFile(records, self.records_bytes, self.records_sha256),
            PartFile(entries, self.entries_bytes, self.entries_sha256),
        )
        if not self.superseded:
            return found
        name, size = superseded_name(self.number), superseded_bytes(self.rows)
        return (*found, PartFile(name, size, self.superseded_sha256))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole generation. Times are epoch milliseconds; offsets are those of the CommitLog."""

    generation: int
    """At least 1."""
    replaces: int
    """The previous generation; 0 if there was none."""
    created_ms: int
    log_start: int
    """First offset of the log when it was read."""
    log_end: int
    """End of a record. Earlier records of the topics are in this generation or superseded."""
    log_tail: LogTail
    topics: tuple[GenerationTopic, ...]
    """By name, in byte order."""
    parts: tuple[GenerationPart, ...]
    """By number, from 0, which is the order of the log."""
    version: int = VERSION

    @property
    def records(self) -> int:
        """Number of kept records."""
        return sum(part.records for part in self.parts)

    @property
    def records_bytes(self) -> int:
        return sum(part.records_bytes for part in self.parts)

    @property
    def files_bytes(self) -> int:
        return sum(file.bytes for part in self.parts for file in part.files)

    def topic(self, name: str) -> GenerationTopic | None:
        return next((topic for topic in self.topics if topic.topic == name), None)

    def to_json(self) -> bytes:
        """Return the content of `manifest.json`; raises GenerationError if the manifest contradicts
        itself."""
        self.check()
        content = asdict(self)
        if self.version == FORMER_VERSION:
            for name, added in _ADDED.items():
                for item in content[name]:
                    for field_name in added:
                        del item[field_name]
        text = {"manifest": content, "sha256": _checksum(content)}
        return json.dumps(text, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Read the file's content. Raises GenerationError: not a manifest, a damaged one, another
        version, or one that contradicts itself."""
        try:
            whole = json.loads(text)
            content = whole["manifest"]
            if whole["sha256"] != _checksum(content):
                raise GenerationError("the checksum does not match the manifest")
            version = content["version"]
            if version == FORMER_VERSION:
                for name, added in _ADDED.items():
                    for item in content[name]:
                        item |= added
            elif version != VERSION:
                raise GenerationError(
                    f"a manifest of version {version}; {FORMER_VERSION} and {VERSION} are known"
                )
            manifest = _manifest(content)
        except GenerationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            # Not the error's repr: for a decoding error it contains the whole text.
            raise GenerationError(f"not a manifest: {type(error).__name__}: {error}") from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise GenerationError if the manifest contradicts itself."""
        if not 0 <= self.replaces < self.generation:
            raise GenerationError(f"generation {self.generation} replaces {self.replaces}")
        if self.log_start > self.log_end:
            raise GenerationError(f"the log from {self.log_start} to {self.log_end}")
        tail = self.log_tail
        if tail.start + tail.bytes != self.log_end or tail.bytes > TAIL_BYTES:
            raise GenerationError(
                f"{tail.bytes} bytes from {tail.start} do not end the log at {self.log_end}"
            )
        _check_ascending("topics", [topic.topic for topic in self.topics])
        for topic in self.topics:
            self._check_topic(topic)
        self._check_parts()
        left = sum(queue.records for topic in self.topics for queue in topic.queues)
        if left != self.records:
            raise GenerationError(f"{left} records in the queues, {self.records} in the parts")

    def _check_topic(self, topic: GenerationTopic) -> None:
        if fault := topic_fault(topic.topic):
            raise GenerationError(fault)
        if topic.dropped_below > self.log_end:
            raise GenerationError(f"{topic.topic} was dropped after {self.log_end}")
        _check_ascending(f"queues of {topic.topic}", [queue.queue for queue in topic.queues])
        for queue in topic.queues:
            if queue.records > queue.covered_to - queue.covered_from:
                raise GenerationError(
                    f"queue {queue.queue} of {topic.topic} has {queue.records} records from "
                    f"{queue.covered_from} to {queue.covered_to}"
                )

    def _check_parts(self) -> None:
        at = 0
        for number, part in enumerate(self.parts):
            if part.number != number or number >= PARTS_MAX:
                raise GenerationError(f"part {part.number} at index {number}")
            if not at <= part.log_start <= part.log_end <= self.log_end:
                raise GenerationError(
                    f"part {number} from {part.log_start} to {part.log_end} is not between "
                    f"{at} and {self.log_end}"
                )
            at = part.log_end
            if part.records_bytes > PART_BYTES_MAX:
                raise GenerationError(f"part {number} of {part.records_bytes} bytes")
            if self.version == FORMER_VERSION and part.superseded:
                raise GenerationError(f"part {number} has superseded records, in version 1")
            for digits in (file.sha256 for file in part.files):
                if len(digits) != _SHA256_DIGITS or not set(digits) <= set("0123456789abcdef"):
                    raise GenerationError(f"part {number}: {digits!r} is not a checksum")


def tail_start(log_end: int, log_file_bytes: int) -> int:
    """Start of the log's tail: 64 KiB before `log_end`, or the start of the last record's file.

    Args:
        log_end: physical offset after a record.
        log_file_bytes: size of every CommitLog file.
    """
    if log_end == 0:
        return 0
    file_start = (log_end - 1) // log_file_bytes * log_file_bytes
    return max(file_start, log_end - TAIL_BYTES)


def encode_current(generation: int) -> bytes:
    """Return the content of `current`: the number of the generation in use."""
    return json.dumps({"generation": generation}).encode() + b"\n"


def decode_current(text: bytes) -> int:
    """Return the generation number in `current`; raises GenerationError if it is not valid."""
    try:
        content = json.loads(text)
        if set(content) != {"generation"}:
            raise GenerationError(f"`current` has {sorted(content)}")
        generation = _number(content["generation"])
    except (ValueError, TypeError) as error:
        raise GenerationError(f"`current` is damaged: {error}") from error
    if generation == 0:
        raise GenerationError("`current` says generation 0")
    return generation


def generation_name(number: int) -> str:
    """Return the name of a generation's directory: twenty digits."""
    return offset_to_file_name(number)


def part_names(number: int) -> tuple[str, str]:
    """Return the names of a part's files: its records and its entries."""
    if not 0 <= number < PARTS_MAX:
        raise ValueError(f"there can be no part {number}")
    return f"{number:05d}.records", f"{number:05d}.entries"


def superseded_name(number: int) -> str:
    """Return the name of a part's file of superseded rows."""
    return f"{number:05d}.superseded"


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_NUMBERS = ("version", "generation", "replaces", "created_ms", "log_start", "log_end")
# Fields that version 2 added to the items of a list, with their values in version 1. The age of
# tombstones is unknown there, so that each one may have expired.
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "topics": {"oldest_tombstone_ms": 1},
    "parts": {"superseded": 0, "superseded_sha256": ""},
}


def _check_ascending(name: str, items: list[Any]) -> None:
    for early, late in pairwise(items):
        if late <= early:
            raise GenerationError(f"{name} out of order: {late} after {early}")


def _manifest(content: dict[str, Any]) -> Manifest:
    def queue(item: dict[str, Any]) -> CoveredQueue:
        return CoveredQueue(**_numbers(CoveredQueue, item))

    def topic(item: dict[str, Any]) -> GenerationTopic:
        _expect(GenerationTopic, item)
        return GenerationTopic(
            str(item["topic"]),
            _number(item["dropped_below"]),
            _each(queue, item["queues"]),
            _number(item["oldest_tombstone_ms"]),
        )

    def part(item: dict[str, Any]) -> GenerationPart:
        return GenerationPart(**_numbers(GenerationPart, item))

    _expect(Manifest, content)
    return Manifest(
        log_tail=LogTail(**_numbers(LogTail, content["log_tail"])),
        topics=_each(topic, content["topics"]),
        parts=_each(part, content["parts"]),
        **{name: _number(content[name]) for name in _NUMBERS},
    )


def _each(
    read: Callable[[dict[str, Any]], _Item], items: list[dict[str, Any]]
) -> tuple[_Item, ...]:
    return tuple(read(item) for item in items)


def _numbers(kind: type[Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a class in JSON: texts for `str` fields, numbers for all others."""
    _expect(kind, item)
    texts = {field.name for field in fields(kind) if field.type is str}
    return {name: str(value) if name in texts else _number(value) for name, value in item.items()}


def _expect(kind: type[Any], item: dict[str, Any]) -> None:
    names = {field.name for field in fields(kind)}
    if set(item) != names:
        raise GenerationError(f"{kind.__name__} has {sorted(item)}, not {sorted(names)}")


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise GenerationError(f"{value!r} is not a non-negative number")
    return value


@dataclass(slots=True)
class _Seen:
    """Records of a queue in the parts that were checked so far."""

    covered: CoveredQueue
    dropped_below: int
    records: int = 0
    behind: int = 0
    """The lowest offset that may follow."""


def check_order(manifest: Manifest, parts: Sequence[PartEntries]) -> None:
    """Compare a manifest with the entries of its parts. Does not check that keys are the newest.

    Args:
        manifest: manifest of the generation.
        parts: the entries of each part, in order.

    Raises:
        GenerationError: counts, sizes or bounds differ, or the offsets of a queue do not ascend
            from part to part; the text names the position.
    """
    if len(parts) != len(manifest.parts):
        raise GenerationError(f"{len(parts)} parts, and {len(manifest.parts)} by the manifest")
    seen = {
        (topic.topic, queue.queue): _Seen(queue, topic.dropped_below, behind=queue.covered_from)
        for topic in manifest.topics
        for queue in topic.queues
    }
    for part, entries in zip(manifest.parts, parts, strict=True):
        counted = (entries.records, len(entries), entries.records_bytes)
        if counted != (part.records, part.rows, part.records_bytes):
            raise GenerationError(
                f"part {part.number} keeps {counted[0]} of {counted[1]} records in {counted[2]} "
                f"bytes, and {part.records} of {part.rows} in {part.records_bytes} by the manifest"
            )
        physical = entries.physical_offsets
        if ((physical < part.log_start) | (physical >= part.log_end)).any():
            raise GenerationError(
                f"part {part.number}: a record from outside {part.log_start} to {part.log_end}"
            )
        _check_queues(part.number, entries, seen)
    for (topic, queue), each in seen.items():
        if each.records != each.covered.records:
            raise GenerationError(
                f"queue {queue} of {topic} has {each.records} records, and "
                f"{each.covered.records} by the manifest"
            )


def _check_queues(number: int, entries: PartEntries, seen: dict[tuple[str, int], _Seen]) -> None:
    for topic, queue, all_rows in entries.slices():
        rows = entries.kept_rows(all_rows)
        if not len(rows):
            continue
        place = f"part {number}: queue {queue} of {topic}"
        each = seen.get((topic, queue))
        if each is None:
            raise GenerationError(f"{place} is not in the manifest")
        first, last = (int(entries.queue_offsets[row]) for row in (rows[0], rows[-1]))
        if first < each.behind or last >= each.covered.covered_to:
            raise GenerationError(
                f"{place} from {first} to {last} is not between {each.behind} and "
                f"{each.covered.covered_to}"
            )
        if int(entries.physical_offsets[rows[0]]) < each.dropped_below:
            raise GenerationError(f"{place} has a record from before the topic was deleted")
        each.behind = last + 1
        each.records += len(rows)
