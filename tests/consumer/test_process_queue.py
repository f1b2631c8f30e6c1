"""The process queue against a model that keeps one set entry per message."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rockoon.consumer.process_queue import FlowLimits, Limit, ProcessQueue

pytestmark = pytest.mark.filterwarnings("error")


def queue_of(*batches: list[int], start: int = 0, limits: FlowLimits | None = None):
    queue: ProcessQueue[str] = ProcessQueue(start, limits or FlowLimits())
    for number, offsets in enumerate(batches):
        queue.put(
            f"batch {number}",
            offsets,
            next_offset=offsets[-1] + 1,
            size_bytes=100 * len(offsets),
        )
    return queue


def taken(queue: ProcessQueue[str], count: int) -> list[int]:
    return [offset for run in queue.hand_out(count) for offset in run.offsets]


def test_commit_offset_of_an_untouched_queue_is_where_it_starts() -> None:
    assert ProcessQueue[str](42).commit_offset == 42


def test_messages_finished_out_of_order_wait_for_the_smallest_unfinished_one() -> None:
    queue = queue_of([0, 1, 2, 3])
    assert taken(queue, 4) == [0, 1, 2, 3]
    queue.done([3, 1])
    assert queue.commit_offset == 0
    queue.done([0])
    assert queue.commit_offset == 2
    queue.done([2])
    assert queue.commit_offset == 4


def test_messages_left_out_by_a_filter_count_as_finished() -> None:
    queue = queue_of([10, 17], start=5)
    assert queue.commit_offset == 10
    queue.skip_to(900)
    queue.done(taken(queue, 5))
    assert queue.commit_offset == 900


def test_a_run_never_crosses_a_batch_and_names_its_place_in_it() -> None:
    queue = queue_of([0, 1, 2], [5, 9])
    assert [(run.batch, run.start, run.stop, list(run.offsets)) for run in queue.hand_out(4)] == [
        ("batch 0", 0, 3, [0, 1, 2]),
        ("batch 1", 0, 1, [5]),
    ]
    assert [(run.batch, run.start, run.stop) for run in queue.hand_out(4)] == [("batch 1", 1, 2)]
    assert not queue.has_waiting


def test_finishing_twice_changes_nothing() -> None:
    queue = queue_of([0, 1])
    taken(queue, 2)
    assert queue.done([0]) == 1
    assert queue.done([0, 0]) == 0
    assert queue.done([1]) == 1
    assert queue.done([0, 1]) == 0
    assert (queue.unfinished, queue.bytes_held, queue.commit_offset) == (0, 0, 2)


@pytest.mark.parametrize("offset", [1, 2, 99])
def test_a_message_that_was_not_handed_out_cannot_be_finished(offset: int) -> None:
    queue = queue_of([0, 1, 2])
    taken(queue, 1)
    with pytest.raises(ValueError, match=f"message {offset} was"):
        queue.done([offset])


@pytest.mark.parametrize("offsets", [[4, 5], [5, 4], [9, 10]])
def test_a_pull_that_overlaps_is_refused(offsets: list[int]) -> None:
    queue = queue_of([0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="overlaps"):
        queue.put("again", offsets, next_offset=10, size_bytes=1)


def test_each_limit_pauses_pulling_and_finishing_lifts_it() -> None:
    limits = FlowLimits(messages_max=3, bytes_max=1000, span_max=50)
    assert not queue_of(limits=limits).has_room_behind([0, 1, 2], 1)
    assert queue_of(limits=limits).has_room_behind([0, 1], 999)
    queue = queue_of([0, 1, 2], limits=limits)
    assert queue.blocked_by() is Limit.COUNT
    queue.done(taken(queue, 2))
    assert queue.blocked_by() is None
    assert not queue.has_room_behind([3, 4], 1), "one is unfinished"
    assert not queue.has_room_behind([3], 1000)
    assert not queue.has_room_behind([52], 1)
    queue.put("big", [3], next_offset=4, size_bytes=1000)
    assert queue.blocked_by() is Limit.BYTES
    queue.done(taken(queue, 2))
    assert queue.blocked_by() is None
    queue.put("far", [5, 55], next_offset=56, size_bytes=1)
    assert queue.blocked_by() is Limit.SPAN
    queue.done(taken(queue, 1))
    assert queue.blocked_by() is None


def test_a_batch_finished_behind_a_stuck_message_is_not_kept() -> None:
    queue = queue_of([0], [1, 2])
    taken(queue, 3)
    queue.done([1, 2])
    assert (queue.commit_offset, queue.bytes_held, queue.unfinished) == (0, 100, 1)


def test_a_dropped_queue_takes_and_gives_nothing() -> None:
    queue = queue_of([0, 1, 2])
    taken(queue, 2)
    queue.drop()
    queue.put("late", [3], next_offset=4, size_bytes=1)
    assert queue.hand_out(10) == []
    assert queue.done([0, 1]) == 0
    assert not queue.has_waiting
    assert queue.blocked_by() is Limit.DROPPED
    assert not queue.has_room_behind([3], 1)
    assert (queue.unfinished, queue.bytes_held) == (0, 0)


class AgainstModel(RuleBasedStateMachine):
    """Random orders of pulls, hand-outs and results."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ProcessQueue[int] = ProcessQueue(0)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.end = 0
        self.newest = 0
        self.committed = 0

    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), behind=st.integers(0, 4))
    def pull(self, gaps: list[int], behind: int) -> None:
        offsets, at = [], self.end
        for gap in gaps:
            offsets.append(at + gap)
            at += gap + 1
        self.end = at + behind
        if offsets:
            self.newest = offsets[-1]
            self.queue.put(0, offsets, next_offset=self.end, size_bytes=10 * len(offsets))
        else:
            self.queue.skip_to(self.end)
        self.waiting += offsets

    @rule(count=st.integers(1, 8))
    def hand_out(self, count: int) -> None:
        expected, self.waiting = self.waiting[:count], self.waiting[count:]
        found = [offset for run in self.queue.hand_out(count) for offset in run.offsets]
        assert found == expected
        self.running += found

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 8), data=st.data())
    def take_a_run_and_finish_its_beginning(self, count: int, data: st.DataObject) -> None:
        run = self.queue.hand_out_run(count)
        assert run is not None
        offsets = list(run.offsets)
        assert offsets == self.waiting[: len(offsets)]
        finished = data.draw(st.integers(0, len(offsets)))
        kept = data.draw(st.integers(finished, len(offsets)))
        self.queue.return_run(len(offsets) - kept)
        assert self.queue.done(run.offsets[:finished]) == finished
        self.running += offsets[finished:kept]
        del self.waiting[:kept]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.running), unique=True))
        assert self.queue.done(chosen) == len(chosen)
        self.running = [offset for offset in self.running if offset not in chosen]

    @invariant()
    def commit_offset_is_the_smallest_unfinished_one_and_never_goes_back(self) -> None:
        unfinished = self.running + self.waiting
        assert self.queue.commit_offset == min(unfinished, default=self.end)
        assert self.queue.commit_offset >= self.committed
        self.committed = self.queue.commit_offset

    @invariant()
    def counts_are_exact(self) -> None:
        unfinished = self.running + self.waiting
        assert self.queue.unfinished == len(unfinished)
        assert self.queue.span == (self.newest - min(unfinished) if unfinished else 0)
        assert self.queue.has_waiting == bool(self.waiting)
        assert (self.queue.bytes_held > 0) == bool(unfinished)


TestAgainstModel = AgainstModel.TestCase
