"""Generations: the records that compaction kept, in an immutable directory beside the log.

    <store>/compacted/
      current                     {"generation": 7}, the one in use
      00000000000000000007/
        manifest.json             generation_manifest.py: its queues and offsets, checksums of files
        00000.records             generation_parts.py: CommitLog records, byte for byte
        00000.entries             generation_entries.py: position of each record
      .incoming-<id>/             incomplete, being written; ignored by readers

The offset of a record is at least `covered_from` and below `covered_to` of its queue; its physical
offset is below `log_end`. A generation may have no parts, and topics without a record, if
compaction kept nothing of them. Docs: adr/0018.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_format.generation_entries import (
    PART_BYTES_MAX,
    EntriesLayout,
    GenerationError,
    PartEntries,
)
from rockoon_format.generation_manifest import (
    PARTS_MAX,
    TAIL_BYTES,
    CoveredQueue,
    GenerationPart,
    GenerationTopic,
    LogTail,
    Manifest,
    decode_current,
    encode_current,
    generation_name,
    part_names,
    tail_start,
)
from rockoon_format.generation_parts import check_part, part_checks, part_entries

__all__ = [
    "CURRENT_FILE",
    "GENERATIONS_DIRECTORY",
    "INCOMING_PREFIX",
    "MANIFEST_FILE",
    "PARTS_MAX",
    "PART_BYTES_MAX",
    "TAIL_BYTES",
    "CoveredQueue",
    "EntriesLayout",
    "GenerationError",
    "GenerationPart",
    "GenerationTopic",
    "LogTail",
    "Manifest",
    "PartEntries",
    "check_order",
    "check_part",
    "decode_current",
    "encode_current",
    "generation_name",
    "part_checks",
    "part_entries",
    "part_names",
    "tail_start",
]

GENERATIONS_DIRECTORY = "compacted"
CURRENT_FILE = "current"
MANIFEST_FILE = "manifest.json"
INCOMING_PREFIX = ".incoming-"


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
        manifest: of the generation.
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
        if (len(entries), entries.records_bytes) != (part.records, part.records_bytes):
            raise GenerationError(
                f"part {part.number} has {len(entries)} records in {entries.records_bytes} bytes, "
                f"and {part.records} in {part.records_bytes} by the manifest"
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
    for topic, queue, rows in entries.slices():
        place = f"part {number}: queue {queue} of {topic}"
        each = seen.get((topic, queue))
        if each is None:
            raise GenerationError(f"{place} is not in the manifest")
        first, last = (int(entries.queue_offsets[row]) for row in (rows.start, rows.stop - 1))
        if first < each.behind or last >= each.covered.covered_to:
            raise GenerationError(
                f"{place} from {first} to {last} is not between {each.behind} and "
                f"{each.covered.covered_to}"
            )
        if int(entries.physical_offsets[rows.start]) < each.dropped_below:
            raise GenerationError(f"{place} has a record from before the topic was deleted")
        each.behind = last + 1
        each.records += rows.stop - rows.start
