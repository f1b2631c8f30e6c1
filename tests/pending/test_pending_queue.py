"""One queue's pending entries, compared with a plain dictionary."""

import random

import numpy as np
import pytest

from rockoon_broker.pending.pending_queue import PENDING_BYTES, PendingQueue
from rockoon_format.consume_queue import decode_entries, encode_entries, filler_entries
from support.seeds import seeds


def entries_at(positions: list[int], codes: list[int] | None = None):  # type: ignore[no-untyped-def]
    return encode_entries(positions, [100] * len(positions), codes or [0] * len(positions))


def filled(count: int, step: int = 100) -> PendingQueue:
    queue = PendingQueue()
    positions = [step * number for number in range(count)]
    queue.add_entries(0, entries_at(positions, list(range(count))))
    return queue


def test_entries_are_settled_in_any_order_and_the_low_water_follows() -> None:
    queue = filled(5)
    assert (len(queue), queue.low_water, queue.next_offset) == (5, 0, 5)
    assert queue.complete([100, 300]) == 2
    assert queue.low_water == 0
    assert queue.complete([0]) == 1
    assert queue.low_water == 2
    assert queue.complete([200, 400]) == 2
    assert (len(queue), queue.low_water) == (0, 5)


def test_what_is_settled_twice_or_unknown_counts_once() -> None:
    queue = filled(3)
    assert queue.complete([100, 100, 7, 10**12, -1]) == 1
    assert queue.complete([100]) == 0
    assert queue.are_pending([0, 100, 7]).tolist() == [True, False, False]


def test_an_empty_queue_knows_nothing() -> None:
    queue = PendingQueue()
    assert queue.complete([0]) == 0
    assert not queue.are_pending([0]).any()
    assert len(queue.complete_deleted(10**9)) == len(queue.pending_until(10**18, 10**18)) == 0


def test_entries_taken_in_before_and_fillers_are_passed_over() -> None:
    queue = PendingQueue()
    fillers = np.concatenate((decode_entries(filler_entries(2)), entries_at([500, 600])))
    queue.add_entries(0, fillers)
    queue.add_entries(1, fillers[1:])
    assert queue.pending().offsets.tolist() == [2, 3]
    assert queue.next_offset == 4


def test_a_gap_that_retention_left_is_nobodys() -> None:
    queue = filled(2)
    queue.add_entries(10, entries_at([5000]))
    assert queue.pending().offsets.tolist() == [0, 1, 10]
    queue.skip_to(40)
    assert (len(queue), queue.next_offset) == (3, 40)


def test_records_that_the_log_lost_are_told_once() -> None:
    queue = filled(5)
    queue.complete([100])
    assert queue.complete_deleted(300).positions.tolist() == [0, 200]
    assert len(queue.complete_deleted(300)) == 0
    assert queue.pending().positions.tolist() == [300, 400]


def test_what_is_due_is_due_by_its_code_or_by_its_deadline() -> None:
    queue = PendingQueue()
    deadlines = np.array([900, 50, 900])
    queue.add_entries(0, entries_at([0, 100, 200], [10, 99, 99]), deadlines_ms=deadlines)
    assert queue.pending_until(10, 50).positions.tolist() == [0, 100]
    queue.revise(np.array([99, 99, 5]), np.array([900, 900, 900]))
    assert queue.pending_until(10, 50).positions.tolist() == [200]


@pytest.mark.parametrize("spoil", ["short", "count", "order", "outside"])
def test_bytes_that_are_no_queue_are_refused(spoil: str) -> None:
    raw = bytearray(filled(3).to_bytes())
    if spoil == "short":
        raw = raw[:10]
    if spoil == "count":
        raw = raw[:-1]
    if spoil == "order":
        raw[16:24], raw[24:32] = raw[24:32], raw[16:24]
    if spoil == "outside":
        raw[0] = 2
    with pytest.raises(ValueError):  # noqa: PT011 - the one it raises
        PendingQueue.from_bytes(bytes(raw))


@pytest.mark.parametrize("seed", seeds(1))
def test_it_does_as_a_dictionary_does_through_snapshots_and_random_settling(seed: int) -> None:
    choose = random.Random(seed)
    queue, model, completed_ever = PendingQueue(), {}, 0
    position = 0
    for _ in range(300):
        first, positions = queue.next_offset, []
        for _ in range(choose.randrange(60)):
            position += choose.randrange(91, 300)
            positions.append(position)
        queue.add_entries(first, entries_at(positions, [p * 2 for p in positions]))
        model |= {p: first + index for index, p in enumerate(positions)}
        chosen = choose.sample(sorted(model), min(len(model), choose.randrange(70)))
        assert queue.complete(chosen) == len(chosen)
        completed_ever += len(chosen)
        for gone in chosen:
            del model[gone]
        if choose.random() < 0.2:
            raw = queue.to_bytes()
            assert len(raw) == 16 + PENDING_BYTES * len(model)
            queue = PendingQueue.from_bytes(raw)
        pending = queue.pending()
        assert dict(zip(pending.positions.tolist(), pending.offsets.tolist(), strict=True)) == model
        assert (pending.codes == pending.positions * 2).all()
        assert queue.low_water == min(model.values(), default=queue.next_offset)
        kept = len(queue._positions)
        assert kept <= max(4 * len(model), 1024), "settled entries are not let go of"
    assert completed_ever > 1000
