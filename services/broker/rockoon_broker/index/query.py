"""Queries of messages by key: reads the candidates of the index, and compares their keys.

In a compacted topic, the range that the last compaction covers is searched in the active generation
only, even if the log still has other messages. The index is searched only after this range.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from rockoon_broker import cold_reads
from rockoon_broker.clock import Clock
from rockoon_broker.cooperative import in_turns
from rockoon_broker.index.follower import IndexFollower
from rockoon_broker.index.key_index import CANDIDATES_MAX, KeyIndex, KeySearch
from rockoon_broker.store.errors import UnknownOffset
from rockoon_broker.store.log.time_runs import TimeRuns
from rockoon_broker.store.store import Store
from rockoon_format.hashes import index_key_hash
from rockoon_format.properties import (
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    find_value,
    split_keys,
)
from rockoon_format.record import Record, decode_record

MESSAGES_DEFAULT = 32
MESSAGES_MAX = 1024
BYTES_MAX = 16 << 20
# How long a query waits for the index to reach the log's end.
CATCH_UP_SECONDS_MAX = 2.0
END_OF_TIME_MS = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A validated query."""

    topic: str
    key: str
    unique: bool
    """True if `key` is a message's unique id, False if it is one of the message's keys."""
    begin_ms: int
    """First store time of the range, epoch milliseconds; the range is inclusive."""
    end_ms: int
    messages_max: int


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    frames: list[bytes]
    """Records of the found messages, newest first."""
    not_searched_because: str
    """Why the result may be incomplete; empty if it is complete."""
    indexed_until_ms: int


async def answer(
    query: KeyQuery, store: Store, follower: IndexFollower | None, clock: Clock
) -> KeyAnswer:
    """Find messages by key; before, wait a short time until the index reaches the log's end.

    Args:
        follower: the index; None: only compacted messages are found.
        clock: limits how long the query blocks the event loop.

    Raises:
        OSError: the disk.
    """
    log_end = store.visible_end
    if follower is not None:
        log_end = await follower.wait_caught_up(CATCH_UP_SECONDS_MAX)
    key_hash = index_key_hash(f"{query.topic}#{query.key}")
    # No await from here to the start of the search, so that both use the same generation.
    compacted_end = store.compaction.covered_end(query.topic)
    compacted = store.compaction.offsets_with_key(
        query.topic, key_hash, query.begin_ms, query.end_ms
    )
    too_many = why_too_many(len(compacted))
    compacted = compacted[-CANDIDATES_MAX:]
    index = None if follower is None else follower.index
    if index is None:
        frames, more = await matching(query, compacted, store, clock)
        return KeyAnswer(frames, more or too_many or why_no_index(follower, compacted_end), 0)
    # Computed before the search: keys added during the search may be found, but not reported.
    begin = max(store.log_min_offset, compacted_end)
    unreached = why_unreached(query, index, store.runs, log_end, begin)
    until_ms = index.until_ms or 0
    wanted = KeySearch(key_hash, query.begin_ms, query.end_ms, compacted_end)
    candidates = await asyncio.to_thread(index.search, wanted)
    frames, more = await matching(query, [*candidates.offsets, *compacted], store, clock)
    reasons = (more, candidates.gave_up, too_many, candidates.unserved, unreached)
    return KeyAnswer(frames, next(filter(None, reasons), ""), until_ms)


async def matching(
    query: KeyQuery, candidates: Iterable[int], store: Store, clock: Clock
) -> tuple[list[bytes], str]:
    """Return the candidates that match, newest first, and why some messages are missing."""
    frames: list[bytes] = []
    size = 0
    damage = ""
    # Candidates contain a message twice if it has the key twice.
    offsets = sorted(set(candidates), reverse=True)
    async for offset in in_turns(offsets, clock):
        try:
            frame = await cold_reads.answer(partial(store.read_at, offset))
        except UnknownOffset:
            damage = damage or why_unread(store, offset)
            continue
        if not is_wanted(query, decode_record(frame, check_crc=False)):
            continue
        if len(frames) == query.messages_max:
            return frames, f"there are more than {query.messages_max} messages"
        if size + len(frame) > BYTES_MAX and frames:
            return frames, f"there is more than {BYTES_MAX} bytes of messages"
        frames.append(frame)
        size += len(frame)
    return frames, damage


def why_unread(store: Store, offset: int) -> str:
    """Return why a candidate cannot be read; empty if retention has deleted it."""
    if offset < store.log_min_offset:
        return ""
    chunk = store.read_log(offset, 1)
    is_record = chunk.records.count > 0 and chunk.start == offset
    if is_record and store.is_dropped(chunk.records.topics[0].decode(errors="replace"), offset):
        return ""
    return f"the log or the index is damaged: no message can be read at position {offset}"


def is_wanted(query: KeyQuery, record: Record) -> bool:
    if record.topic != query.topic.encode():
        return False
    if not query.begin_ms <= record.store_timestamp_ms <= query.end_ms:
        return False
    if query.unique:
        return find_value(record.properties, PROPERTY_UNIQ_KEY) == query.key
    return query.key in split_keys(find_value(record.properties, PROPERTY_KEYS) or "")


def why_too_many(compacted: int) -> str:
    """Return why not all compacted candidates are checked; empty if all are."""
    if compacted <= CANDIDATES_MAX:
        return ""
    return f"the key is too frequent: {compacted} compacted messages may have it; narrow the time"


def why_no_index(follower: IndexFollower | None, compacted_end: int) -> str:
    """Return why the log after the compacted range was not searched; empty if it was."""
    if follower is not None:
        return "the index is being opened: retry the query"
    return (
        f"this broker keeps no index: only compacted messages, up to {compacted_end} of the log, "
        "were searched"
    )


def why_unreached(
    query: KeyQuery, index: KeyIndex, runs: TimeRuns, log_end: int, log_begin: int
) -> str:
    """Return which part of the query's time range is not indexed; empty if all of it is.

    Args:
        runs: time runs of the log. If one begins in an uncovered range, that may have any time.
        log_end: end of the log when the query arrived, physical offset.
        log_begin: beginning of the range that the index must cover.
    """
    least_ms = runs.least_ms(index.position - 1, index.until_ms or 0)
    if index.position < log_end and query.end_ms >= least_ms:
        behind = log_end - index.position
        return f"the index is {behind} bytes of the log behind: retry the query"
    for gap in (*index.gaps, *index.left_gaps):
        between, lacks = "at any time", _run_begins_in(runs, gap.begin, gap.end)
        if not lacks:
            lacks = gap.begin_ms <= query.end_ms and query.begin_ms <= gap.end_ms
            between = f"between {gap.begin_ms} and {gap.end_ms} (epoch ms)"
        if gap.before is not None and gap.end > log_begin and lacks:
            return f"messages stored {between} may not be in the index: a file of it was lost"
    begins_ms = index.begins_ms
    if index.covered_from <= log_begin or begins_ms is None:
        return ""
    if _run_begins_in(runs, log_begin, index.covered_from):
        return f"messages before physical offset {index.covered_from} may not be in the index"
    if query.begin_ms < begins_ms:
        return f"messages stored before {begins_ms} (epoch ms) may not be in the index"
    return ""


def _run_begins_in(runs: TimeRuns, begin: int, end: int) -> bool:
    """Return whether a time run begins after `begin` and at or before `end`."""
    return any(run.start <= end for run in runs.runs_after(begin))
