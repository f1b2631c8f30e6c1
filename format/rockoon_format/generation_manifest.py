"""Manifest of a generation: `manifest.json`, under a checksum of its own.

    {"manifest": {"version": 1, "generation": 7, "replaces": 6, ...}, "sha256": "..."}

The checksum is of the manifest's canonical text: keys sorted, no spaces.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, TypeVar

from rockoon_format.file_names import OFFSET_MAX, offset_to_file_name
from rockoon_format.generation_entries import PART_BYTES_MAX, GenerationError
from rockoon_format.names import topic_fault

TAIL_BYTES = 65_536
PARTS_MAX = 100_000
"""Five digits name a part."""

_VERSION = 1
_SHA256_DIGITS = 64

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class CoveredQueue:
    """Of one queue, the offsets that a generation answers for."""

    queue: int
    covered_from: int
    """The queue's first offset: below it, messages were deleted."""
    covered_to: int
    """Behind the last one; the log has this one and what follows."""
    records: int
    """How many are left of them."""


@dataclass(frozen=True, slots=True)
class GenerationTopic:
    """A topic that was compacted, with or without anything left."""

    topic: str
    dropped_below: int
    """Its records below this physical offset went with a deletion of the topic; 0 if none did."""
    queues: tuple[CoveredQueue, ...]
    """By queue id."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """By what a log is known: the bytes right before `log_end`, padding of its file included."""

    start: int
    """Physical offset of the first of them: see `tail_start`."""
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class GenerationPart:
    """One pair of files, and the stretch of the log whose records are in them."""

    number: int
    log_start: int
    log_end: int
    """Physical offsets between which all its records start."""
    records: int
    records_bytes: int
    records_sha256: str
    entries_bytes: int
    entries_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole generation. Times are epoch milliseconds; offsets are those of the CommitLog."""

    generation: int
    """From 1 on."""
    replaces: int
    """The generation from which it was made; 0 for none."""
    created_ms: int
    log_start: int
    """Where the log began when it was read."""
    log_end: int
    """A record's boundary: what starts below is in here or superseded, if of these topics."""
    log_tail: LogTail
    topics: tuple[GenerationTopic, ...]
    """By name, in byte order."""
    parts: tuple[GenerationPart, ...]
    """By number, from 0 on, and so in the order of the log."""

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def records_bytes(self) -> int:
        return sum(part.records_bytes for part in self.parts)

    def topic(self, name: str) -> GenerationTopic | None:
        return next((topic for topic in self.topics if topic.topic == name), None)

    def to_json(self) -> bytes:
        """The file's content; GenerationError if this contradicts itself."""
        self.check()
        content = {"version": _VERSION, **asdict(self)}
        text = {"manifest": content, "sha256": _checksum(content)}
        return json.dumps(text, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Read the file's content.

        Raises:
            GenerationError: no manifest, a damaged one, another version, or one that contradicts
                itself.
        """
        try:
            whole = json.loads(text)
            content = whole["manifest"]
            if whole["sha256"] != _checksum(content):
                raise GenerationError("the manifest does not have its checksum")
            version = content.pop("version")
            if version != _VERSION:
                raise GenerationError(f"a manifest of version {version}; {_VERSION} is known")
            manifest = _manifest(content)
        except GenerationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            # Not its repr: where the text cannot be decoded, that has all of it.
            raise GenerationError(f"no manifest: {type(error).__name__}: {error}") from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise GenerationError where the manifest contradicts itself."""
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
            raise GenerationError(f"{topic.topic} was dropped behind {self.log_end}")
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
                raise GenerationError(f"part {part.number} in place {number}")
            if not at <= part.log_start <= part.log_end <= self.log_end:
                raise GenerationError(
                    f"part {number} from {part.log_start} to {part.log_end} does not lie between "
                    f"{at} and {self.log_end}"
                )
            at = part.log_end
            if part.records_bytes > PART_BYTES_MAX:
                raise GenerationError(f"part {number} of {part.records_bytes} bytes")
            for digits in (part.records_sha256, part.entries_sha256):
                if len(digits) != _SHA256_DIGITS or not set(digits) <= set("0123456789abcdef"):
                    raise GenerationError(f"part {number}: {digits!r} is no checksum")


def tail_start(log_end: int, log_file_bytes: int) -> int:
    """Where the log's tail begins: 64 KiB before `log_end`, or with the file that holds the last.

    Args:
        log_end: physical offset behind a record.
        log_file_bytes: size of every CommitLog file.
    """
    if log_end == 0:
        return 0
    file_start = (log_end - 1) // log_file_bytes * log_file_bytes
    return max(file_start, log_end - TAIL_BYTES)


def encode_current(generation: int) -> bytes:
    """The content of `current`: which generation is in force."""
    return json.dumps({"generation": generation}).encode() + b"\n"


def decode_current(text: bytes) -> int:
    """The generation in force, by the content of `current`; GenerationError if it is none."""
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
    """The name of a generation's directory: twenty digits."""
    return offset_to_file_name(number)


def part_names(number: int) -> tuple[str, str]:
    """The names of a part's files: its records and its entries."""
    if not 0 <= number < PARTS_MAX:
        raise ValueError(f"there can be no part {number}")
    return f"{number:05d}.records", f"{number:05d}.entries"


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_ascending(what: str, items: list[Any]) -> None:
    for early, late in pairwise(items):
        if late <= early:
            raise GenerationError(f"{what} out of order: {late} behind {early}")


def _manifest(content: dict[str, Any]) -> Manifest:
    def queue(item: dict[str, Any]) -> CoveredQueue:
        return CoveredQueue(**_numbers(CoveredQueue, item))

    def topic(item: dict[str, Any]) -> GenerationTopic:
        _expect(GenerationTopic, item)
        return GenerationTopic(
            str(item["topic"]), _number(item["dropped_below"]), _each(queue, item["queues"])
        )

    def part(item: dict[str, Any]) -> GenerationPart:
        return GenerationPart(**_numbers(GenerationPart, item))

    _expect(Manifest, content)
    return Manifest(
        log_tail=LogTail(**_numbers(LogTail, content["log_tail"])),
        topics=_each(topic, content["topics"]),
        parts=_each(part, content["parts"]),
        **{
            name: _number(content[name])
            for name in ("generation", "replaces", "created_ms", "log_start", "log_end")
        },
    )


def _each(
    read: Callable[[dict[str, Any]], _Item], items: list[dict[str, Any]]
) -> tuple[_Item, ...]:
    return tuple(read(item) for item in items)


def _numbers(kind: type[Any], item: dict[str, Any]) -> dict[str, Any]:
    """The fields of a class as JSON has them: texts stay, everything else is a number."""
    _expect(kind, item)
    texts = {field.name for field in fields(kind) if field.type is str}
    return {name: str(value) if name in texts else _number(value) for name, value in item.items()}


def _expect(kind: type[Any], item: dict[str, Any]) -> None:
    names = {field.name for field in fields(kind)}
    if set(item) != names:
        raise GenerationError(f"{kind.__name__} has {sorted(item)}, not {sorted(names)}")


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise GenerationError(f"{value!r} is no number from 0 on")
    return value
