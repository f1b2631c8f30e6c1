"""Parts of receivers, without a cluster: lines, kept batches, offsets as bits."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

import rockoon
from rockoon.consumer.pull import Pulled
from rockoon.errors import Internal, QueueHeld
from rockoon.message import Batch, Message
from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.acquirer import (
    Acquirer,
    PendingAcquire,
    ReceivingGroup,
    known_end_of,
    new_known_end,
    with_backlog,
)
from rockoon.receiving.engine import keep_topics
from rockoon.receiving.granting import (
    AcquiredMessages,
    DeadLettering,
    Granting,
    _matches,
    _undamaged,
)
from rockoon.receiving.kept_batches import KeptBatches, separate_group_hash
from rockoon.receiving.offset_reader import REFUSED_MAX, MatchedMessages, OffsetReader, Reading
from rockoon.receiving.receive_queue import (
    SHARES_MAX,
    ReceiveKey,
    ReceiveQueue,
    ReceiverName,
    WaitingReceiver,
)
from rockoon.receiving.received import ReceiptHandle, ReceivedMessages, ReceivedRun
from rockoon.receiving.settler import by_acquisition, mask_of, offsets_of
from rockoon.receiving.tail_reader import TailReader, TrackedQueue
from rockoon.subscription import Subscription
from rockoon_core.message_queue import ACQUIRES_PER_CALL_MAX, MessageQueue, queue_to_wire
from rockoon_format.record import Record, encode_host, encode_record
from rockoon_proto.v1.in_flight_pb2 import Acquired
from support.eventually import eventually
from support.fake_cluster import FakeCluster

QUEUE = MessageQueue("orders", "broker-a", 0)
HOST = encode_host("127.0.0.1", 10911)
ME = ReceiverName("receiver")


def pulled(offsets: Sequence[int], next_offset: int) -> Pulled:
    frames = [
        encode_record(
            Record(
                topic=b"orders",
                queue_id=0,
                queue_offset=offset,
                physical_offset=1000 * offset,
                body=b"%d" % offset,
                properties=b"",
                born_timestamp_ms=1,
                born_host=HOST,
                store_timestamp_ms=1,
                store_host=HOST,
            )
        )
        for offset in offsets
    ]
    lengths = np.array([len(frame) for frame in frames], dtype="<u4")
    whole = b"".join(frames)
    batch = Batch(QUEUE, whole, lengths) if frames else None
    is_run = bool(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1
    places = range(offsets[0], offsets[-1] + 1) if is_run else offsets
    return Pulled(batch, places, next_offset, len(whole), next_offset)


def messages(count: int) -> ReceivedMessages:
    batch = pulled(range(count), count).batch
    assert batch is not None
    return ReceivedMessages([ReceivedRun(QUEUE, 1, 1, 0, batch, range(count), range(count))])


@given(st.lists(st.integers(0, 5)) | st.lists(st.integers(0, 3000)), st.integers(0, 1 << 40))
@example([5, 6, 6, 8], 0)
def test_offsets_come_back_from_their_bits_however_often_one_is_named(
    some: list[int], first: int
) -> None:
    offsets = [first + each for each in some]
    assert offsets_of(first, mask_of(offsets, first)) == sorted(set(offsets))


@pytest.mark.parametrize("distance", [1 << bits for bits in range(4, 21)])
def test_made_up_handles_make_no_masks_that_are_much_larger_than_they(distance: int) -> None:
    pairs = [(at * distance, at * distance + distance - 1) for at in range(512)]
    receipts = [ReceiptHandle(QUEUE, 7, offset) for pair in pairs for offset in pair]
    masks = [mask_of(offsets, min(offsets)) for offsets in by_acquisition(receipts).values()]
    assert sum(map(len, masks)) <= 1 << 20


def test_of_queues_that_are_gone_a_group_knows_nothing() -> None:
    group = ReceivingGroup("billing")
    gone = QUEUE._replace(topic="gone")
    for queue in (QUEUE, gone):
        group.joined.add(queue.topic)
        group.acquired_ends[queue] = group.min_candidates[queue] = 7
        group.refusals_logged.add((queue, QueueHeld))
    keep_topics(group, {QUEUE.topic})
    assert group.joined == {QUEUE.topic}
    assert group.acquired_ends == group.min_candidates == {QUEUE: 7}
    assert group.refusals_logged == {(QUEUE, QueueHeld)}


def test_kept_batches_say_what_a_queue_has_and_what_it_does_not_have() -> None:
    kept = KeptBatches()
    kept.put(QUEUE, 10, pulled([10, 11, 12], 13), 1.0)
    kept.put(QUEUE, 13, pulled([14, 17], 20), 2.0)
    kept.put(QUEUE, 20, pulled([], 30), 3.0)
    found = {}
    for offset in range(8, 32):
        covers = kept.find(QUEUE, offset)
        found[offset] = None if covers is None else covers.index(offset)
    assert [offset for offset in found if kept.find(QUEUE, offset) is None] == [8, 9, 30, 31]
    assert {offset: at for offset, at in found.items() if at is not None} == {
        10: 0,
        11: 1,
        12: 2,
        14: 0,
        17: 1,
    }
    first, second = kept.find(QUEUE, 10), kept.find(QUEUE, 13)
    assert first is not None
    assert second is not None
    assert (first.holds_all([10, 12]), first.holds_all([12, 13])) == (True, False)
    assert not second.holds_all([14, 17])
    assert kept.find(MessageQueue("orders", "broker-a", 1), 10) is None
    kept.drop_older(2.0)
    assert (kept.find(QUEUE, 10), kept.find(QUEUE, 13)) == (None, second)
    kept.drop_queue(QUEUE)
    assert kept.find(QUEUE, 13) is None


async def test_what_retention_has_deleted_is_a_candidate_that_waits_for_no_other() -> None:
    kept = KeptBatches()
    kept.put(QUEUE, 12, pulled([12, 13], 14), 1.0)
    nobody: Any = None
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE), min_offset=12, end_offset=14)
    groups = await OffsetReader(nobody, kept, nobody).message_groups(tail, 10, 14)
    assert groups == [separate_group_hash(10), separate_group_hash(11), 0, 0]


async def test_messages_of_a_retry_topic_wait_for_no_other() -> None:
    nobody: Any = None
    queue = QUEUE._replace(topic="%RETRY%billing")
    tail = TrackedQueue(queue, 1, queue_to_wire(queue), end_offset=2)
    groups = await OffsetReader(nobody, nobody, nobody).message_groups(tail, 0, 2)
    assert groups == [separate_group_hash(0), separate_group_hash(1)]


def damaged_last() -> Batch:
    """Messages 3 and 4, the latter damaged."""
    batches = [pulled([offset], 0).batch for offset in (3, 4)]
    sound, other = (Message(batch, 0).record for batch in batches if batch is not None)
    # After the body are a length, the topic, and a length.
    at = len(other) - len("orders") - 4
    whole = sound + other[:at] + b"5" + other[at + 1 :]
    return Batch(QUEUE, whole, np.array([len(sound), len(other)], dtype="<u4"))


def test_a_damaged_message_is_of_no_message_group() -> None:
    kept = KeptBatches()
    batch = damaged_last()
    found = kept.put(QUEUE, 3, Pulled(batch, range(3, 5), 5, batch.size_bytes, 5), 1.0)
    assert found.message_groups(3, 5) == [0, separate_group_hash(4)]


def test_what_is_damaged_is_no_dead_letter_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    batch = damaged_last()
    reading = Reading(found=[MatchedMessages(batch, [3, 4], [0, 1])], damaged=[9])
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE))
    assert _undamaged("billing", tail, reading) == [(3, batch, 0)]
    assert reading.damaged == [9, 4]
    # Nor does a filter exclude it, which would be the same as to acknowledge it.
    of_tag = Subscription.parse("orders", "paid")
    assert [_matches(of_tag, batch, index) for index in range(2)] == [False, True]
    assert all(each in caplog.text for each in ("billing", "orders", "[9, 4]"))


class Reads:
    """A reader of a queue with one reply."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    async def read(self, _tail: TrackedQueue, _offsets: Sequence[int]) -> Reading:
        return self.reading


class Settles:
    """A settler that records acknowledged and returned messages."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.given_back: list[int] = []

    async def change(
        self, _group: str, receipts: Sequence[ReceiptHandle], _after_ms: int, *, uncounted: bool
    ) -> None:
        assert uncounted
        self.given_back += [each.offset for each in receipts]

    async def acknowledge(self, _group: str, receipts: Sequence[ReceiptHandle]) -> list[bool]:
        self.offsets += [each.offset for each in receipts]
        return [True] * len(receipts)


def burying(
    monkeypatch: pytest.MonkeyPatch, reading: Reading, buried: list[int]
) -> tuple[Granting, Settles]:
    """Distribution of messages from such a read, if brokers store these as dead letters."""

    async def store(*_: object) -> list[int]:
        return buried

    monkeypatch.setattr(DeadLettering, "store", store)
    nobody: Any = None
    reader: Any = Reads(reading)
    settler: Any = Settles()
    return Granting(nobody, nobody, reader, settler), settler


async def test_what_no_broker_has_stored_as_a_dead_letter_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = pulled([3, 4], 5).batch
    assert batch is not None
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE))
    reading = Reading(found=[MatchedMessages(batch, [3, 4], [0, 1])])
    granting, settler = burying(monkeypatch, reading, [3])
    acquired = Acquired(acquisition=1, attempt=17, dead=True)
    assert await granting._store_dead_letters(
        "billing", AcquiredMessages(tail, acquired, [3, 4], ME)
    ) == [3]
    assert settler.offsets == [3]
    receipts = [ReceiptHandle(QUEUE, 1, offset) for offset in (3, 4)]
    assert not await granting.dead_letter("billing", tail, receipts, "why")


async def test_many_groups_that_ask_at_once_share_calls_of_a_bounded_size() -> None:
    groups = [ReceivingGroup(f"group-{number}") for number in range(ACQUIRES_PER_CALL_MAX + 200)]
    orders = (Subscription.parse("orders", "*"),)
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        await cluster.route("orders")
        kept = KeptBatches()
        tails = TailReader(cluster, kept, lambda _: None)
        answered = asyncio.Event()

        def take(acquire: PendingAcquire, _: object) -> int:
            left.discard(acquire.group.name)
            if not left:
                answered.set()
            return 0

        acquirer = Acquirer(cluster, tails, OffsetReader(cluster, kept, tails), take)
        left = {group.name for group in groups}
        topic = tails.of("orders")
        await eventually(lambda: topic.is_ready)
        for group in groups:
            receive_queue = ReceiveQueue(
                ReceiveKey(group.name, orders, 1000, ConsumeFrom.GROUP), has_own_call=False
            )
            receive_queue.add(WaitingReceiver(1, ME, ""))
            acquirer.receiver_added(receive_queue, group, wait_seconds=0.0)
        async with asyncio.timeout(30):
            await answered.wait()
        await acquirer.close(1.0)
        tails.close()
        sizes = [len(call) for call in fake.offset.in_flight.wished]
        assert sorted(sizes[:2]) == [200, ACQUIRES_PER_CALL_MAX]


async def test_where_a_disk_fails_nothing_is_damaged_and_what_lies_behind_is_read() -> None:
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE), min_offset=0, end_offset=12)
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        fake.create_topic("orders")
        fake.append("orders", [b"%d" % each for each in range(12)])
        broker = fake.brokers["broker-a"]

        async def read(offsets: Sequence[int]) -> Reading:
            kept = KeptBatches()
            tails = TailReader(cluster, kept, lambda _: None)
            tails.of("orders")
            return await OffsetReader(cluster, kept, tails).read(tail, offsets)

        broker.refused = {("orders", 0, 1)}
        broker.damaged = {("orders", 0, 2)}
        reading = await read(range(4))
        assert [each for found in reading.found for each in found.offsets] == [0, 3]
        assert (reading.unread, reading.damaged) == ([1], [2])
        assert tail.failure is None

        broker.refused = {("orders", 0, each) for each in range(12)}
        reading = await read(range(12))
        assert (reading.unread, reading.damaged) == (list(range(12)), [])
        assert isinstance(tail.failure, Internal)
        assert broker.pulls[-1] == ("orders", 0, REFUSED_MAX)


class NeverAsks:
    """An acquirer that acquires nothing more."""

    def update_tracking(self, *_: object) -> None:
        pass

    make_due = messages_settled = update_tracking


async def test_in_a_fifo_group_nothing_is_given_out_behind_what_cannot_be_read_now() -> None:
    batch = pulled(range(5), 5).batch
    assert batch is not None
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE))
    reader: Any = Reads(Reading(found=[MatchedMessages(batch, [0, 3], [0, 3])], unread=[1]))
    settler: Any = Settles()
    nobody: Any = None
    acquirer: Any = NeverAsks()
    row = Row(9)
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        granting = Granting(cluster, nobody, reader, settler)
        granting.set_acquirer(acquirer)
        acquire = PendingAcquire(
            row.receive_queue,
            ReceivingGroup("group"),
            1,
            9,
            row.receivers[0],
            [ME],
            pending_reads=1,
        )
        shares = [
            AcquiredMessages(tail, Acquired(acquisition=number, attempt=1), offsets, ME)
            for number, offsets in ((1, [0, 1, 3]), (2, [2, 4]))
        ]
        await granting._read(acquire, shares, {})
        assert row.got == [[0]]
        await eventually(lambda: sorted(settler.given_back) == [1, 2, 3, 4])
        await granting.close(1.0)


async def test_a_release_that_is_cancelled_before_its_first_step_leaves_no_open_coroutine() -> None:
    nobody: Any = None
    async with FakeCluster() as fake, rockoon.connect(fake.address) as cluster:
        granting = Granting(cluster, nobody, nobody, nobody)

        async def work() -> None:
            raise AssertionError("it must not start")

        coroutine = work()
        granting.start_task(coroutine)
        for task in granting._tasks:
            task.cancel()
        await eventually(lambda: not granting._tasks)
        # Otherwise Python warns that it was never awaited.
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


async def test_what_cannot_be_read_now_is_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pulled([3], 4).batch
    assert batch is not None
    tail = TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE))
    granting, settler = burying(
        monkeypatch, Reading(found=[MatchedMessages(batch, [3], [0])], unread=[4]), [3]
    )
    receipts = [ReceiptHandle(QUEUE, 1, offset) for offset in (3, 4)]
    assert not await granting.dead_letter("billing", tail, receipts, "why")
    acquired = Acquired(acquisition=1, attempt=17, dead=True)
    assert await granting._store_dead_letters(
        "billing", AcquiredMessages(tail, acquired, [3, 4], ME)
    ) == [3]
    assert settler.offsets == [3]


def test_what_is_read_again_replaces_what_was_kept() -> None:
    kept = KeptBatches()
    kept.put(QUEUE, 10, pulled([10], 11), 1.0)
    again = kept.put(QUEUE, 10, pulled([10, 11], 12), 2.0)
    assert kept.find(QUEUE, 11) is again
    kept.drop_older(2.0)
    assert kept.find(QUEUE, 10) is again


def test_the_oldest_make_room() -> None:
    size = pulled([0], 1).size_bytes
    kept = KeptBatches(bytes_max=3 * size)
    for offset in range(10):
        kept.put(QUEUE, offset, pulled([offset], offset + 1), float(offset))
    assert [each for each in range(10) if kept.find(QUEUE, each)] == [7, 8, 9]
    few = KeptBatches(batches_max=2)
    for offset in range(10):
        few.put(QUEUE, offset, pulled([offset], offset + 1), float(offset))
    assert [each for each in range(10) if few.find(QUEUE, each)] == [8, 9]
    huge = KeptBatches(bytes_max=1)
    assert huge.put(QUEUE, 0, pulled([0, 1], 2), 0.0).index(1) == 1
    assert huge.find(QUEUE, 0) is None


class Row:
    """A line, and its receivers in the order of their arrival."""

    def __init__(self, *messages_max: int) -> None:
        subscription = Subscription.parse("orders", "*")
        self.receive_queue = ReceiveQueue(
            ReceiveKey("group", (subscription,), 1000, ConsumeFrom.GROUP)
        )
        self.receivers = [WaitingReceiver(each, ME, "") for each in messages_max]
        for receiver in self.receivers:
            self.receive_queue.add(receiver)

    @property
    def wanted(self) -> int:
        """Return the number of messages to acquire."""
        return self.receive_queue.shares().get(ME, 0)

    @property
    def got(self) -> list[list[int] | None]:
        return [
            [each.queue_offset for each in receiver.messages.result()]
            if receiver.messages.done()
            else None
            for receiver in self.receivers
        ]


def test_received_messages_are_a_sequence_that_is_cut_without_making_any() -> None:
    batch = pulled(range(9), 9).batch
    assert batch is not None
    bounds = ((0, 4), (4, 5), (5, 9))
    runs = [
        ReceivedRun(QUEUE, first, 1, 0, batch, range(first, end), list(range(first, end)))
        for first, end in bounds
    ]
    every, plain = ReceivedMessages(runs), list(range(9))
    cuts = [slice(*each) for each in [(None, None), (3, 6), (4, 5), (9,), (-2, None), (7, 2)]]
    for cut in [*cuts, slice(None, None, 3), slice(None, None, -1)]:
        part = every[cut]
        assert [each.queue_offset for each in part] == plain[cut]
        assert [each.offset for each in part.receipts] == plain[cut]
        assert len(part) == len(plain[cut])
    assert every[:4].runs == runs[:1]
    assert [every[at].queue_offset for at in (0, 4, -1)] == [0, 4, 8]
    assert [each.receipt for each in every] == every.receipts
    for at in (9, -10):
        with pytest.raises(IndexError):
            every[at]


def test_a_reading_knows_messages_by_kept_ranges_and_what_is_gone_between_them() -> None:
    kept = KeptBatches()
    kept.put(QUEUE, 0, pulled([0, 1, 2], 3), 1.0)
    kept.put(QUEUE, 3, pulled([4, 6], 8), 1.0)
    kept.put(QUEUE, 8, pulled([], 9), 1.0)
    nobody: Any = None
    reading = OffsetReader(nobody, kept, nobody).kept(
        TrackedQueue(QUEUE, 1, queue_to_wire(QUEUE)), [0, 2, 3, 4, 5, 6, 8, 9, 10]
    )
    assert [(list(each.offsets), list(each.indices)) for each in reading.found] == [
        ([0, 2], [0, 2]),
        ([4, 6], [0, 1]),
    ]
    assert (reading.gone, reading.unread) == ([3, 5, 8], [9, 10])
    chosen, rest = reading.found[1].split(lambda _, index: index == 1)
    assert (chosen.offsets, chosen.indices, rest.offsets, rest.indices) == ([6], [1], [4], [0])


async def test_the_first_in_line_get_first_and_what_is_left_is_said() -> None:
    row = Row(2, 3, 4)
    assert row.wanted == 9
    assert not row.receive_queue.deliver(ME, messages(3))
    assert row.got == [[0, 1], [2], None]
    assert row.wanted == 4
    left = row.receive_queue.deliver(ME, messages(6))
    assert [each.queue_offset for each in left] == [4, 5]
    assert row.wanted == 0
    assert row.receive_queue.deliver(ME, messages(1))


async def test_who_has_left_gets_nothing() -> None:
    row = Row(1, 1)
    row.receive_queue.remove(row.receivers[0])
    row.receive_queue.remove(row.receivers[0])
    row.receivers[1].messages.cancel()
    assert len(row.receive_queue.deliver(ME, messages(2))) == 2
    assert row.wanted == 0
    assert row.receive_queue.deliver_to(row.receivers[0], messages(1))


async def test_a_receiver_stays_until_it_was_asked_for_once() -> None:
    row = Row(1)
    receiver = row.receivers[0]
    row.receive_queue.expire(receiver)
    assert row.got == [None]
    row.receive_queue.calls_started += 1
    row.receive_queue.call_done(0)
    assert row.got == [None]
    row.receive_queue.call_done(1)
    assert row.got == [[]]
    late = WaitingReceiver(1, ME, "")
    row.receive_queue.add(late)
    row.receive_queue.calls_started += 1
    row.receive_queue.call_done(2)
    row.receive_queue.expire(late)
    assert not late.messages.result()


async def test_a_failure_ends_all_or_those_whose_time_is_over() -> None:
    row = Row(1, 1)
    row.receive_queue.expire(row.receivers[1])
    failure = RuntimeError("gone")
    row.receive_queue.fail(failure, row.receive_queue.expired)
    assert row.receivers[1].messages.exception() is failure
    assert not row.receivers[0].messages.done()
    row.receive_queue.fail(failure)
    assert row.receivers[0].messages.exception() is failure
    assert row.wanted == 0


async def test_what_is_being_read_is_not_asked_for_again() -> None:
    row = Row(10)
    row.receive_queue.start_reading(ME, 7)
    assert row.wanted == 3
    row.receive_queue.factor = 8
    assert row.wanted == 73
    row.receive_queue.factor = 1024
    assert row.wanted == 1024
    with pytest.raises(asyncio.InvalidStateError):
        row.receivers[0].messages.result()


def test_on_uvloop_a_line_that_is_due_now_can_be_made_due_again() -> None:
    async def make_due_twice() -> None:
        nobody: Any = None
        acquirer = Acquirer(nobody, nobody, nobody, nobody)
        row = Row(1)
        for _ in range(2):
            acquirer.make_due_in(row.receive_queue, ReceivingGroup("group"), 0.0)
        assert row.receive_queue.timer is not None
        row.receive_queue.timer.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(make_due_twice())


async def test_messages_that_one_name_holds_are_given_to_its_receivers_only() -> None:
    row = Row(1, 1)
    other = ReceiverName("other")
    row.receivers.append(WaitingReceiver(4, other, ""))
    row.receive_queue.add(row.receivers[-1])
    assert row.receive_queue.shares() == {ME: 2, other: 4}
    row.receive_queue.start_reading(other, 3)
    assert row.receive_queue.shares() == {ME: 2, other: 1}
    assert len(row.receive_queue.deliver(other, messages(6))) == 2
    assert row.got == [None, None, [0, 1, 2, 3]]
    assert len(row.receive_queue.deliver(other, messages(1))) == 1
    row.receive_queue.end_reading(other, 3)
    assert row.receive_queue.shares() == {ME: 2}
    assert not row.receive_queue.is_idle
    assert not row.receive_queue.deliver(ME, messages(2))
    assert row.receive_queue.is_idle


async def test_of_many_names_those_that_have_waited_longest_are_asked_for() -> None:
    row = Row()
    names = [ReceiverName(f"receiver-{number}") for number in range(SHARES_MAX + 2)]
    for name in names:
        row.receive_queue.add(WaitingReceiver(1, name, ""))
    assert row.receive_queue.shares() == dict.fromkeys(names[:SHARES_MAX], 1)
    row.receive_queue.add(WaitingReceiver(1024, names[0], ""))
    assert sum(row.receive_queue.shares().values()) <= 1024


def test_queues_that_hold_enough_are_named_and_no_others() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(5)]
    tails = [TrackedQueue(each, 1, queue_to_wire(each), end_offset=10) for each in queues]
    tails[0].end_offset = 0
    # The second is read to its end; the third is unknown.
    acquired_ends = {queues[1]: 10, queues[3]: 7, queues[4]: 0}
    assert with_backlog(tails, acquired_ends, 3) == tails[2:4]
    assert with_backlog(tails, acquired_ends, 13) == tails[2:]
    assert with_backlog(tails, acquired_ends, 14) == []
    assert with_backlog(tails, {}, 1) == []


async def test_all_queues_are_named_once_a_second() -> None:
    key = ReceiveKey("group", (Subscription.parse("orders", "*"),), 1000, ConsumeFrom.GROUP)
    receive_queue = ReceiveQueue(key)
    assert [receive_queue.may_be_partial(now) for now in (5.0, 5.5, 5.9, 6.1, 6.2)] == [
        False, True, True, False, True,
    ]  # fmt: skip
    receive_queue.full_until = 7.0
    assert not receive_queue.may_be_partial(6.3)
    assert receive_queue.may_be_partial(7.1)


def test_a_queue_is_named_anew_when_it_has_grown() -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    tail = TrackedQueue(queue, 1, queue_to_wire(queue), end_offset=10)
    assert known_end_of(tail) is known_end_of(tail)
    tail.end_offset = 11
    assert known_end_of(tail).end_offset == 11
    tail.min_offset = 4
    assert known_end_of(tail).min_offset == 4
    assert new_known_end(tail) is not known_end_of(tail)
