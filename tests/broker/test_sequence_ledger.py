"""Memory of idempotent producers: single cases, and a comparison with a simple model."""

import random
import time
from dataclasses import replace

import pytest

from rockoon_broker.idempotence.ledger import (
    GAP_MS_MAX,
    REPEAT_MARGIN_MS,
    RUNS_MAX,
    MemoryLimits,
    Run,
    SequenceLedger,
)
from rockoon_broker.idempotence.memory import SequenceSnapshot, SnapshotError, decode_snapshot
from rockoon_broker.store.log.batch import SequencedBatch, SequenceKey
from rockoon_core.errors import InvalidArgument, SequenceGap, SequenceUnknown
from rockoon_format.sequences import BATCH_MESSAGES_MAX, SEQUENCE_MAX
from support.seeds import seeds

LINEAGE = bytes(range(16))
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
KEY = SequenceKey(7, "T", 0)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
LIMITS = MemoryLimits(sequences_max=100, memory_ms=24 * HOUR_MS)


def run(first: int, messages: int, *, offset: int = 0, at_ms: int = NOW_MS) -> Run:
    return Run(first, messages, offset, offset * 100, at_ms, HOST)


def batch(first: int, *, ago_ms: int = 0, key: SequenceKey = KEY) -> SequencedBatch:
    return SequencedBatch(key, first, ago_ms)


def ledger_with(*runs: Run, limits: MemoryLimits = LIMITS) -> SequenceLedger:
    ledger = SequenceLedger(limits)
    for each in runs:
        ledger.record(KEY, each)
    return ledger


def pass_time(ledger: SequenceLedger, since_ms: int, until_ms: int) -> None:
    """The log grows from one store time to another without a long gap."""
    for at_ms in range(since_ms, until_ms, GAP_MS_MAX):
        ledger.discard_unused(at_ms)
    ledger.discard_unused(until_ms)


def test_a_new_producer_begins_with_0() -> None:
    ledger = SequenceLedger(LIMITS)
    assert ledger.stored(batch(0), 10, NOW_MS) == ()
    with pytest.raises(SequenceUnknown, match="does not remember this producer's messages"):
        ledger.stored(batch(10), 10, NOW_MS)


def test_the_next_batch_is_new_and_one_beyond_it_a_gap() -> None:
    ledger = ledger_with(run(0, 10))
    assert ledger.stored(batch(10), 5, NOW_MS) == ()
    with pytest.raises(SequenceGap, match="number 11 instead of 10"):
        ledger.stored(batch(11), 5, NOW_MS)


def test_a_repeat_is_told_where_each_of_its_batches_went() -> None:
    runs = [run(0, 3), run(3, 4, offset=3), run(7, 2, offset=9)]
    ledger = ledger_with(*runs)
    assert [ledger.stored(batch(each.first_sequence), each.messages, NOW_MS) for each in runs] == [
        (each,) for each in runs
    ]


def test_of_a_batch_that_a_crash_has_cut_the_rest_is_missing() -> None:
    ledger = ledger_with(run(0, 3), run(3, 2, offset=3))
    assert ledger.stored(batch(3), 6, NOW_MS) == (run(3, 2, offset=3),)
    ledger.record(KEY, run(5, 4, offset=50))
    both = (run(3, 2, offset=3), run(5, 4, offset=50))
    assert ledger.stored(batch(3), 6, NOW_MS) == both
    assert ledger.stored(batch(9), 1, NOW_MS) == ()


def test_a_repeat_with_fewer_messages_is_told_of_these() -> None:
    ledger = ledger_with(run(0, 10))
    assert ledger.stored(batch(0), 4, NOW_MS) == (run(0, 4),)


def test_a_repeat_that_begins_within_a_batch_is_refused() -> None:
    ledger = ledger_with(run(0, 10))
    with pytest.raises(InvalidArgument, match="sequence 0 is sent again from 4"):
        ledger.stored(batch(4), 6, NOW_MS)


def test_a_repeat_from_before_what_is_remembered_is_refused() -> None:
    ledger = ledger_with(*(run(first, 1, offset=first) for first in range(RUNS_MAX + 1)))
    assert ledger.stored(batch(1), 1, NOW_MS) == (run(1, 1, offset=1),)
    with pytest.raises(SequenceUnknown, match="before sequence 1"):
        ledger.stored(batch(0), 1, NOW_MS)


@pytest.mark.parametrize(
    ("first", "messages"), [(-1, 1), (SEQUENCE_MAX, 1), (0, BATCH_MESSAGES_MAX + 1)]
)
def test_numbers_out_of_bounds_are_refused(first: int, messages: int) -> None:
    with pytest.raises(InvalidArgument):
        SequenceLedger(LIMITS).stored(batch(first), messages, NOW_MS)


def test_a_sequence_that_is_not_used_is_forgotten_in_time() -> None:
    ledger = ledger_with(run(0, 10))
    ledger.record(KEY._replace(queue_id=1), run(0, 1, at_ms=NOW_MS + 1))
    pass_time(ledger, NOW_MS + 1, NOW_MS + LIMITS.memory_ms)
    assert len(ledger) == 1
    assert ledger.discarded_until_ms == NOW_MS
    ledger.discard_unused(NOW_MS + LIMITS.memory_ms + 1)
    assert len(ledger) == 0
    with pytest.raises(SequenceUnknown):
        ledger.stored(batch(10), 1, NOW_MS)


def test_what_a_clock_that_was_ahead_has_left_is_forgotten_in_time() -> None:
    year_ms = 365 * 86_400_000
    ledger = ledger_with(run(0, 10, at_ms=NOW_MS + year_ms))
    ledger.record(KEY._replace(queue_id=1), run(0, 1, at_ms=NOW_MS))
    pass_time(ledger, NOW_MS, NOW_MS + LIMITS.memory_ms - 1)
    assert len(ledger) == 2
    now_ms = NOW_MS + LIMITS.memory_ms
    ledger.discard_unused(now_ms)
    assert len(ledger) == 0
    with pytest.raises(SequenceUnknown):
        ledger.stored(batch(0, ago_ms=1000), 1, now_ms)
    # A producer of today that repeats its first batch is none of that year.
    later_ms = now_ms + REPEAT_MARGIN_MS + 2000
    assert ledger.stored(batch(0, ago_ms=1000), 1, later_ms) == ()


def test_a_clock_that_jumps_by_a_day_makes_no_copy_forget_a_producer_in_use() -> None:
    """A wrong clock that was believed is in the store times of a log, and each copy decides by
    them."""
    day_ms = 24 * HOUR_MS
    ledger = ledger_with(run(0, 10), run(10, 1, at_ms=NOW_MS + 1000))
    for now_ms in (NOW_MS + day_ms, NOW_MS + day_ms + 60_000, NOW_MS + 120_000):
        ledger.discard_unused(now_ms)
        assert ledger.stored(batch(11), 1, now_ms) == ()
    assert ledger.discarded_until_ms == 0
    restored = SequenceLedger(LIMITS, ledger.copy())
    restored.discard_unused(NOW_MS + day_ms)
    assert restored.stored(batch(11), 1, NOW_MS + day_ms) == ()


def test_of_too_many_sequences_those_go_that_were_used_longest_ago() -> None:
    ledger = SequenceLedger(replace(LIMITS, sequences_max=2))
    keys = [KEY._replace(producer_id=number) for number in (1, 2, 3)]
    for n, key in enumerate(keys[:2]):
        ledger.record(key, run(0, 1, at_ms=NOW_MS + n))
        ledger.record(key, run(1, 1, at_ms=NOW_MS + n))
    ledger.record(keys[0], run(2, 1, at_ms=NOW_MS + 2))
    ledger.record(keys[2], run(0, 1, at_ms=NOW_MS + 3))
    ledger.record(keys[2], run(1, 1, at_ms=NOW_MS + 4))
    assert list(ledger.copy()) == [keys[0], keys[2]]
    assert ledger.discarded_until_ms == NOW_MS + 1


def test_sequences_with_one_batch_do_not_displace_producers_that_continue() -> None:
    """A Spark job sends each batch with a separate producer id."""
    limits = replace(LIMITS, sequences_max=10)
    ledger = ledger_with(run(0, 1), run(1, 1), limits=limits)
    # It has lost its first batch, which retention has deleted.
    late = KEY._replace(queue_id=1)
    ledger.record(late, run(5, 1))
    for n in range(100):
        ledger.record(KEY._replace(producer_id=100 + n), run(0, 1, at_ms=NOW_MS + n))
    restored = SequenceLedger(limits, ledger.copy(), ledger.discarded_until_ms)
    for each in (ledger, restored):
        assert each.stored(batch(2), 1, NOW_MS) == ()
        assert each.stored(batch(6, key=late), 1, NOW_MS) == ()
        single = [KEY._replace(producer_id=190 + n) for n in range(10)]
        assert list(each.copy()) == [KEY, late, *single]
        assert each.discarded_until_ms == NOW_MS + 89


def test_producers_that_continue_do_not_displace_sequences_with_one_batch() -> None:
    ledger = ledger_with(run(0, 1), limits=replace(LIMITS, sequences_max=2))
    for n in range(5):
        other = KEY._replace(producer_id=100 + n)
        ledger.record(other, run(0, 1))
        ledger.record(other, run(1, 1))
    assert ledger.stored(batch(0), 1, NOW_MS) == (run(0, 1),)
    assert len(ledger) == 3


def test_a_producer_whose_second_batch_is_damaged_in_the_log_continues() -> None:
    ledger = ledger_with(run(0, 1), run(2, 1), limits=replace(LIMITS, sequences_max=1))
    for producer in (100, 101):
        ledger.record(KEY._replace(producer_id=producer), run(0, 1))
    assert ledger.stored(batch(3), 1, NOW_MS) == ()
    assert [key.producer_id for key in ledger.copy()] == [KEY.producer_id, 101]


def test_a_repeat_of_a_first_batch_is_refused_where_it_may_have_been_forgotten() -> None:
    """The rule: a batch is new if the ledger covers the whole time since its first send."""
    ledger = SequenceLedger(LIMITS, discarded_until_ms=NOW_MS)
    later_ms = NOW_MS + REPEAT_MARGIN_MS + 1000
    assert ledger.stored(batch(0), 1, NOW_MS) == ()
    assert ledger.stored(batch(0, ago_ms=999), 1, later_ms) == ()
    with pytest.raises(SequenceUnknown, match="producers of that time"):
        ledger.stored(batch(0, ago_ms=1000), 1, later_ms)


def test_a_deleted_topic_takes_its_sequences_along() -> None:
    ledger = ledger_with(run(0, 10))
    other = KEY._replace(topic="U")
    ledger.record(other, run(0, 1))
    ledger.drop_topics("T")
    assert list(ledger.copy()) == [other]
    assert ledger.stored(batch(0), 10, NOW_MS) == ()


def test_what_the_log_tells_twice_counts_once_and_a_hole_in_it_begins_anew() -> None:
    ledger = ledger_with(run(0, 5), run(5, 5, offset=5))
    ledger.record(KEY, run(5, 5, offset=5))
    ledger.record(KEY, run(2, 3, offset=90))
    assert ledger.copy() == {KEY: (run(0, 5), run(5, 5, offset=5))}
    ledger.record(KEY, run(20, 1, offset=20))
    assert ledger.copy() == {KEY: (run(20, 1, offset=20),)}


class Model:
    """Every message of every sequence, by its number; no entry is ever removed."""

    def __init__(self) -> None:
        self.stored: dict[SequenceKey, list[int]] = {}

    def append(self, key: SequenceKey, offsets: list[int]) -> None:
        self.stored.setdefault(key, []).extend(offsets)


@pytest.mark.parametrize("seed", seeds(1))
def test_random_sends_repeats_and_cuts_store_every_number_once(seed: int) -> None:
    """Producers with several batches in flight, lost replies, and a log that is sometimes cut.

    After a cut, a new ledger is built from the remaining log, once with a snapshot and once
    without.
    """
    chance = random.Random(seed)
    limits = replace(LIMITS, sequences_max=1000)
    ledger, model = SequenceLedger(limits), Model()
    log: list[tuple[SequenceKey, Run]] = []
    snapshot, covered = SequenceSnapshot(LINEAGE, 0, 0, {}), 0
    sent: dict[SequenceKey, list[tuple[int, int]]] = {}
    offset = 0
    for _ in range(2000):
        key = SequenceKey(chance.randrange(1, 4), chance.choice("TU"), chance.randrange(2))
        batches = sent.setdefault(key, [])
        end = batches[-1][0] + batches[-1][1] if batches else 0
        expected = len(model.stored.get(key, []))
        if end == expected and chance.random() < 0.6:
            batches.append((end, chance.randrange(1, 6)))
        if not batches:
            continue
        first, count = chance.choice(batches[-3:])
        known = model.stored.get(key, [])
        if first > len(known):
            with pytest.raises(SequenceGap):
                ledger.stored(batch(first, key=key), count, NOW_MS)
            continue
        runs = ledger.stored(batch(first, key=key), count, NOW_MS)
        found = [each.first_queue_offset + n for each in runs for n in range(each.messages)]
        assert found == known[first : first + count]
        rest = count - len(found)
        if rest:
            new = run(first + len(found), rest, offset=offset)
            ledger.record(key, new)
            log.append((key, new))
            model.append(key, list(range(offset, offset + rest)))
            offset += rest
        if chance.random() < 0.02:
            snapshot, covered = SequenceSnapshot(LINEAGE, 0, 0, ledger.copy()), len(log)
        if chance.random() < 0.02 and len(log) > covered:
            # The last batch is cut or removed.
            last_key, last = log.pop()
            kept = chance.randrange(last.messages)
            model.stored[last_key] = model.stored[last_key][: last.first_sequence + kept]
            if kept:
                log.append((last_key, last._replace(messages=kept)))
            whole, behind = SequenceLedger(limits), decode_snapshot(snapshot.encode())
            ledger = SequenceLedger(limits, behind.sequences, behind.discarded_until_ms)
            for each in log:
                whole.record(*each)
            for each in log[covered:]:
                ledger.record(*each)
            assert ledger.copy() == whole.copy()


def test_a_snapshot_comes_back_as_it_was_and_a_damaged_one_not_at_all() -> None:
    ledger = ledger_with(run(0, 3), run(3, 4, offset=3))
    ledger.record(SequenceKey((1 << 64) - 1, "Größe%x", 9), run(SEQUENCE_MAX - 5, 5))
    snapshot = SequenceSnapshot(LINEAGE, 12_345, NOW_MS, ledger.copy())
    content = snapshot.encode()
    again = decode_snapshot(content)
    assert again == snapshot
    assert list(again.sequences) == list(snapshot.sequences)
    damaged = bytearray(content)
    damaged[40] ^= 1
    for wrong in (b"", content[:-1], bytes(damaged), b"ROCKSEQ9" + content[8:]):
        with pytest.raises(SnapshotError):
            decode_snapshot(wrong)


def test_forgetting_many_at_once_takes_no_longer_for_each() -> None:
    """The event loop waits in the meantime."""
    count = 100_000
    ledger = SequenceLedger(replace(LIMITS, sequences_max=count))
    for producer in range(count):
        ledger.record(KEY._replace(producer_id=producer), run(0, 1))
    pass_time(ledger, NOW_MS, NOW_MS + LIMITS.memory_ms - 1)
    began = time.process_time()
    ledger.discard_unused(NOW_MS + LIMITS.memory_ms)
    assert not len(ledger)
    # 0.1 s; it was 6 s when each search for the oldest entry passed the removed ones.
    assert time.process_time() - began < 2
