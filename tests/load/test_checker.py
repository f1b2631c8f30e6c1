"""The checker of load tests: faults that it must notice, and cases that are no faults."""

import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import rockoon
from load import payload
from load.bitmap import Bitmap
from load.checker import Allowed, Checker, Verdict
from load.dishonest_broker import Deed, DishonestBroker
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.scripted_nameserver import ScriptedNameserver
from support.seeds import seeds

RUN = 4711
TOPIC = "orders"
QUEUES = 2
STREAMS = 3
MESSAGES = 120


def told(checker: Checker, *stored: int, stream: int = 0, queue: str = "q", sent: int = 10) -> None:
    """A sender whose messages are all acknowledged, and the content of its queue."""
    checker.acknowledged(TOPIC, stream, 0, sent)
    checker.closed(stream)
    checker.stored(queue, np.full(len(stored), stream, np.uint64), np.array(stored, np.int64))


def faults_of(verdict: Verdict) -> dict[str, int]:
    counts = {
        "lost": verdict.lost,
        "twice": verdict.twice,
        "order_breaks": verdict.order_breaks,
        "invented": verdict.invented,
    }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("stored", "faults"),
    [
        (range(10), {}),
        ([*range(9)], {"lost": 1}),
        ([*range(10), 9], {"twice": 1}),
        ([0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9], {"twice": 2}),
        ([0, 1, 3, 2, 4, 5, 6, 7, 8, 9], {"order_breaks": 1}),
        ([9, *range(9)], {"order_breaks": 1}),
        (range(11), {"invented": 1}),
        ([*range(10), 1 << 40], {"invented": 1}),
        ([*range(10), -3], {"invented": 1}),
        ([], {"lost": 10}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_queue_holds_is_compared_with_what_was_sent(
    stored: list[int], faults: dict[str, int]
) -> None:
    checker = Checker()
    told(checker, *stored)
    verdict = checker.verdict()
    assert faults_of(verdict) == faults
    assert verdict.is_good is not bool(faults)
    assert len(verdict.faults) == len(faults)


def test_order_holds_in_a_queue_and_not_between_queues() -> None:
    checker = Checker()
    told(checker, 5, 6, 7, 8, 9)
    told(checker, 0, 1, 2, 3, 4, queue="another")
    assert checker.verdict().is_good


def test_copies_that_are_allowed_are_counted_and_no_fault() -> None:
    checker = Checker()
    told(checker, *range(10), 8, 9)
    assert not checker.verdict(Allowed(stored_twice=1, reason="one kill")).is_good
    verdict = checker.verdict(Allowed(stored_twice=2, reason="one kill"))
    assert (verdict.is_good, verdict.twice) == (True, 2)


def test_what_was_sent_and_not_acknowledged_may_be_there_or_not() -> None:
    checker = Checker()
    checker.acknowledged(TOPIC, 0, 0, 5)
    checker.sent(TOPIC, 0, 10)
    checker.closed(0)
    checker.stored("q", np.zeros(7, np.uint64), np.array([0, 1, 2, 3, 4, 7, 9]))
    assert checker.verdict().is_good


def test_a_sender_that_was_killed_has_not_told_all_it_sent() -> None:
    checker = Checker()
    checker.acknowledged(TOPIC, 0, 0, 5)
    checker.stored("q", np.zeros(7, np.uint64), np.arange(7))
    verdict = checker.verdict()
    assert (verdict.is_good, verdict.unreported) == (True, 2)


def test_a_stream_that_no_sender_has_is_invented() -> None:
    checker = Checker()
    told(checker, *range(10))
    checker.stored("q", np.full(3, 77, np.uint64), np.arange(3))
    assert faults_of(checker.verdict()) == {"invented": 3}


def test_every_group_gets_everything_of_its_topics_once() -> None:
    checker = Checker()
    checker.group("readers", [TOPIC])
    checker.group("others", ["elsewhere"])
    told(checker, *range(10))
    checker.given("readers", np.zeros(7, np.uint64), np.array([3, 0, 1, 2, 2, 9, 5]))
    checker.given_run("readers", 0, 6, 9)
    verdict = checker.verdict()
    assert (verdict.groups["readers"].missing, verdict.groups["readers"].twice) == (1, 1)
    assert verdict.groups["others"].missing == 0
    assert len(verdict.faults) == 2
    assert "readers" in verdict.faults[0]
    checker.given_run("readers", 0, 4, 5)
    assert checker.verdict(Allowed(given_twice=1, reason="a rebalance")).is_good
    checker.given_run("readers", 0, 10, 11)
    assert checker.verdict(Allowed(given_twice=1)).groups["readers"].invented == 1


@pytest.mark.parametrize("seed", seeds(3))
def test_in_pieces_and_any_mix_it_counts_as_sets_of_numbers_do(seed: int) -> None:
    chance = random.Random(seed)
    checker = Checker()
    sent = {stream: chance.randrange(1, 400) for stream in range(4)}
    acknowledged = set()
    for stream, end in sent.items():
        checker.sent(TOPIC, stream, end)
        for _ in range(5):
            first = chance.randrange(end)
            last = chance.randrange(first, end + 1)
            checker.acknowledged(TOPIC, stream, first, last)
            acknowledged |= {(stream, number) for number in range(first, last)}
        checker.closed(stream)
    log = [(s, n) for s, end in sent.items() for n in range(end + 5) if chance.random() < 0.9]
    log += [chance.choice(log) for _ in range(30)]
    chance.shuffle(log)
    newest: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    breaks = 0
    for stream, number in log:
        if (stream, number) not in seen:
            breaks += number < newest.get(stream, -1)
            newest[stream] = number
            seen.add((stream, number))
    at = 0
    while at < len(log):
        piece = log[at : at + chance.randrange(1, 60)]
        at += len(piece)
        checker.stored(
            "q",
            np.array([stream for stream, _ in piece], np.uint64),
            np.array([number for _, number in piece], np.int64),
        )
    verdict = checker.verdict()
    assert verdict.acknowledged == len(acknowledged)
    assert verdict.lost == len(acknowledged - seen)
    assert verdict.twice == len(log) - len(seen)
    assert verdict.order_breaks == breaks
    assert verdict.invented == sum(number >= sent[stream] for stream, number in seen)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_bitmap_is_a_set_of_numbers(seed: int) -> None:
    chance = random.Random(seed)
    bitmap, numbers = Bitmap(), set[int]()
    for _ in range(60):
        first = chance.randrange(20_000)
        if chance.random() < 0.5:
            end = first + chance.choice((0, 1, 3, 8, 9, 100, 5000))
            bitmap.add_run(first, end)
            numbers |= set(range(first, end))
        else:
            some = [chance.randrange(20_000) for _ in range(chance.randrange(1, 20))]
            bitmap.add(np.array(some))
            numbers |= set(some)
    assert len(bitmap) == len(numbers)
    assert bitmap.end == max(numbers) + 1
    assert np.flatnonzero(bitmap.has(np.arange(60_000))).tolist() == sorted(numbers)
    end = chance.randrange(25_000)
    assert bitmap.count_beyond(end) == sum(number >= end for number in numbers)
    other = Bitmap()
    other.add_run(0, end)
    missing = sorted(number for number in numbers if number >= end)
    assert bitmap.missing_in(other, 3) == (len(missing), missing[:3])


@pytest.mark.parametrize(
    "messages", [10_000_000, pytest.param(100_000_000, marks=pytest.mark.soak)]
)
def test_any_number_of_messages_takes_some_bits_each(messages: int) -> None:
    checker = Checker()
    checker.group("readers", [TOPIC])
    streams, piece = 4, 100_000
    tracemalloc.start()
    for stream in range(streams):
        own = messages // streams
        checker.acknowledged(TOPIC, stream, 0, own)
        checker.closed(stream)
        owners = np.full(piece, stream, np.uint64)
        for first in range(0, own, piece):
            numbers = np.arange(first, first + piece)
            if first + piece == own:
                numbers = numbers[:-1]
            checker.stored("q", owners[: len(numbers)], numbers)
            checker.given("readers", owners[: len(numbers)], numbers)
    verdict = checker.verdict()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict.acknowledged == messages
    assert (verdict.lost, verdict.groups["readers"].missing) == (streams, streams)
    bits_max = 6
    assert checker.size_bytes() * 8 <= messages * bits_max
    assert kept * 8 < (messages * bits_max) + (32 << 20)


@asynccontextmanager
async def dishonest_wire(
    root: Path, deed: Callable[[pb.AppendRequest], Deed | None]
) -> AsyncIterator[tuple[rockoon.Cluster, RunningBroker, DishonestBroker]]:
    async with BrokerRoutes() as routes, ScriptedNameserver() as nameserver:
        await routes.create_topic(TOPIC, {"broker-a": QUEUES})
        async with (
            running_broker(root, [routes.address]) as broker,
            DishonestBroker(broker.channel, deed) as dishonest,
        ):
            nameserver.put_node("broker-a", dishonest.address)
            revision = nameserver.put_topic(TOPIC, {"broker-a": QUEUES})
            # A broker whose routes are older than a sender's refuses a batch.
            await broker.until(lambda seen: seen.route_revision >= revision)
            async with rockoon.connect(nameserver.address) as cluster:
                yield cluster, broker, dishonest


async def send_and_tell(cluster: rockoon.Cluster, checker: Checker) -> None:
    """Some streams, each to one queue; everything is acknowledged."""
    async with cluster.producer(batch_messages_max=7) as producer:
        for stream in range(STREAMS):
            queue = MessageQueue(TOPIC, "broker-a", stream % QUEUES)
            due = np.zeros(MESSAGES, np.int64)
            bodies = payload.encode(RUN, stream, 0, due, 100)
            receipts = [producer.send(TOPIC, body, queue=queue) for body in bodies]
            for receipt in receipts:
                await receipt
            checker.acknowledged(TOPIC, stream, 0, MESSAGES)
            checker.closed(stream)


async def read_and_tell(broker: RunningBroker, checker: Checker) -> None:
    for queue_id in range(QUEUES):
        headers, wrong = payload.decode(await broker.bodies(TOPIC, queue_id), RUN)
        checker.stored(queue_id, headers["stream"], headers["sequence"].astype(np.int64))
        checker.foreign(wrong, f"queue {queue_id}")


@pytest.mark.parametrize(
    ("deed", "kind"),
    [
        (Deed.DROP, "lost"),
        (Deed.DOUBLE, "twice"),
        (Deed.TURN, "order_breaks"),
        (Deed.INVENT, "invented"),
        (Deed.DAMAGE, "invented"),
    ],
)
async def test_what_a_dishonest_broker_did_to_messages_is_found_to_the_last_one(
    deed: Deed, kind: str, tmp_path: Path
) -> None:
    count = 0

    def now_and_then(_: pb.AppendRequest) -> Deed | None:
        nonlocal count
        count += 1
        return deed if count % 5 == 3 else None

    checker = Checker()
    async with dishonest_wire(tmp_path, now_and_then) as (cluster, broker, dishonest):
        await send_and_tell(cluster, checker)
        await read_and_tell(broker, checker)
    found = faults_of(checker.verdict())
    done = dishonest.done[deed]
    assert done >= 3
    if deed is Deed.TURN:
        # The last message of a batch comes first, and each of the others after a later one.
        assert 0 < found.pop(kind) < done
    else:
        assert found.pop(kind) == done
    if deed is Deed.INVENT:
        # It is stored before others of its stream.
        assert found.pop("order_breaks") <= done
    # A message with another number is missing under its own.
    assert found == ({"lost": done} if deed is Deed.DAMAGE else {})


async def test_an_honest_broker_is_not_accused(tmp_path: Path) -> None:
    checker = Checker()
    async with dishonest_wire(tmp_path, lambda _: None) as (cluster, broker, _):
        await send_and_tell(cluster, checker)
        await read_and_tell(broker, checker)
    verdict = checker.verdict()
    assert verdict.is_good, verdict.faults
    assert (verdict.sent, verdict.stored) == (STREAMS * MESSAGES, STREAMS * MESSAGES)
