"""Plans of the next batch of a stream, without a cluster."""

import json
import random
import re
from typing import Any

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.stream.plan import (
    INITIAL,
    BatchRange,
    CheckpointError,
    QueuePosition,
    StreamOffsets,
    StreamQueue,
    backlog,
    cut,
    ends_after,
    messages_of_bytes,
    ranges,
    share,
)
from support.seeds import seeds

A, B, C = (MessageQueue("T", f"broker-{name}", 0) for name in "abc")


def test_a_batch_can_be_read_again_from_what_the_checkpoint_says_of_it() -> None:
    now = {A: StreamQueue(5, 0, 10), B: StreamQueue(5, 3, 9)}
    found = backlog(INITIAL, now, {A: 4, B: 3})
    assert not found.losses
    end = ends_after(INITIAL, found, found.messages)
    logged = StreamOffsets.parse(json.loads(json.dumps(end.to_json())))
    assert logged == end
    assert ranges(INITIAL, logged) == [BatchRange(A, 4, 10, 5), BatchRange(B, 3, 9, 5)]
    # The next batch continues there, whatever the options are.
    later = {**now, A: StreamQueue(5, 0, 12), C: StreamQueue(7, 0, 2)}
    found = backlog(logged, later, {})
    following = ends_after(logged, found, found.messages)
    assert ranges(logged, following) == [BatchRange(A, 10, 12, 5), BatchRange(C, 0, 2, 7)]


def test_without_news_there_is_no_batch() -> None:
    now = {A: StreamQueue(5, 0, 10)}
    start = StreamOffsets({A: QueuePosition(10, 5)})
    found = backlog(start, now, {})
    assert ends_after(start, found, found.messages) is start
    # A queue without messages is part of the plan: "latest" means its present end from now on.
    found = backlog(INITIAL, now, {A: 10})
    assert ends_after(INITIAL, found, found.messages) == StreamOffsets(
        {A: QueuePosition(10, 5, 10)}
    )
    found = backlog(INITIAL, {}, {})
    nothing = ends_after(INITIAL, found, {})
    assert nothing == StreamOffsets()
    found = backlog(nothing, {}, {})
    assert ends_after(nothing, found, {}) is nothing


@pytest.mark.parametrize(
    ("now", "sentence", "first"),
    [
        ({}, "queue T@broker-a:0 was deleted; it was read up to offset 10", None),
        ({A: StreamQueue(6, 0, 3)}, "deleted and created again; .* up to offset 10", 0),
        ({A: StreamQueue(5, 12, 20)}, "offsets 10 to 12 of queue T@broker-a:0 were deleted", 12),
        ({A: StreamQueue(5, 0, 8)}, "ends at offset 8: offsets from there to 10 are lost", 8),
    ],
)
def test_what_was_lost_is_told_and_the_batch_says_where_it_begins_instead(
    now: dict[MessageQueue, StreamQueue], sentence: str, first: int | None
) -> None:
    start = StreamOffsets({A: QueuePosition(10, 5)})
    found = backlog(start, now, {})
    (told,) = found.losses
    assert re.search(sentence, told)
    end = ends_after(start, found, found.messages)
    assert end is not start
    if first is None:
        assert not end.queues
    else:
        assert end.queues[A].first == first
        # It is reported once: then the position is valid.
        assert not backlog(end, now, {}).losses


def test_a_queue_that_came_later_and_lost_its_beginning_is_told() -> None:
    found = backlog(StreamOffsets(), {A: StreamQueue(5, 4, 9)}, {})
    assert found.losses == [
        "offsets 0 to 4 of queue T@broker-a:0 were deleted before they were read"
    ]
    assert found.messages == {A: 5}


WRONG = (
    {},
    {"version": 3, "queues": {}},
    {"version": 1, "queues": {"T": {"x": 1}}},
    {"version": 2, "queues": {"T": {"broker-a:0": {"offset": 1, "birth": 1}}}},
    {"version": 2, "queues": {"T": {"a": [{"birth": 1, "queue": 0, "offsets": [1], "first": []}]}}},
)


@pytest.mark.parametrize("content", WRONG)
def test_a_checkpoint_of_something_else_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        StreamOffsets.parse(content)


def test_a_checkpoint_of_the_former_version_is_read() -> None:
    queues = {"orders": {"broker-a:0": {"offset": 17, "birth": 5, "first": 3}}}
    queues["orders"]["broker-b:12"] = {"offset": 4, "birth": 6}
    found = StreamOffsets.parse({"version": 1, "queues": queues})
    assert found.queues == {
        MessageQueue("orders", "broker-a", 0): QueuePosition(17, 5, 3),
        MessageQueue("orders", "broker-b", 12): QueuePosition(4, 6),
    }
    assert StreamOffsets.parse(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("seed", seeds(1))
def test_offsets_of_any_queues_are_decoded_as_they_were_encoded(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        queues = {
            MessageQueue(
                chance.choice(["T", "U", "%RETRY%g"]),
                chance.choice(["a", "b:1"]),
                chance.randrange(9),
            ): QueuePosition(
                chance.randrange(1 << 40), chance.randrange(1, 4), chance.choice([None, 0, 7])
            )
            for _ in range(chance.randrange(20))
        }
        offsets = StreamOffsets(queues, is_initial=chance.random() < 0.2)
        text = json.dumps(offsets.to_json())
        assert StreamOffsets.parse(json.loads(text)) == offsets
        shuffled = dict(chance.sample(list(queues.items()), len(queues)))
        assert json.dumps(StreamOffsets(shuffled, offsets.is_initial).to_json()) == text


def test_the_offsets_of_10000_queues_have_at_most_300_kilobytes() -> None:
    first, offset = 9_000_000_000, 10_000_000_000
    queues = {
        MessageQueue("a-topic-with-a-name", f"broker-{number % 3}", number // 3): QueuePosition(
            offset + number, 123_456 + number // 4000, first
        )
        for number in range(10_000)
    }
    assert len(json.dumps(StreamOffsets(queues).to_json())) <= 300_000


def test_queues_share_a_batch_by_what_they_have_and_the_small_ones_take_turns() -> None:
    assert share({A: 3, B: 4}, 10, 0) == {A: 3, B: 4}
    assert share({A: 600, B: 300, C: 0}, 90, 0) == {A: 60, B: 30, C: 0}
    many = {MessageQueue("T", "broker-a", number): 1 for number in range(10)}
    served = {queue for turn in range(10) for queue, n in share(many, 1, turn).items() if n}
    assert len(served) == 10
    # However many messages the large queue has, the small one is read.
    assert share({A: 1_000_000, B: 1}, 100, 0)[B] == 1


@pytest.mark.parametrize("seed", seeds(1))
def test_a_batch_never_has_more_than_it_may_and_never_nothing(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        names = [MessageQueue("T", "broker-a", number) for number in range(chance.randint(1, 9))]
        messages = {queue: chance.choice([0, 1, 7, 5000]) for queue in names}
        limit = chance.choice([1, 3, 100, 20_000])
        taken = share(messages, limit, chance.randint(0, 99))
        assert sum(taken.values()) == min(limit, sum(messages.values()))
        assert all(0 <= taken[queue] <= messages[queue] for queue in names)
        sizes = {queue: chance.choice([90, 4000]) for queue in names}
        fitting = messages_of_bytes(messages, sizes, limit * 100)
        assert fitting >= 1
        if fitting > 1:
            mean = sum(messages[q] * sizes[q] for q in names) / sum(messages.values())
            assert fitting * mean <= limit * 100


@pytest.mark.parametrize("seed", seeds(1))
def test_long_ranges_are_cut_into_as_many_tasks_as_are_wanted(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        whole = [
            BatchRange(
                MessageQueue("T", "broker-a", number), first, first + chance.choice([1, 5, 999])
            )
            for number in range(chance.randint(0, 5))
            for first in [chance.randint(0, 50)]
        ]
        wanted = chance.randint(1, 12)
        pieces = cut(whole, wanted)
        messages = sum(each.stop - each.start for each in whole)
        assert len(pieces) >= min(wanted, messages)
        assert [(each.queue, n) for each in pieces for n in range(each.start, each.stop)] == [
            (each.queue, n) for each in whole for n in range(each.start, each.stop)
        ]
