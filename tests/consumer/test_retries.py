"""Messages on which a handler failed: sent back, sent elsewhere, retried here, or dropped."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon.cluster import Cluster
from rockoon.consumer.consume_result import ConsumeResult
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.consumer.retry import DroppingRedelivery, RetryPolicy, RetryStatistics, split_calls
from rockoon.errors import InvalidArgument, NotReady, StoreNotWritable
from rockoon.message import Message
from rockoon.offsets.start import Position, facts_of, start_on
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import GroupRules, NewQueueRule, QueueState
from rockoon_proto.v1.broker_pb2 import FailedMessage
from support.consumer_settings import grouped
from support.eventually import eventually
from support.fake_cluster import FakeCluster

PLACE = ("orders", "broker-a", 0)
RETRY = MessageQueue("%RETRY%billing", "broker-a", 0)
SOON = LocalRedelivery(first_seconds=0.01, seconds_max=0.02)
POLICY = RetryPolicy(local=SOON)


class Handler:
    """Fails on every body as often as the test requests."""

    def __init__(self, **failures: int) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self.messages: list[Message] = []
        self._failures = {body.encode(): count for body, count in failures.items()}

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self.seen.append((message.body, message.attempt))
        left = self._failures.get(message.body, 0)
        if left:
            self._failures[message.body] = left - 1
            raise RuntimeError(f"told to fail on {message.body!r}")

    def attempts(self, body: bytes) -> list[int]:
        return [attempt for seen, attempt in self.seen if seen == body]


def consumer_of(cluster: Cluster, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "commit_seconds": 0.02,
        "redelivery": POLICY,
        **settings,
    }
    return cluster.push_consumer("billing", {"orders": "*"}, handler, **grouped(chosen))


def told(fake: FakeCluster, broker: str = "broker-a") -> list[FailedMessage]:
    requests = [request for request, _ in fake.brokers[broker].sent_back]
    return [failed for request in requests for failed in request.messages]


def dead_letters(fake: FakeCluster, broker: str = "broker-a") -> int:
    queue = fake.brokers[broker].queues.get(("%DLQ%billing", 0))
    return queue.max_offset if queue else 0


async def test_what_failed_comes_again_as_it_was_and_does_not_hold_progress_back(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"good", b"bad", b"fine"], tags=["", "TagB", ""])
    handler = Handler(bad=2)
    async with consumer_of(cluster, handler, concurrency=1) as consumer:
        await eventually(lambda: handler.attempts(b"bad") == [1, 2, 3])
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 3)
        retry_place = ("%RETRY%billing", "broker-a", 0)
        await eventually(lambda: fake.offset.progress["billing", retry_place].offset == 2)
        assert consumer.statistics.retries == RetryStatistics(sent_back=2)
        assert RETRY in consumer.queues()
        assert consumer.assignment == [MessageQueue(*PLACE)]
    again = handler.messages[-1]
    assert (again.topic, again.queue, again.tags) == ("orders", RETRY, "TagB")
    first = handler.messages[1]
    assert again.origin_message_id == first.offset_message_id
    assert again.failure == "RuntimeError: told to fail on b'bad'"
    assert handler.messages[0].failure is None


async def test_sixteen_times_then_it_is_a_dead_letter_loudly(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])
    handler = Handler(bad=1000)
    async with consumer_of(cluster, handler) as consumer:
        await eventually(lambda: consumer.statistics.retries.dead == 1)
    assert handler.attempts(b"bad") == list(range(1, 18))
    assert consumer.statistics.retries.sent_back == 16
    assert dead_letters(fake) == 1
    said = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert len(said) == 1
    assert "failed 17 times and became a dead letter in %DLQ%billing" in said[0]
    assert "told to fail" in said[0]


@pytest.mark.parametrize(
    ("result", "policy", "level", "delay_ms"),
    [
        (ConsumeResult.LATER, RetryPolicy(), 0, 0),
        (ConsumeResult.LATER, RetryPolicy(delay_levels=(2, 5)), 2, 0),
        (ConsumeResult.later(level=7), RetryPolicy(delay_levels=(2, 5)), 7, 0),
        (ConsumeResult.later(seconds=2.5), RetryPolicy(delay_levels=(2, 5)), 0, 2500),
        (ConsumeResult.later(seconds=0), RetryPolicy(), 0, 1),
        (ConsumeResult.later(level=-1), RetryPolicy(), -1, 0),
    ],
)
async def test_the_delay_is_the_handlers_then_the_policys_then_the_brokers(
    fake: FakeCluster,
    cluster: Cluster,
    result: ConsumeResult,
    policy: RetryPolicy,
    level: int,
    delay_ms: int,
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])
    results = [result, ConsumeResult.SUCCESS]

    async def handle(_: Message) -> ConsumeResult:
        return results.pop(0)

    async with consumer_of(cluster, handle, redelivery=policy):
        await eventually(lambda: bool(told(fake)))
        [failed] = told(fake)
        assert (failed.delay_level, failed.delay_ms) == (level, delay_ms)
        assert not failed.record
        assert dead_letters(fake) == (level < 0)


async def test_the_policys_levels_grow_with_the_attempts_and_it_may_lower_how_many(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])
    policy = RetryPolicy(attempts_max=3, delay_levels=(1, 4))
    async with consumer_of(cluster, Handler(bad=100), redelivery=policy):
        await eventually(lambda: dead_letters(fake) == 1)
    assert [failed.delay_level for failed in told(fake)] == [1, 4, 4, 4]
    assert {request.attempts_max for request, _ in fake.brokers["broker-a"].sent_back} == {3}


async def test_a_batch_of_which_one_message_is_bad_goes_back_whole(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"1", b"2", b"3"])
    batches: list[list[tuple[bytes, int]]] = []

    async def handle(messages: Sequence[Message]) -> None:
        batches.append([(message.body, message.attempt) for message in messages])
        if len(batches) == 1:
            raise RuntimeError("one of them is bad")

    async with consumer_of(cluster, handle, batch_max=10) as consumer:
        await eventually(lambda: sum(map(len, batches)) == 6)
        assert consumer.statistics.retries.sent_back == 3
    assert batches[0] == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert [each for batch in batches[1:] for each in batch] == [(b"1", 2), (b"2", 2), (b"3", 2)]
    assert len(fake.brokers["broker-a"].sent_back) == 1


@pytest.mark.parametrize("trouble", ["gone", "refuses", "forgot"])
async def test_another_broker_takes_it_with_the_whole_record(
    fake: FakeCluster, cluster: Cluster, trouble: str
) -> None:
    await fake.add_broker("broker-b")
    fake.create_topic("orders", brokers=["broker-a"])
    fake.append("orders", [b"bad"])
    home = fake.brokers["broker-a"]

    async def spoil() -> None:
        if trouble == "gone":
            await home.listener.stop()
        elif trouble == "refuses":
            home.refuse_send_backs = StoreNotWritable(reason="its disk is full")
        else:
            home.knows_originals = False

    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.queue.broker, message.attempt))
        if message.attempt == 1:
            await spoil()
            raise RuntimeError("first")

    async with consumer_of(cluster, handle) as consumer:
        await eventually(lambda: seen == [("broker-a", 1), ("broker-b", 2)])
        assert consumer.statistics.retries == RetryStatistics(sent_back=1, elsewhere=1)
    [failed] = told(fake, "broker-b")
    assert failed.record
    assert failed.topic == "orders"


async def test_when_no_broker_takes_it_it_comes_again_here_and_progress_waits(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad", b"good"])
    home = fake.brokers["broker-a"]
    home.refuse_send_backs = NotReady(service="the broker", reason="the test says so")
    handler = Handler(bad=5)
    async with consumer_of(cluster, handler) as consumer:
        await eventually(lambda: consumer.statistics.retries.kept_here >= 2)
        await consumer.commit()
        assert fake.offset.progress["billing", PLACE].offset == 0
        home.refuse_send_backs = None
        await eventually(lambda: consumer.statistics.retries.sent_back >= 1)
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 2)
        await eventually(lambda: len(handler.attempts(b"bad")) == 6)


async def test_of_a_batch_that_is_taken_in_part_nothing_is_sent_back_over_and_over(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"1", b"2", b"3"])
    home = fake.brokers["broker-a"]
    home.refused_bodies = {b"2"}
    seen: list[list[bytes]] = []

    async def handle(messages: Sequence[Message]) -> None:
        if messages[0].attempt > 1:
            return
        seen.append([message.body for message in messages])
        raise RuntimeError("one of them is bad")

    async with consumer_of(cluster, handle, batch_max=3) as consumer:
        await eventually(lambda: consumer.statistics.retries.kept_here >= 3)
        home.refused_bodies.clear()
        await eventually(lambda: fake.offset.progress["billing", PLACE].offset == 3)
        assert consumer.statistics.retries.sent_back == 3
    assert set(map(tuple, seen)) == {(b"1", b"2", b"3")}


async def test_a_local_redelivery_reads_no_retry_topic(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad"])
    handler = Handler(bad=2)
    async with consumer_of(cluster, handler, redelivery=SOON):
        await eventually(lambda: handler.attempts(b"bad") == [1, 1, 1])
    assert not fake.brokers["broker-a"].sent_back
    assert list(fake.nameserver.topics) == ["orders"]


async def test_in_order_a_message_is_sent_back_only_when_it_is_given_up(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"bad", b"good"])
    handler = Handler(bad=100)
    settings = {"orderly": True, "attempts_max": 3, "suspend_seconds": 0.01}
    async with consumer_of(cluster, handler, **settings):
        await eventually(lambda: handler.attempts(b"good") == [1])
    assert [body for body, _ in handler.seen] == [b"bad"] * 3 + [b"good"]
    assert [failed.delay_level for failed in told(fake)] == [-1]
    assert dead_letters(fake) == 1


async def test_a_broadcasting_member_tries_again_itself_then_drops_and_says_so(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    from rockoon.offsets.local_offsets import LocalFileOffsetStore

    fake.create_topic("orders")
    fake.append("orders", [b"bad", b"good"])
    handler = Handler(bad=100)
    statistics = RetryStatistics()
    async with consumer_of(
        cluster,
        handler,
        mode="broadcasting",
        member_id="a",
        offset_store=LocalFileOffsetStore(cluster, "billing", "a", directory=tmp_path),
        redelivery=DroppingRedelivery(statistics, attempts_max=3, local=SOON),
    ) as consumer:
        await eventually(lambda: statistics.dropped == 1)
        await eventually(lambda: consumer.statistics.delivery.messages == 2)
    assert handler.attempts(b"bad") == [1, 1, 1]
    assert not fake.brokers["broker-a"].sent_back
    assert any("is dropped after 3 deliveries" in record.message for record in caplog.records)
    with pytest.raises(InvalidArgument):
        consumer_of(cluster, handler, mode="broadcasting", member_id="a", redelivery=POLICY)


def test_a_reader_with_a_store_of_its_own_starts_a_retry_topic_at_its_beginning() -> None:
    rules = GroupRules(NewQueueRule.EXACT)
    start = start_on(RETRY, facts_of(RETRY, 5, QueueState(3, 9), 7, rules, None))
    assert (start.offset, start.reason) == (3, "RETRY_TOPIC")
    committed = start_on(RETRY, facts_of(RETRY, 5, QueueState(3, 9), 7, rules, Position(6, 5)))
    assert (committed.offset, committed.reason) == (6, "COMMITTED")


async def test_calls_are_bounded(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create_topic("orders")
    fake.append("orders", [bytes(3 << 20)] * 3 + [b"x"] * 1500)
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all("orders")
        messages: list[Message] = []
        while len(messages) < 1503:
            messages += list(await consumer.poll_batch(5) or [])
    assert [len(part) for part in split_calls(messages, with_records=False)] == [1024, 479]
    assert [len(part) for part in split_calls(messages, with_records=True)] == [2, 1024, 477]
