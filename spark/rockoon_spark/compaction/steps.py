"""The steps of a run, as functions from messages to messages. `exchange` transports the messages.

    SurveySource     a source    -> a survey, and rows of its keys for each bucket
    SelectNewest     a bucket    -> positions of the kept records, by source
    AssignParts      positions   -> positions by part
    WriteParts       a part      -> a description of the written part

A message has a kind, the number of its bucket or part, and the number of its source. A failure is
a message too, so that a run ends with one sentence.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from rockoon_format.frames import IntArray
from rockoon_spark.compaction.newest import ROW_BYTES, KeyHash, KeyRows, in_buckets, newest
from rockoon_spark.compaction.plan import (
    CopiedPart,
    PartPlan,
    PartWriter,
    copy_part,
    link_part,
)
from rockoon_spark.compaction.sources import CompactionError, FormerSource, Source
from rockoon_spark.compaction.survey import Survey, survey


class MessageKind(IntEnum):
    ROWS = 0
    """The message has rows of keys, see `newest.KeyRows`."""
    POSITIONS = 1
    """The message has the physical offsets of kept records, int64."""
    SURVEY = 2
    COUNTS = 3
    COPIED = 4
    FAILURE = 5
    """The message has the text of a task's error."""


class KeyedMessage(NamedTuple):
    """A message between tasks: a row that Spark transports from step to step."""

    kind: int
    address: int
    """Number of the bucket or part to which the message is sent."""
    source: int
    content: bytes


@dataclass(slots=True)
class KeptCounts:
    """Numbers of kept and dropped records of one or more buckets."""

    left: list[int]
    """Number of kept records of each source."""
    keys: int = 0
    dropped: int = 0
    """Number of expired tombstones."""
    tombstones: int = 0
    """Number of kept tombstones."""
    shuffle_bytes: int = 0
    seconds: float = 0.0
    """CPU time of the tasks."""

    def add(self, other: "KeptCounts") -> None:
        """Add the numbers of another bucket."""
        self.left = [mine + theirs for mine, theirs in zip(self.left, other.left, strict=True)]
        self.keys += other.keys
        self.dropped += other.dropped
        self.tombstones += other.tombstones
        self.shuffle_bytes += other.shuffle_bytes
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class SurveySource:
    """Step that surveys one source: counts its records and finds the newest of each key. The task
    number is the source's index.

    Args:
        sources: all sources.
        buckets: number of buckets that the keys are divided into.
        secret: secret of the run, see `KeyHash`.
        retention_ms: retention of tombstones per topic.
        now_ms: creation time of the new generation.
    """

    sources: Sequence[Source]
    buckets: int
    secret: bytes
    retention_ms: Mapping[str, int]
    now_ms: int

    def __call__(self, number: int) -> Iterator[KeyedMessage]:
        address = number % self.buckets
        try:
            rows, found = survey(
                self.sources[number], KeyHash(self.secret), self.retention_ms, self.now_ms
            )
        except CompactionError as error:
            yield _failure(address, number, error)
            return
        yield KeyedMessage(MessageKind.SURVEY, address, number, _json(found.to_json()))
        for bucket, own in in_buckets(rows, self.buckets):
            yield KeyedMessage(MessageKind.ROWS, bucket, number, own.encode())


@dataclass(frozen=True, slots=True)
class SelectNewest:
    """Step that finds the newest record of each key of a bucket.

    Args:
        sources: number of sources.
    """

    sources: int

    def __call__(self, messages: Iterable[KeyedMessage]) -> Iterator[KeyedMessage]:
        began = time.process_time()
        rows: list[KeyRows] = []
        numbers: list[int] = []
        for message in messages:
            if message.kind != MessageKind.ROWS:
                yield message
                continue
            rows.append(KeyRows.decode(message.content))
            numbers.append(message.source)
        together = KeyRows.joined(rows)
        of_source = np.repeat(np.array(numbers, np.int64), [len(each) for each in rows])
        chosen = newest(together)
        keys = len(chosen)
        # Dropped after the selection, because an expired tombstone still supersedes older records.
        chosen = chosen[~together.are_expired[chosen]]
        positions, which = together.physical_offsets[chosen], of_source[chosen]
        order = np.lexsort((positions, which))
        positions, which = positions[order], which[order]
        bounds = np.searchsorted(which, np.arange(self.sources + 1))
        for source in np.unique(which).tolist():
            yield _positions(0, source, positions[bounds[source] : bounds[source + 1]])
        counts = KeptCounts(
            left=np.diff(bounds).tolist(),
            keys=keys,
            dropped=keys - len(chosen),
            tombstones=int(together.are_tombstones[chosen].sum()),
            shuffle_bytes=len(together) * ROW_BYTES,
            seconds=time.process_time() - began,
        )
        content = {name: getattr(counts, name) for name in KeptCounts.__slots__}
        yield KeyedMessage(MessageKind.COUNTS, 0, 0, _json(content))


@dataclass(frozen=True, slots=True)
class AssignParts:
    """Step that assigns kept records to the parts of the new generation.

    Args:
        plans: the parts, ascending.
    """

    plans: Sequence[PartPlan]

    def __call__(self, messages: Iterable[KeyedMessage]) -> Iterator[KeyedMessage]:
        starts = np.array([plan.log_start for plan in self.plans], np.int64)
        for message in messages:
            positions = np.frombuffer(message.content, "<i8")
            parts = np.searchsorted(starts, positions, "right") - 1
            for part in np.unique(parts).tolist():
                yield _positions(part, message.source, positions[parts == part])


@dataclass(frozen=True, slots=True)
class WriteParts:
    """Step that writes the parts of the new generation.

    Args:
        plans: the parts, ascending.
        sources: all sources.
        writer: writes the files.
    """

    plans: Sequence[PartPlan]
    sources: Sequence[Source]
    writer: PartWriter

    def __call__(self, messages: Iterable[KeyedMessage]) -> Iterator[KeyedMessage]:
        for part, own in _by_part(messages).items():
            try:
                chosen = [(self.sources[number], positions) for number, positions in own]
                copied = _written(self.plans[part], chosen, self.writer)
            except CompactionError as error:
                yield _failure(part, 0, error)
            else:
                yield KeyedMessage(MessageKind.COPIED, part, 0, _json(copied.to_json()))


def _written(
    plan: PartPlan, chosen: Sequence[tuple[Source, IntArray]], writer: PartWriter
) -> CopiedPart:
    [(source, positions), *others] = chosen
    if plan.linked and isinstance(source, FormerSource) and not others:
        return link_part(plan, source.part, positions, writer)
    return copy_part(plan, chosen, writer)


@dataclass(slots=True)
class SelectionResult:
    """Surveys and counts of all sources and buckets, collected by the driver."""

    surveys: list[Survey]
    counts: KeptCounts = field(default_factory=lambda: KeptCounts([]))

    @classmethod
    def of(cls, messages: Iterable[KeyedMessage], sources: int) -> "SelectionResult":
        """Decode the messages of the surveys and counts; raise CompactionError if one is a
        failure.
        """
        found = cls([Survey() for _ in range(sources)], KeptCounts([0] * sources))
        for message in _without_failure(messages):
            content = json.loads(message.content)
            if message.kind == MessageKind.SURVEY:
                found.surveys[message.source] = Survey.from_json(content)
            else:
                found.counts.add(KeptCounts(**content))
        return found


def copied_parts(messages: Iterable[KeyedMessage]) -> list[CopiedPart]:
    """Decode the messages of `WriteParts`, sorted; raise CompactionError if one is a failure."""
    ordered = sorted(_without_failure(messages), key=lambda message: message.address)
    return [CopiedPart.from_json(json.loads(message.content)) for message in ordered]


def _without_failure(messages: Iterable[KeyedMessage]) -> list[KeyedMessage]:
    ordered = sorted(messages, key=lambda message: (message.source, message.address))
    for message in ordered:
        if message.kind == MessageKind.FAILURE:
            raise CompactionError(message.content.decode())
    return ordered


def _by_part(messages: Iterable[KeyedMessage]) -> dict[int, list[tuple[int, IntArray]]]:
    """Group positions by part, and within a part by source, ascending."""
    found: dict[int, dict[int, list[IntArray]]] = {}
    for message in messages:
        of_source = found.setdefault(message.address, {}).setdefault(message.source, [])
        of_source.append(np.frombuffer(message.content, "<i8"))
    return {
        part: [(source, np.sort(np.concatenate(own[source]))) for source in sorted(own)]
        for part, own in found.items()
    }


def _positions(address: int, source: int, positions: IntArray) -> KeyedMessage:
    return KeyedMessage(MessageKind.POSITIONS, address, source, positions.astype("<i8").tobytes())


def _failure(address: int, source: int, error: CompactionError) -> KeyedMessage:
    content = str(error).encode(errors="backslashreplace")
    return KeyedMessage(MessageKind.FAILURE, address, source, content)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
