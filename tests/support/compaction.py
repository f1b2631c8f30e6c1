"""Compaction in plain Python, record by record: the reference for all other implementations."""

import contextlib
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rockoon_format.config_json import read_topics
from rockoon_format.generation import (
    CURRENT_FILE,
    GENERATIONS_DIRECTORY,
    INCOMING_PREFIX,
    MANIFEST_FILE,
    CoveredQueue,
    GenerationPart,
    GenerationTopic,
    LogTail,
    Manifest,
    PartEntries,
    decode_current,
    encode_superseded,
    generation_name,
    part_entries,
    part_names,
    superseded_name,
    tail_start,
)
from rockoon_format.properties import decode
from rockoon_format.record import Record, RecordError, RecordFault, decode_record, record_size

DAY_MS = 86_400_000
RECORDS_PER_PART = 50


@dataclass(frozen=True)
class Stored:
    """A record with the fields that compaction needs."""

    record: Record
    frame: bytes
    kept_since_ms: int | None
    """Creation time of the first generation that contained the record; None if none did."""

    @property
    def topic(self) -> str:
        return self.record.topic.decode()

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.record.queue_id

    @property
    def key(self) -> str | None:
        return decode(self.record.properties).get("KEYS")


def compact_store(
    root: Path,
    *,
    topics: Mapping[str, int] | None = None,
    now_ms: int = 1_700_000_100_000,
    log_end: int | None = None,
    records_per_part: int = RECORDS_PER_PART,
    links: bool = False,
    name: str | None = None,
) -> Path:
    """Make the next generation of a store directory where the broker looks for it.

    Args:
        root: the store directory; a broker may be using it.
        topics: milliseconds for which tombstones are kept, by compacted topic; None: those of
            `config/topics.json` if None.
        now_ms: creation time of the generation, epoch milliseconds.
        log_end: physical offset after the last record to read; None: the log's end.
        records_per_part: number of records after which a new part begins.
        links: link the files of parts that have remaining records, instead of writing them again.
        name: name of the directory; None: the generation's number, by which the broker finds it.

    Returns:
        The generation's directory.
    """
    if topics is None:
        topics = compacted_topics(root)
    home = root / GENERATIONS_DIRECTORY
    old = in_force(root)
    records = list(log_records(root))
    if log_end is not None:
        records = [each for each in records if each.record.physical_offset < log_end]
    end = log_end if log_end is not None else _end(records[-1]) if records else 0
    marks = dropped_marks(root)
    former = {
        topic.topic: topic
        for topic in (old.topics if old else ())
        # A mark that retention has passed is removed; a later deletion has a higher one.
        if topic.topic in topics and marks.get(topic.topic, 0) <= topic.dropped_below
    }
    seen = [
        each
        for each in [*generation_records(root), *records]
        if each.topic in topics
        and each.record.has_queue_entry
        and each.record.physical_offset >= marks.get(each.topic, 0)
        and not (
            each.kept_since_ms is None
            and each.topic in former
            and old is not None
            and each.record.physical_offset < old.log_end
        )
        and not (each.kept_since_ms is not None and each.topic not in former)
    ]
    left = survivors(seen, topics, now_ms)
    number = old.generation + 1 if old else 1
    staging = home / f"{INCOMING_PREFIX}{uuid.uuid4().hex}"
    staging.mkdir(parents=True)
    parts, others = _linked_parts(home, staging, old, left) if links and old else ([], left)
    parts += [
        _write_part(staging, index, others[at : at + records_per_part], now_ms)
        for index, at in enumerate(range(0, len(others), records_per_part), len(parts))
    ]
    manifest = Manifest(
        generation=number,
        replaces=old.generation if old else 0,
        created_ms=now_ms,
        log_start=log_starts(root)[0] if log_starts(root) else 0,
        log_end=end,
        log_tail=log_tail(root, end),
        topics=tuple(
            GenerationTopic(
                topic,
                former[topic].dropped_below if topic in former else marks.get(topic, 0),
                _covered(topic, former.get(topic), seen, left),
                _oldest_tombstone_ms(topic, left, now_ms),
            )
            for topic in sorted(topics, key=str.encode)
        ),
        parts=tuple(parts),
    )
    (staging / MANIFEST_FILE).write_bytes(manifest.to_json())
    target = home / (name or generation_name(number))
    staging.rename(target)
    return target


def _oldest_tombstone_ms(topic: str, left: list[Stored], now_ms: int) -> int:
    kept_ms = [
        now_ms if each.kept_since_ms is None else each.kept_since_ms
        for each in left
        if each.topic == topic and each.key is not None and not each.record.body
    ]
    return min(kept_ms, default=0)


def survivors(seen: list[Stored], topics: Mapping[str, int], now_ms: int) -> list[Stored]:
    """Return the records that compaction keeps, in the order of the log."""
    newest: dict[tuple[str, str], Stored] = {}
    keyless = []
    for each in seen:
        if each.key is None:
            keyless.append(each)
        elif (each.topic, each.key) not in newest or newest[
            each.topic, each.key
        ].record.physical_offset < each.record.physical_offset:
            newest[each.topic, each.key] = each
    left = [
        each
        for each in newest.values()
        if each.record.body
        or each.kept_since_ms is None
        or now_ms - each.kept_since_ms < topics[each.topic]
    ]
    return sorted(left + keyless, key=lambda each: each.record.physical_offset)


def compacted_topics(root: Path) -> dict[str, int]:
    """Return the compacted topics of `config/topics.json`, with the milliseconds for which their
    tombstones are kept."""
    path = root / "config" / "topics.json"
    if not path.exists():
        return {}
    return {
        name: int(topic.attributes.get("delete.retention.ms", DAY_MS))
        for name, topic in read_topics(path.read_bytes()).topics.items()
        if topic.attributes.get("cleanup.policy") == "COMPACTION"
    }


def dropped_marks(root: Path) -> dict[str, int]:
    """Return, by topic, the physical offset before which its records do not count: the topic was
    deleted, or retention has passed them."""
    path = root / "config" / "droppedTopics.json"
    content = json.loads(path.read_bytes()) if path.exists() else {"marks": {}}
    marks: dict[str, int] = content["marks"]
    for topic, mark in content.get("overtaken", {}).items():
        marks[topic] = max(mark, marks.get(topic, 0))
    return marks


def in_force(root: Path) -> Manifest | None:
    """Return the manifest of the generation in use."""
    current = root / GENERATIONS_DIRECTORY / CURRENT_FILE
    if not current.exists():
        return None
    directory = root / GENERATIONS_DIRECTORY / generation_name(decode_current(current.read_bytes()))
    return Manifest.from_json((directory / MANIFEST_FILE).read_bytes())


def generation_records(root: Path) -> Iterator[Stored]:
    """Yield all records of the generation in use."""
    manifest = in_force(root)
    if manifest is None:
        return
    directory = root / GENERATIONS_DIRECTORY / generation_name(manifest.generation)
    for part in manifest.parts:
        frames, entries, *superseded = ((directory / each.name).read_bytes() for each in part.files)
        found = PartEntries.decode(entries)
        if superseded:
            found = found.with_superseded(superseded[0])
        rows = found.kept_rows()
        for position, kept in zip(
            found.positions[rows].tolist(), found.kept_since_ms[rows], strict=True
        ):
            size = record_size(frames, position)
            frame = frames[position : position + size]
            yield Stored(decode_record(frame), frame, int(kept))


def log_records(root: Path) -> Iterator[Stored]:
    """Yield all records of the log, in its order."""
    for start in log_starts(root):
        try:
            data = (root / "commitlog" / f"{start:020d}").read_bytes()
        except FileNotFoundError:
            # A running broker deletes its oldest files when a generation covers them.
            continue
        at = 0
        while at < len(data):
            try:
                record = decode_record(data, at)
            except RecordError as error:
                if error.reason is RecordFault.BLANK:
                    break
                return
            size = record_size(data, at)
            assert record.physical_offset == start + at
            yield Stored(record, data[at : at + size], None)
            at += size


def log_starts(root: Path) -> list[int]:
    directory = root / "commitlog"
    return sorted(int(name) for name in os.listdir(directory)) if directory.is_dir() else []


def log_tail(root: Path, log_end: int) -> LogTail:
    """Return the values that identify the log up to an offset."""
    starts = log_starts(root)
    if log_end == 0:
        return LogTail(0, 0, 0)
    # A running broker may delete the first files, and reserve the last file, which is then empty.
    sizes = [0]
    for first in starts:
        with contextlib.suppress(FileNotFoundError):
            sizes.append((root / "commitlog" / f"{first:020d}").stat().st_size)
    size = max(sizes)
    start = tail_start(log_end, size)
    file = start // size * size
    data = (root / "commitlog" / f"{file:020d}").read_bytes()[start - file : log_end - file]
    return LogTail(start, len(data), zlib.crc32(data))


def _end(stored: Stored) -> int:
    return stored.record.physical_offset + len(stored.frame)


def _linked_parts(
    home: Path, staging: Path, old: Manifest, left: list[Stored]
) -> tuple[list[GenerationPart], list[Stored]]:
    """Link the files of the old parts; return the parts, and the records that are in none."""
    others = [each for each in left if each.kept_since_ms is None]
    if old.parts and any(each.record.physical_offset < old.parts[-1].log_end for each in others):
        # The topic is compacted since then: its records belong between those of the parts.
        return [], left
    kept = [each.record.physical_offset for each in left if each.kept_since_ms is not None]
    former = home / generation_name(old.generation)
    parts: list[GenerationPart] = []
    for part in old.parts:
        names, new_names = part_names(part.number), part_names(len(parts))
        entries = PartEntries.decode((former / names[1]).read_bytes())
        superseded = ~np.isin(entries.physical_offsets, kept)
        if superseded.all():
            continue
        for name, new_name in zip(names, new_names, strict=True):
            (staging / new_name).hardlink_to(former / name)
        count, encoded = int(superseded.sum()), encode_superseded(superseded)
        if count:
            (staging / superseded_name(len(parts))).write_bytes(encoded)
        parts.append(
            replace(
                part,
                number=len(parts),
                records=len(entries) - count,
                superseded=count,
                superseded_sha256=hashlib.sha256(encoded).hexdigest() if count else "",
            )
        )
    return parts, others


def _write_part(directory: Path, number: int, stored: list[Stored], now_ms: int) -> GenerationPart:
    physical = [each.record.physical_offset for each in stored]
    ordered = sorted(
        stored,
        key=lambda each: (each.record.topic, each.record.queue_id, each.record.queue_offset),
    )
    frames = b"".join(each.frame for each in ordered)
    kept = [now_ms if each.kept_since_ms is None else each.kept_since_ms for each in ordered]
    entries = part_entries(frames, kept).encode()
    for name, content in zip(part_names(number), (frames, entries), strict=True):
        (directory / name).write_bytes(content)
    return GenerationPart(
        number=number,
        log_start=min(physical),
        log_end=max(physical) + 1,
        records=len(ordered),
        records_bytes=len(frames),
        records_sha256=hashlib.sha256(frames).hexdigest(),
        entries_bytes=len(entries),
        entries_sha256=hashlib.sha256(entries).hexdigest(),
    )


def _covered(
    topic: str, former: GenerationTopic | None, seen: list[Stored], left: list[Stored]
) -> tuple[CoveredQueue, ...]:
    """Return the covered range of each queue: the former range and the records after it."""
    before = {queue.queue: queue for queue in (former.queues if former else ())}
    of_queue: dict[int, list[int]] = {}
    for each in seen:
        if each.topic == topic:
            of_queue.setdefault(each.record.queue_id, []).append(each.record.queue_offset)
    found = []
    for queue in sorted({*before, *of_queue}):
        offsets = of_queue.get(queue, [])
        old = before.get(queue)
        found.append(
            CoveredQueue(
                queue=queue,
                covered_from=old.covered_from if old else min(offsets),
                covered_to=max([old.covered_to if old else 0, *(each + 1 for each in offsets)]),
                records=sum(each.queue == (topic, queue) for each in left),
            )
        )
    return tuple(found)
