"""The steps of a run as functions from messages to messages, whoever carries them.

    look       a source      -> a survey, and rows of its keys for each bucket
    decide     a bucket      -> the places of what is left, by source
    address    places        -> places by part
    write      a part        -> what was written

A message says what it is, to which bucket or part it goes, and from which source it is. Whatever
goes wrong is a message too, so that a run ends with one sentence.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from rockoon_format.frames import IntArray
from rockoon_spark.compaction.copying import CopiedPart, PartPlan, PartWriter, copy_part
from rockoon_spark.compaction.key_hash import KeyHash
from rockoon_spark.compaction.newest import ROW_BYTES, KeyRows, in_buckets, newest
from rockoon_spark.compaction.sources import CompactionError, Source
from rockoon_spark.compaction.survey import Survey, survey


class Kind(IntEnum):
    """What a message is."""

    ROWS = 0
    """Rows of keys, see `newest.KeyRows`."""
    PLACES = 1
    """Physical offsets of records that are left, int64."""
    SURVEY = 2
    DECISION = 3
    COPIED = 4
    TROUBLE = 5
    """A sentence."""


class Message(NamedTuple):
    """What goes from step to step."""

    kind: int
    address: int
    source: int
    content: bytes


@dataclass(slots=True)
class Decision:
    """What is left, in numbers."""

    left: list[int]
    """Records of each source."""
    keys: int = 0
    dropped: int = 0
    """Tombstones whose time is over."""
    shuffle_bytes: int = 0
    seconds: float = 0.0
    """Of one processor."""

    def add(self, other: "Decision") -> None:
        """Take another bucket in."""
        self.left = [mine + theirs for mine, theirs in zip(self.left, other.left, strict=True)]
        self.keys += other.keys
        self.dropped += other.dropped
        self.shuffle_bytes += other.shuffle_bytes
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class Look:
    """Surveys sources.

    Args:
        sources: all of them; a task is the number of one.
        buckets: how many the keys are divided into.
        secret: the run's, see `KeyHash`.
        retention_ms: of each topic, how long a tombstone stays.
        now_ms: when the generation to be is made.
    """

    sources: Sequence[Source]
    buckets: int
    secret: bytes
    retention_ms: Mapping[str, int]
    now_ms: int

    def __call__(self, number: int) -> Iterator[Message]:
        address = number % self.buckets
        try:
            rows, found = survey(
                self.sources[number], KeyHash(self.secret), self.retention_ms, self.now_ms
            )
        except CompactionError as error:
            yield Message(
                Kind.TROUBLE, address, number, str(error).encode(errors="backslashreplace")
            )
            return
        yield Message(Kind.SURVEY, address, number, _json(found.to_json()))
        for bucket, own in in_buckets(rows, self.buckets):
            yield Message(Kind.ROWS, bucket, number, own.encode())


@dataclass(frozen=True, slots=True)
class Decide:
    """Finds the newest record of each key of a bucket.

    Args:
        sources: how many there are.
    """

    sources: int

    def __call__(self, messages: Iterable[Message]) -> Iterator[Message]:
        began = time.process_time()
        rows: list[KeyRows] = []
        numbers: list[int] = []
        for message in messages:
            if message.kind != Kind.ROWS:
                yield message
                continue
            rows.append(KeyRows.decode(message.content))
            numbers.append(message.source)
        together = KeyRows.joined(rows)
        of_source = np.repeat(np.array(numbers, np.int64), [len(each) for each in rows])
        chosen = newest(together)
        keys = len(chosen)
        # Only now: a tombstone whose time is over still supersedes what is older than it.
        chosen = chosen[~together.leave_nothing[chosen]]
        places, which = together.physical_offsets[chosen], of_source[chosen]
        order = np.lexsort((places, which))
        places, which = places[order], which[order]
        bounds = np.searchsorted(which, np.arange(self.sources + 1))
        for source in np.unique(which).tolist():
            yield _places(0, source, places[bounds[source] : bounds[source + 1]])
        decision = Decision(
            left=np.diff(bounds).tolist(),
            keys=keys,
            dropped=keys - len(chosen),
            shuffle_bytes=len(together) * ROW_BYTES,
            seconds=time.process_time() - began,
        )
        content = {name: getattr(decision, name) for name in Decision.__slots__}
        yield Message(Kind.DECISION, 0, 0, _json(content))


@dataclass(frozen=True, slots=True)
class Address:
    """Tells places which part they go into.

    Args:
        plans: the parts, ascending.
    """

    plans: Sequence[PartPlan]

    def __call__(self, messages: Iterable[Message]) -> Iterator[Message]:
        starts = np.array([plan.log_start for plan in self.plans], np.int64)
        for message in messages:
            places = np.frombuffer(message.content, "<i8")
            parts = np.searchsorted(starts, places, "right") - 1
            for part in np.unique(parts).tolist():
                yield _places(part, message.source, places[parts == part])


@dataclass(frozen=True, slots=True)
class Write:
    """Writes parts.

    Args:
        plans: the parts, ascending.
        sources: where the records are.
        writer: where the files go.
    """

    plans: Sequence[PartPlan]
    sources: Sequence[Source]
    writer: PartWriter

    def __call__(self, messages: Iterable[Message]) -> Iterator[Message]:
        for part, own in _by_part(messages).items():
            try:
                chosen = [(self.sources[number], places) for number, places in own]
                copied = copy_part(self.plans[part], chosen, self.writer)
            except CompactionError as error:
                yield Message(Kind.TROUBLE, part, 0, str(error).encode(errors="backslashreplace"))
            else:
                yield Message(Kind.COPIED, part, 0, _json(copied.to_json()))


@dataclass(slots=True)
class Decided:
    """All answers of `look` and `decide` that are no places."""

    surveys: list[Survey]
    decision: Decision = field(default_factory=lambda: Decision([]))

    @classmethod
    def of(cls, messages: Iterable[Message], sources: int) -> "Decided":
        """Read the answers; CompactionError if something went wrong."""
        found = cls([Survey() for _ in range(sources)], Decision([0] * sources))
        for message in _without_trouble(messages):
            content = json.loads(message.content)
            if message.kind == Kind.SURVEY:
                found.surveys[message.source] = Survey.from_json(content)
            else:
                found.decision.add(Decision(**content))
        return found


def copied_parts(messages: Iterable[Message]) -> list[CopiedPart]:
    """Read the answers of `write`, in the parts' order; CompactionError if something went wrong."""
    ordered = sorted(_without_trouble(messages), key=lambda message: message.address)
    return [CopiedPart.from_json(json.loads(message.content)) for message in ordered]


def _without_trouble(messages: Iterable[Message]) -> list[Message]:
    ordered = sorted(messages, key=lambda message: (message.source, message.address))
    for message in ordered:
        if message.kind == Kind.TROUBLE:
            raise CompactionError(message.content.decode())
    return ordered


def _by_part(messages: Iterable[Message]) -> dict[int, list[tuple[int, IntArray]]]:
    """Places by part, and in it by source, ascending."""
    found: dict[int, dict[int, list[IntArray]]] = {}
    for message in messages:
        of_source = found.setdefault(message.address, {}).setdefault(message.source, [])
        of_source.append(np.frombuffer(message.content, "<i8"))
    return {
        part: [(source, np.sort(np.concatenate(own[source]))) for source in sorted(own)]
        for part, own in found.items()
    }


def _places(address: int, source: int, places: IntArray) -> Message:
    return Message(Kind.PLACES, address, source, places.astype("<i8").tobytes())


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
