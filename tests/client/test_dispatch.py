"""Destinations of batches, decided without a clock or a connection."""

import random
from collections import defaultdict

import pytest

from rockoon.errors import (
    BrokerUnavailable,
    Busy,
    NoWritableQueue,
    QueueNotFound,
    RockoonError,
    StoreNotWritable,
    TimedOut,
)
from rockoon.producer.accumulator import (
    MESSAGE_OVERHEAD_BYTES,
    Accumulator,
    BatchQueue,
    ProducerBatch,
)
from rockoon.producer.batch_scheduler import (
    PAUSE_SECONDS_MAX,
    SHIPMENT_BYTES_MAX,
    BatchScheduler,
    Shipment,
)
from rockoon.producer.queue_selectors import RoundRobin, crc32_key_hash, java_key_hash
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import Appended
from support.seeds import seeds

LINGER_SECONDS = 5.0
DELIVERY_SECONDS = 100.0


def queues_of(broker: str, count: int, topic: str = "orders") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


class Bench:
    """An accumulator and a dispatcher, and a clock that the test sets."""

    def __init__(self, in_flight_max: int = 8) -> None:
        self.accumulator = Accumulator(self.hurried)
        self.dispatcher = BatchScheduler(self.accumulator, in_flight_max)
        self.now = 0.0

    def hurried(self, batch_queue: BatchQueue) -> None:
        self.dispatcher.ready(batch_queue)

    def routes(self, *queues: MessageQueue, live: set[str] | None = None) -> None:
        topics = {queue.topic for queue in queues}
        for topic in topics:
            self.dispatcher.set_queues(topic, sorted(q for q in queues if q.topic == topic))
        self.dispatcher.set_live({queue.broker for queue in queues} if live is None else live)

    def batch_queue(self, queue: MessageQueue | None = None, topic: str = "orders") -> BatchQueue:
        if queue is None:
            return self.accumulator.round_robin.get(topic) or self.accumulator.open_round_robin(
                topic
            )
        return self.accumulator.by_queue.get(queue) or self.accumulator.open_by_queue(queue)

    def add(self, batch_queue: BatchQueue, body: bytes, *, close: bool = False) -> ProducerBatch:
        batch = batch_queue.batch
        batch.bodies.append(body)
        size = len(body) + MESSAGE_OVERHEAD_BYTES
        batch.bytes += size
        self.accumulator.unawaited_bytes += size
        if not batch.close_bytes:
            batch.close_bytes = 1 << 30
            batch.linger_end = self.now + LINGER_SECONDS
            batch.deadline = self.now + DELIVERY_SECONDS
            self.accumulator.pending[batch] = None
        if close:
            batch_queue.close_batch()
        self.dispatcher.ready(batch_queue)
        return batch

    def out(self) -> list[ProducerBatch]:
        return list(self.dispatcher.assignments(self.now))

    def acknowledge(self, batch: ProducerBatch) -> None:
        batch.ids, batch.lengths = b"", b""
        self.dispatcher.acknowledged(batch, Appended(), self.now)

    def refuse(self, batch: ProducerBatch, error: RockoonError, *, blame: bool = False) -> None:
        self.dispatcher.refused(batch, error, self.now, blame_broker=blame)


def queue_of(batch: ProducerBatch) -> MessageQueue:
    """Return the destination of a sent batch."""
    assert batch.queue is not None
    return batch.queue


def test_a_message_for_an_idle_broker_goes_at_once() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 2))
    batch = bench.add(bench.batch_queue(), b"one")
    assert bench.out() == [batch]


def test_while_the_broker_is_busy_a_batch_lingers_until_its_time_or_until_the_broker_is_idle() -> (
    None
):
    bench = Bench()
    bench.routes(*queues_of("broker-a", 4))
    first = bench.add(bench.batch_queue(), b"one")
    bench.out()
    second = bench.add(bench.batch_queue(), b"two")
    assert bench.out() == []
    assert bench.dispatcher.next_alarm() == second.linger_end
    bench.now = second.linger_end
    assert bench.out() == [second]

    third = bench.add(bench.batch_queue(), b"three")
    assert bench.out() == []
    bench.acknowledge(first)
    assert bench.out() == [], "the broker has the second batch"
    bench.acknowledge(second)
    assert bench.out() == [third]


def test_a_broker_that_becomes_idle_takes_what_lingers_for_other_queues_too() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 2)
    bench.routes(*queues)
    first = bench.add(bench.batch_queue(queues[0]), b"one")
    bench.out()
    second = bench.add(bench.batch_queue(queues[1]), b"two")
    assert bench.out() == []
    bench.acknowledge(first)
    assert bench.out() == [second]


def test_a_batch_that_somebody_awaits_does_not_linger() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 4))
    bench.add(bench.batch_queue(), b"one")
    bench.out()
    second = bench.add(bench.batch_queue(), b"two")
    assert bench.out() == []
    bench.accumulator.count_awaited(second, 0)
    assert bench.out() == [second]


def test_a_full_batch_does_not_linger() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 4))
    bench.add(bench.batch_queue(), b"one")
    bench.out()
    second = bench.add(bench.batch_queue(), b"two", close=True)
    assert bench.out() == [second]


def test_round_robin_gives_each_batch_the_next_queue_and_no_queue_two() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 2), *queues_of("broker-b", 1))
    for number in range(5):
        bench.add(bench.batch_queue(), b"%d" % number, close=True)
    out = bench.out()
    assert sorted(map(queue_of, out)) == [
        *queues_of("broker-a", 2),
        *queues_of("broker-b", 1),
    ]
    bench.acknowledge(out[1])
    assert [each.queue for each in bench.out()] == [out[1].queue]


def test_a_chosen_queue_has_one_batch_out_and_a_failed_one_goes_first() -> None:
    bench = Bench()
    queue = MessageQueue("orders", "broker-a", 1)
    bench.routes(*queues_of("broker-a", 4))
    first, second, third = (
        bench.add(bench.batch_queue(queue), b"%d" % number, close=True) for number in range(3)
    )
    assert bench.out() == [first]
    bench.refuse(first, Busy(reason="a test"))
    assert bench.out() == [], "it pauses before it tries again"
    alarm = bench.dispatcher.next_alarm()
    assert alarm is not None
    bench.now = alarm
    assert bench.out() == [first]
    bench.acknowledge(first)
    assert bench.out() == [second]
    bench.acknowledge(second)
    assert bench.out() == [third]


def test_round_robin_goes_around_a_broker_that_failed() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 2), *queues_of("broker-b", 2))
    batch = bench.add(bench.batch_queue(), b"one")
    assert bench.out() == [batch]
    first = queue_of(batch).broker
    bench.refuse(batch, StoreNotWritable(reason="a test"), blame=True)
    assert bench.out() == [batch]
    assert queue_of(batch).broker != first


def test_a_broker_has_no_more_than_its_share_in_flight_and_serves_lanes_in_turn() -> None:
    bench = Bench(in_flight_max=2)
    queues = queues_of("broker-a", 5)
    bench.routes(*queues)
    batches = [bench.add(bench.batch_queue(queue), b"x", close=True) for queue in queues]
    more = bench.add(bench.batch_queue(queues[0]), b"y", close=True)
    order = bench.out()
    assert order == batches[:2]
    for batch in (*batches, more):
        bench.acknowledge(batch)
        order += bench.out()
    assert order == [*batches, more]


def test_messages_for_a_topic_that_is_not_known_yet_wait_for_its_routes() -> None:
    bench = Bench()
    batch = bench.add(bench.batch_queue(), b"one")
    assert bench.out() == []
    bench.routes(*queues_of("broker-a", 1))
    assert bench.out() == [batch]


def test_messages_for_a_broker_that_is_away_wait_for_it() -> None:
    bench = Bench()
    queue = MessageQueue("orders", "broker-a", 0)
    bench.routes(queue, live=set())
    batch = bench.add(bench.batch_queue(queue), b"one")
    assert bench.out() == []
    bench.dispatcher.set_live({"broker-a"})
    assert bench.out() == [batch]


def test_a_broker_that_came_back_is_not_held_to_what_it_failed_with_before() -> None:
    bench = Bench()
    queue = MessageQueue("orders", "broker-a", 0)
    bench.routes(queue)
    batch = bench.add(bench.batch_queue(queue), b"one")
    bench.out()
    bench.refuse(batch, BrokerUnavailable(broker="broker-a"), blame=True)
    bench.dispatcher.set_live(set())
    bench.dispatcher.set_live({"broker-a"})
    assert bench.out() == [batch]


def test_another_process_for_a_broker_is_not_held_to_what_the_one_before_failed_with() -> None:
    bench = Bench()
    queue = MessageQueue("orders", "broker-a", 0)
    bench.routes(queue)
    batch = bench.add(bench.batch_queue(queue), b"one")
    bench.out()
    bench.refuse(batch, BrokerUnavailable(broker="broker-a"), blame=True)
    assert bench.out() == [], "it waits"
    bench.dispatcher.on_broker_restart("broker-a")
    assert bench.out() == [batch]


@pytest.mark.parametrize(
    ("live", "chosen", "expected"),
    [
        (set(), False, NoWritableQueue),
        (set(), True, BrokerUnavailable),
        ({"broker-a"}, True, TimedOut),
    ],
)
def test_an_overdue_batch_fails_with_what_stood_in_its_way(
    live: set[str], chosen: bool, expected: type[RockoonError]
) -> None:
    bench = Bench(in_flight_max=1)
    queue = MessageQueue("orders", "broker-a", 0)
    bench.routes(queue, live=live)
    batch_queue = bench.batch_queue(queue if chosen else None)
    if live:
        bench.add(batch_queue, b"in the way", close=True)
        bench.out()
    batch = bench.add(batch_queue, b"one")
    bench.out()
    assert bench.dispatcher.expire(batch.deadline - 1) == []
    assert bench.dispatcher.expire(batch.deadline) == [batch]
    assert isinstance(batch.outcome, expected)


def test_an_overdue_batch_that_was_refused_fails_with_the_last_refusal() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 1))
    batch = bench.add(bench.batch_queue(), b"one")
    bench.out()
    bench.refuse(batch, Busy(reason="the last"))
    bench.dispatcher.expire(DELIVERY_SECONDS)
    assert isinstance(batch.outcome, Busy)


def test_an_overdue_batch_that_was_never_sent_fails_with_what_its_broker_failed_with() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 2)
    bench.routes(*queues)
    first = bench.add(bench.batch_queue(queues[0]), b"one")
    bench.out()
    bench.refuse(first, StoreNotWritable(reason="full"), blame=True)
    second = bench.add(bench.batch_queue(queues[1]), b"two")
    assert bench.out() == []
    bench.dispatcher.expire(DELIVERY_SECONDS)
    assert isinstance(second.outcome, StoreNotWritable)


def test_bytes_are_counted_until_they_are_settled_and_an_awaited_message_is_its_awaiters() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 1))
    batch = bench.add(bench.batch_queue(), b"x" * 40)
    bench.add(bench.batch_queue(), b"y" * 40)
    assert bench.accumulator.unawaited_bytes == 400
    bench.accumulator.count_awaited(batch, 1)
    assert bench.accumulator.unawaited_bytes == 200
    assert bench.accumulator.buffered_bytes == 400
    bench.out()
    bench.acknowledge(batch)
    assert (bench.accumulator.unawaited_bytes, bench.accumulator.buffered_bytes) == (0, 0)


def test_lanes_of_topics_nobody_knows_do_not_stay() -> None:
    bench = Bench()
    batch = bench.add(bench.batch_queue(topic="no-such-topic"), b"one")
    # `send` uses these too: it would add messages where no sender takes them.
    bench.accumulator.plain["no-such-topic"] = batch.batch_queue
    bench.accumulator.drop_idle({"orders"})
    assert bench.accumulator.batch_queues() == [batch.batch_queue]
    batch.batch_queue.remove_head()
    bench.accumulator.complete(batch, QueueNotFound(topic="x", queue=0, broker="x"))
    bench.accumulator.drop_idle({"orders"})
    assert bench.accumulator.batch_queues() == []
    assert not bench.accumulator.plain


@pytest.mark.parametrize("seed", seeds(10))
def test_whatever_fails_lanes_keep_their_order_bounds_hold_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    in_flight_max = chance.randint(1, 4)
    bench = Bench(in_flight_max)
    brokers = ["broker-a", "broker-b", "broker-c"][: chance.randint(1, 3)]
    queues = [queue for broker in brokers for queue in queues_of(broker, chance.randint(1, 3))]
    bench.routes(*queues)
    for broker in brokers:
        bench.dispatcher.set_batches_max(broker, chance.choice([1, 2, 5]))
    batch_queues: list[MessageQueue | None] = [
        None,
        *chance.sample(queues, chance.randint(1, len(queues))),
    ]
    out: list[ProducerBatch] = []
    live = set(brokers)
    stored: dict[MessageQueue | None, list[int]] = defaultdict(list)
    sent = 0

    # With few messages at a time, each is alone.
    added = chance.choice([0.35, 0.05])

    def handed_out() -> list[ProducerBatch]:
        pending = list(bench.accumulator.pending)
        if len(pending) == 1 and pending[0] not in out and chance.random() < 0.5:
            batch = bench.dispatcher.assigned_single(pending[0].batch_queue, bench.now)
            return [] if batch is None else [batch]
        return list(bench.dispatcher.assignments(bench.now))

    def step(*, calm: bool) -> None:
        nonlocal sent
        what = chance.random()
        if not calm and what < added:
            queue = chance.choice(batch_queues)
            bench.add(bench.batch_queue(queue), b"%d" % sent, close=chance.random() < 0.5)
            sent += 1
        elif out and what < 0.6:
            done = out.pop(chance.randrange(len(out)))
            stored[done.batch_queue.queue] += [int(body) for body in done.bodies]
            bench.acknowledge(done)
        elif out and not calm and what < 0.7:
            gone = out.pop(chance.randrange(len(out)))
            bench.refuse(gone, Busy(reason="chance"), blame=chance.random() < 0.5)
        elif not calm and what < 0.75:
            broker = chance.choice(brokers)
            live.symmetric_difference_update({broker})
            bench.dispatcher.set_live(live)
        bench.now += chance.random()
        for batch in handed_out():
            assert queue_of(batch).broker in live
            out.append(batch)
            batch_queue = batch.batch_queue
            same = [each for each in out if each.batch_queue is batch_queue]
            assert len({each.queue for each in same}) == len(same), "two batches for one queue"
            assert len(same) == 1 or batch_queue.queue is None, "a chosen queue has two batches out"
            at_broker = {
                each.shipment for each in out if queue_of(each).broker == queue_of(batch).broker
            }
            assert len(at_broker) <= in_flight_max

    for _ in range(400):
        step(calm=False)
    bench.dispatcher.set_live(brokers)
    live = set(brokers)
    for _ in range(4000):
        if not bench.accumulator.pending:
            break
        step(calm=True)
    assert not bench.accumulator.pending, "a batch was left standing somewhere"
    assert bench.accumulator.buffered_bytes == 0
    assert sum(len(numbers) for numbers in stored.values()) == sent
    for queue, numbers in stored.items():
        if queue is not None:
            assert numbers == sorted(numbers), queue


def shipments(out: list[ProducerBatch]) -> list[list[ProducerBatch]]:
    """Return the batches of each shipment, in the order of their sending."""
    found: dict[Shipment, list[ProducerBatch]] = {}
    for each in out:
        assert each.shipment is not None
        found.setdefault(each.shipment, []).append(each)
    return list(found.values())


def test_batches_of_many_queues_go_together_to_a_broker_that_takes_them() -> None:
    bench = Bench(in_flight_max=2)
    here, there = queues_of("broker-a", 7), queues_of("broker-b", 2)
    bench.routes(*here, *there)
    bench.dispatcher.set_batches_max("broker-a", 3)
    batches = [bench.add(bench.batch_queue(queue), b"x", close=True) for queue in (*here, *there)]
    first, second, *alone = shipments(bench.out())
    assert first + second == batches[:6], "the seventh waits for a slot"
    assert len(first) == 3
    assert alone == [[batches[7]], [batches[8]]], "an older broker gets them one by one"
    bench.acknowledge(first[0])
    bench.refuse(first[1], Busy(reason="its queue"))
    assert bench.out() == [], "the slot is free when all of the shipment are answered for"
    bench.acknowledge(first[2])
    assert shipments(bench.out()) == [[batches[6]]]


def test_a_shipment_has_no_more_bytes_than_a_broker_takes_at_once() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 3)
    bench.routes(*queues)
    bench.dispatcher.set_batches_max("broker-a", 100)
    body = bytes(SHIPMENT_BYTES_MAX // 2)
    for queue in queues:
        bench.add(bench.batch_queue(queue), body, close=True)
    assert list(map(len, shipments(bench.out()))) == [1, 1, 1]
    small = [bench.add(bench.batch_queue(queue), b"x", close=True) for queue in queues]
    assert bench.out() == [], "each queue has one out"
    for batch in list(bench.accumulator.pending):
        if batch not in small:
            bench.acknowledge(batch)
    assert shipments(bench.out()) == [small]


def test_an_idle_broker_takes_what_could_linger_along_and_a_busy_one_does_not() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 4)
    bench.routes(*queues)
    bench.dispatcher.set_batches_max("broker-a", 100)
    first = [bench.add(bench.batch_queue(queue), b"x") for queue in queues[:2]]
    assert shipments(bench.out()) == [first]
    lingering = bench.add(bench.batch_queue(queues[2]), b"y")
    full = bench.add(bench.batch_queue(queues[3]), b"z", close=True)
    assert shipments(bench.out()) == [[full]]
    for batch in (*first, full):
        bench.acknowledge(batch)
    bench.now = PAUSE_SECONDS_MAX
    assert shipments(bench.out()) == [[lingering]]


def test_what_lingers_goes_when_the_broker_is_idle_though_it_was_given_something_meanwhile() -> (
    None
):
    bench = Bench()
    queues = queues_of("broker-a", 3)
    bench.routes(*queues)
    bench.dispatcher.set_batches_max("broker-a", 100)
    first = bench.add(bench.batch_queue(queues[0]), b"x")
    assert shipments(bench.out()) == [[first]]
    bench.now = 0.001
    lingering = bench.add(bench.batch_queue(queues[1]), b"y")
    awaited = bench.add(bench.batch_queue(queues[2]), b"z")
    bench.accumulator.count_awaited(awaited, 0)
    assert shipments(bench.out()) == [[awaited]]
    bench.now = 0.01
    for batch in (first, awaited):
        bench.acknowledge(batch)
    assert bench.now < lingering.linger_end
    assert shipments(bench.out()) == [[lingering]]


def test_whoever_sends_to_many_queues_pauses_until_batches_are_worth_it() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 200)
    bench.routes(*queues)
    bench.dispatcher.set_batches_max("broker-a", 1000)

    def turn(count: int) -> list[ProducerBatch]:
        return [bench.add(bench.batch_queue(queue), b"x") for queue in queues[:count]]

    many = turn(200)
    assert shipments(bench.out()) == [many]
    for batch in many:
        bench.acknowledge(batch)
    again = turn(50)
    assert bench.out() == [], "the broker is idle, but the last shipment had 200 batches"
    awaited = bench.add(bench.batch_queue(queues[60]), b"x")
    bench.accumulator.count_awaited(awaited, 0)
    full = bench.add(bench.batch_queue(queues[61]), b"x", close=True)
    assert shipments(bench.out()) == [[awaited, full]], "neither waits for more messages"
    for batch in (awaited, full):
        bench.acknowledge(batch)
    assert bench.out() == []
    alarm = bench.dispatcher.next_alarm()
    assert alarm is not None
    assert 0 < alarm <= PAUSE_SECONDS_MAX
    bench.now = alarm
    assert shipments(bench.out()) == [again]


def test_nobody_pauses_for_a_sender_that_waits_for_room() -> None:
    bench = Bench()
    queues = queues_of("broker-a", 2)
    bench.routes(*queues)
    bench.dispatcher.set_batches_max("broker-a", 100)
    first = bench.add(bench.batch_queue(queues[0]), b"x")
    bench.out()
    bench.acknowledge(first)
    second = bench.add(bench.batch_queue(queues[0]), b"x")
    assert bench.out() == []
    bench.dispatcher.end_pauses()
    assert shipments(bench.out()) == [[second]]


def test_round_robin_passes_over_what_is_not_usable_and_tells_when_nothing_is() -> None:
    queues = queues_of("broker-a", 4)
    turn = RoundRobin(start=3)
    assert [turn.choose(queues, lambda _: True) for _ in range(3)] == [
        queues[3],
        queues[0],
        queues[1],
    ]
    assert turn.choose(queues, lambda queue: queue.queue_id == 1) == queues[1]
    assert turn.choose(queues, lambda _: False) is None


def test_a_key_has_one_hash_on_every_machine() -> None:
    assert [crc32_key_hash(key) % 8 for key in ("a", "b", "ключ")] == [3, 1, 2]
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE; Java's remainder of it by 7 is -2.
    assert java_key_hash("polygenelubricants") % 7 == 2
    assert java_key_hash("user-1") == 836031825


def test_a_batch_handed_out_alone_has_a_shipment_of_its_own_and_others_are_found_again() -> None:
    bench = Bench(in_flight_max=2)
    bench.routes(*queues_of("broker-a", 2))
    bench.dispatcher.set_batches_max("broker-a", 5)
    empty = bench.batch_queue(queues_of("broker-a", 2)[1])
    bench.dispatcher.ready(empty)
    first = bench.add(bench.batch_queue(queues_of("broker-a", 2)[0]), b"one")
    assert bench.dispatcher.assigned_single(first.batch_queue, bench.now) is first
    second = bench.add(empty, b"two", close=True)
    assert bench.out() == [second]
    assert second.shipment is not first.shipment
    bench.acknowledge(first)
    assert second.shipment is not None
    assert second.shipment.unanswered == 1


def test_a_batch_that_may_not_go_is_left_for_its_alarm() -> None:
    bench = Bench()
    bench.routes(*queues_of("broker-a", 1))
    batch = bench.add(bench.batch_queue(), b"one")
    assert bench.out() == [batch]
    bench.refuse(batch, StoreNotWritable(reason="a test"), blame=True)
    assert bench.dispatcher.assigned_single(batch.batch_queue, bench.now) is None
    alarm = bench.dispatcher.next_alarm()
    assert alarm is not None
    bench.now = alarm
    assert bench.dispatcher.assigned_single(batch.batch_queue, bench.now) is batch
