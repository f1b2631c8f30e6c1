"""On real processes: messages that handlers fail on, until they succeed or are dead letters."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon.admin.dead_letters import REPLAY_GROUP, DeadLetters
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.consumer.retry import RetryPolicy
from rockoon.errors import Fenced, InvalidArgument, RockoonError, TopicNotFound
from rockoon.local import LocalCluster
from rockoon.message import Message
from rockoon.offsets.offset_store import RemoteOffsetStore
from rockoon.offsets.start import ConsumeFrom
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from support import failing_member
from support.consumer_settings import grouped
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

QUICK = RetryPolicy(delay_levels=(1,), local=LocalRedelivery(0.1, 0.5))
"""A second between attempts, as level 1 is everywhere."""
numbers = count()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"broker": {"commit_log_file_bytes": 16 << 20, "delay_levels": "1s 1s 1s 1s"}}
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(folder, brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local.nameservers) as connection:
        yield connection


@pytest.fixture
async def topic(cluster: rockoon.Cluster) -> str:
    name = f"orders-{next(numbers)}"
    await cluster.admin.create_topic(name, queues_per_broker=1)
    return name


class Handler:
    """Fails on a body as often as the test requests."""

    def __init__(self, **failures: int) -> None:
        self.failures = Counter({body.encode(): times for body, times in failures.items()})
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        if self.failures[message.body] > 0:
            self.failures[message.body] -= 1
            raise RuntimeError(f"no use for {message.body!r}")

    def attempts(self, body: bytes) -> list[int]:
        return [message.attempt for message in self.messages if message.body == body]


def member(cluster: rockoon.Cluster, topic: str, handler: Any, **settings: Any) -> PushConsumer:
    chosen: dict[str, Any] = {
        "consume_from": "first",
        "commit_seconds": 0.1,
        "redelivery": QUICK,
        **settings,
    }
    return cluster.push_consumer(f"group-of-{topic}", {topic: "*"}, handler, **grouped(chosen))


async def send(cluster: rockoon.Cluster, topic: str, *bodies: bytes, **where: Any) -> None:
    async with cluster.producer() as producer:
        await producer.send_many(topic, bodies, **where)


async def give_up_on(cluster: rockoon.Cluster, topic: str, *bodies: bytes) -> None:
    """Let a group of the topic make dead letters of all its messages."""
    await send(cluster, topic, *bodies)
    handler = Handler(**dict.fromkeys((body.decode() for body in bodies), 100))
    policy = RetryPolicy(attempts_max=0)
    async with member(cluster, topic, handler, redelivery=policy) as consumer:
        await eventually(lambda: consumer.statistics.retries.dead == len(bodies))


async def test_what_fails_twice_is_handled_the_third_time_and_holds_nothing_up(
    cluster: rockoon.Cluster, topic: str
) -> None:
    handler = Handler(bad=2)
    async with member(cluster, topic, handler) as consumer:
        await send(cluster, topic, b"bad", b"good", b"fine")
        await eventually(lambda: handler.attempts(b"bad") == [1, 2, 3])
        assert handler.attempts(b"good") == handler.attempts(b"fine") == [1]
        assert consumer.statistics.retries.sent_back == 2
        assert consumer.statistics.retries.elsewhere == 0
        await eventually(lambda: all(v.unfinished == 0 for v in consumer.queues().values()))
        await consumer.commit()
    first, *_, last = (message for message in handler.messages if message.body == b"bad")
    assert (last.topic, last.queue.topic) == (topic, f"%RETRY%group-of-{topic}")
    assert last.origin_message_id == first.offset_message_id
    assert last.message_id == first.message_id
    lag = await cluster.admin.lag(f"group-of-{topic}")
    assert (lag.total_lag, lag.complete) == (0, True)


async def test_given_up_it_is_a_dead_letter_and_replayed_it_is_handled_once(
    cluster: rockoon.Cluster, topic: str
) -> None:
    group, handler = f"group-of-{topic}", Handler(bad=4)
    letters = cluster.admin.dead_letters
    policy = RetryPolicy(attempts_max=2, delay_levels=(1,))
    async with member(cluster, topic, handler, redelivery=policy) as consumer:
        async with cluster.producer() as producer:
            await producer.send(
                topic, b"bad", keys="k1 k2", tags="TagA", properties={"colour": "red"}
            )
        await eventually(lambda: consumer.statistics.retries.dead == 1)
        assert handler.attempts(b"bad") == [1, 2, 3]
        [figures] = await letters.overview(group)
        assert (figures.messages, figures.replayed, figures.unknown) == (1, 0, [])
        first = handler.messages[0]
        letter = await letters.find(group, first.offset_message_id)
        assert letter.message.failure == "RuntimeError: no use for b'bad'"
        assert (letter.message.topic, letter.message.reconsume_times) == (topic, 3)

        dry = await letters.replay(group, dry_run=True)
        assert dry.replayed == 1
        report = await letters.replay(group, ids=[first.message_id, "nobody"])
        assert (report.replayed, report.left_out, report.not_found) == (1, 0, ["nobody"])
        # Its attempts begin again: this one fails once more, and later ones succeed.
        await eventually(lambda: handler.attempts(b"bad") == [1, 2, 3, 1, 2])
        again = await letters.replay(group)
        assert (again.replayed, again.left_out) == (0, 1)
        [figures] = await letters.overview(group)
        assert (figures.messages, figures.replayed) == (1, 1)
    replayed = handler.messages[3]
    assert (replayed.keys, replayed.tags, replayed.queue.topic) == (["k1", "k2"], "TagA", topic)
    assert replayed.properties["colour"] == "red"
    assert replayed.properties["ROCKOON_REPLAYED_FROM"] == letter.dead_letter_id


async def test_a_call_that_hangs_is_sent_back_and_the_message_handled_by_the_next(
    cluster: rockoon.Cluster, topic: str
) -> None:
    attempts: list[int] = []
    hanging = asyncio.Event()

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await hanging.wait()

    async with member(cluster, topic, handle, consume_timeout_seconds=0.3) as consumer:
        await send(cluster, topic, b"stuck")
        await eventually(lambda: attempts == [1, 2])
        assert consumer.statistics.delivery.timeouts == 1
        assert consumer.statistics.retries.sent_back == 1
        # It counts as finished although the first call has not returned yet.
        await eventually(lambda: all(v.unfinished == 0 for v in consumer.queues().values()))
        hanging.set()
    assert attempts == [1, 2]


async def test_a_group_says_after_how_many_attempts_a_message_is_dead(
    cluster: rockoon.Cluster, topic: str
) -> None:
    group, handler = f"group-of-{topic}", Handler(bad=100)
    await cluster.admin.create_group(GroupConfig(name=group, retry_attempts_max=1))
    async with member(cluster, topic, handler) as consumer:
        await send(cluster, topic, b"bad")
        await eventually(lambda: consumer.statistics.retries.dead == 1)
    assert handler.attempts(b"bad") == [1, 2]
    [letter] = [letter async for letter in cluster.admin.dead_letters.letters(group)]
    first = handler.messages[0]
    assert (letter.message.topic, letter.message.message_id) == (topic, first.message_id)
    assert letter.message.reconsume_times == 2


async def test_many_dead_letters_are_replayed_in_parts_and_single_ones_are_not_replayed_again(
    cluster: rockoon.Cluster, topic: str
) -> None:
    bodies = [b"%d" % number for number in range(300)]
    await give_up_on(cluster, topic, *bodies)
    group, letters = f"group-of-{topic}", cluster.admin.dead_letters
    all_of_them = [letter async for letter in letters.letters(group)]
    assert len(all_of_them) == 300
    picked = [letter.dead_letter_id for letter in all_of_them[7::50]]
    assert (await letters.replay(group, ids=picked)).replayed == 6
    oldest_ms = min(letter.message.store_timestamp_ms for letter in all_of_them)
    assert (await letters.replay(group, since_ms=oldest_ms + 3_600_000)).replayed == 0
    report = await letters.replay(group, since_ms=oldest_ms)
    assert (report.replayed, report.left_out) == (294, 6)
    assert all([letter.replayed async for letter in letters.letters(group)])
    assert (await letters.replay(group)).replayed == 0
    assert (await letters.replay(group, ids=picked[:1], again=True)).replayed == 1
    handler = Handler()
    async with member(cluster, topic, handler):
        await eventually(lambda: len(handler.messages) == 301)
    assert {message.body for message in handler.messages} == set(bodies)


async def test_a_replay_to_the_group_alone_reaches_nobody_else(
    cluster: rockoon.Cluster, topic: str
) -> None:
    others = Handler()
    async with cluster.push_consumer(
        f"others-of-{topic}", {topic: "*"}, others, consume_from="first"
    ):
        await give_up_on(cluster, topic, b"bad")
        group, handler = f"group-of-{topic}", Handler()
        async with member(cluster, topic, handler):
            assert (await cluster.admin.dead_letters.replay(group, only_group=True)).replayed == 1
            await eventually(lambda: len(handler.messages) == 1)
        [message] = handler.messages
        assert (message.body, message.topic, message.attempt) == (b"bad", topic, 2)
        assert (await cluster.admin.dead_letters.replay(group)).replayed == 0
        await eventually(lambda: others.attempts(b"bad") == [1])


async def test_a_replay_to_a_group_that_takes_no_retries_is_no_dead_letter_again(
    cluster: rockoon.Cluster, topic: str
) -> None:
    await give_up_on(cluster, topic, b"bad")
    group, letters = f"group-of-{topic}", cluster.admin.dead_letters
    await cluster.admin.update_group(GroupConfig(name=group, retry_queues=0))
    with pytest.raises(InvalidArgument, match="no retry queues"):
        await letters.replay(group, only_group=True)
    assert [letter.replayed async for letter in letters.letters(group)] == [False]
    await cluster.admin.update_group(GroupConfig(name=group, retry_attempts_max=0))
    handler = Handler()
    async with member(cluster, topic, handler):
        await letters.replay(group, only_group=True)
        await eventually(lambda: len(handler.messages) == 1)
    assert [letter.replayed async for letter in letters.letters(group)] == [True]


class Overtaken(DeadLetters):
    """Another process begins to replay while this one sends."""

    def __init__(self, cluster: rockoon.Cluster, queues: Sequence[MessageQueue]) -> None:
        super().__init__(cluster)
        self._other = RemoteOffsetStore(cluster, REPLAY_GROUP, "another process")
        self._queues = queues

    async def _send(self, *arguments: Any) -> list[RockoonError | None]:
        await self._other.resolve(self._queues, ConsumeFrom.FIRST)
        return await super()._send(*arguments)


async def test_of_two_replays_the_one_that_began_first_stops(
    cluster: rockoon.Cluster, topic: str
) -> None:
    await give_up_on(cluster, topic, b"bad")
    group = f"group-of-{topic}"
    assert [letter async for letter in cluster.admin.dead_letters.letters(group)]
    route = await cluster.route(f"%DLQ%{group}")
    with pytest.raises(Fenced, match="another replay"):
        await Overtaken(cluster, route.queues).replay(group)
    assert not any([letter.replayed async for letter in cluster.admin.dead_letters.letters(group)])


async def test_a_group_without_dead_letters_says_so(cluster: rockoon.Cluster, topic: str) -> None:
    assert await cluster.admin.dead_letters.overview("nobody") == []
    with pytest.raises(TopicNotFound, match="no dead letters"):
        await cluster.admin.dead_letters.replay("nobody")


async def test_a_member_killed_between_sending_back_and_committing_loses_nothing(
    cluster: rockoon.Cluster, local: LocalCluster, topic: str
) -> None:
    await send(cluster, topic, b"bad")
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(failing_member.__file__)),
        ",".join(local.nameservers),
        f"group-of-{topic}",
        topic,
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await victim.stdout.readline() == b"sent back\n"
    victim.kill()
    await victim.wait()
    handler = Handler()
    async with member(cluster, topic, handler):
        # It comes twice: from its own queue, whose progress was not stored, and as a retry.
        await eventually(lambda: sorted(handler.attempts(b"bad")) == [1, 2])


async def test_a_broker_killed_under_a_failing_handler_another_takes_its_messages_back(
    cluster: rockoon.Cluster, local: LocalCluster, topic: str
) -> None:
    home, other = local.brokers
    queue = MessageQueue(topic, home, 0)
    await send(cluster, topic, b"bad", queue=queue)
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.queue.broker, message.attempt))
        if message.attempt == 1:
            await asyncio.to_thread(local.kill, home)
            raise RuntimeError("its broker is gone")

    try:
        async with member(cluster, topic, handle) as consumer:
            await eventually(lambda: seen == [(home, 1), (other, 2)])
            assert consumer.statistics.retries.elsewhere == 1
    finally:
        await asyncio.to_thread(local.start, home)


async def test_a_broker_that_joins_later_gets_its_retry_queue_with_its_first_failure(
    cluster: rockoon.Cluster, local: LocalCluster, topic: str
) -> None:
    handler = Handler(bad=1)
    async with member(cluster, topic, handler) as consumer:
        late = await asyncio.to_thread(local.add_broker)
        await cluster.wait_broker(late, DEADLINE_SECONDS)
        await cluster.admin.update_topic(topic, add={late: 1})
        late_queue = MessageQueue(topic, late, 0)
        await eventually(lambda: late_queue in consumer.assignment)
        await send(cluster, topic, b"bad", queue=late_queue)
        await eventually(lambda: handler.attempts(b"bad") == [1, 2])
        assert handler.messages[-1].queue == MessageQueue(f"%RETRY%group-of-{topic}", late, 0)
