"""kill -9 of any one process while messages flow: no acknowledged message is lost.

Rules, whichever process dies, and however often:

- every acknowledged message can be read, and reaches the consumer group (flush = sync);
- messages of one key are stored in their queue in the order in which they were sent;
- a commit that was acknowledged is never undone.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

import rockoon
from rockoon import errors
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.message import Message, SendResult
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, QueueRef, ResolveRequest
from support.seeds import seeds

TOPIC = "load"
KEYS = 16
# Every kind of process dies in each run of the suite; the process and the time are random.
NODES = {
    "broker": ("broker-a", "broker-b"),
    "nameserver": ("nameserver-a", "nameserver-b"),
    "offset": ("offset",),
    "etcd": ("etcd",),
}
KINDS = (
    ("broker", "etcd", "offset"),
    pytest.param(("nameserver", "broker", "etcd"), marks=pytest.mark.soak),
)
SECONDS_MAX = 60
LOOK_SECONDS = 0.02
PACE_SECONDS = 0.002


class Load:
    """Keyed messages with a running number per key, sent as fast as acknowledgements allow."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._next = [0] * KEYS
        self._receipts: list[Receipt] = []
        self.acknowledged: dict[str, SendResult] = {}
        self.stopping = False

    @property
    def sent(self) -> int:
        return sum(self._next)

    async def run(self) -> None:
        while not self.stopping:
            for key in range(KEYS):
                body = b"%d %d" % (key, self._next[key])
                self._next[key] += 1
                self._receipts.append(self._producer.send(TOPIC, body, ordering_key=str(key)))
            await self._producer.wait_capacity()
            # One acknowledgement per turn keeps the load steady instead of filling memory.
            await self._take(self._receipts.pop(0))
            # A few thousand messages a second are enough load, and leave time to read them all.
            await asyncio.sleep(PACE_SECONDS)
        for receipt in self._receipts:
            await self._take(receipt)

    async def _take(self, receipt: Receipt) -> None:
        try:
            result = await receipt
        except RockoonError as error:
            # Not acknowledged: it may or may not be stored.
            assert error.retriable, error
        else:
            self.acknowledged[result.message_id] = result


class Committer:
    """Commits increasing offsets of one queue and records the last acknowledged one."""

    def __init__(self, cluster: rockoon.Cluster, queue: MessageQueue) -> None:
        self._cluster = cluster
        self._queue = QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)
        self.acknowledged = 0
        self.stopping = False

    async def run(self) -> None:
        epoch = 0
        while not self.stopping:
            try:
                service = await self._cluster.wait_offset_service(SECONDS_MAX)
                if not epoch:
                    request = ResolveRequest(
                        group="committer", member_id="only", queues=[self._queue]
                    )
                    reply = await self._cluster.call(
                        service.Resolve,
                        request,
                        unavailable=errors.OffsetServiceUnavailable,
                    )
                    epoch = reply.starts[0].epoch
                    continue
                entry = CommitEntry(queue=self._queue, offset=self.acknowledged + 1, epoch=epoch)
                commit = CommitRequest(group="committer", member_id="only", entries=[entry])
                answer = await self._cluster.call(
                    service.Commit, commit, unavailable=errors.OffsetServiceUnavailable
                )
                if answer.results[0].HasField("error"):
                    raise errors.from_wire(answer.results[0].error)
                self.acknowledged = entry.offset
            except errors.CommitBehind:
                # The reply to the previous commit was lost with the service, the commit was not.
                self.acknowledged += 1
            except errors.OffsetBeyondEnd:
                # Ahead of the load: it waits for the next message.
                pass
            except RockoonError as error:
                assert error.retriable, error
            await asyncio.sleep(LOOK_SECONDS)

    async def stored(self) -> int:
        progress = await self._cluster.admin.progress("committer")
        return max((each.offset for each in progress), default=0)


async def until(holds, what: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not holds():
            await asyncio.sleep(LOOK_SECONDS)


async def kill_and_restart(local: LocalCluster, name: str, load: Load) -> None:
    """Kill a process while messages flow, start it again, and wait until messages flow again."""
    await asyncio.to_thread(local.kill, name)
    await asyncio.to_thread(local.start, name, wait=False)
    await local.wait_ready(name)
    seen = len(load.acknowledged)
    await until(lambda: len(load.acknowledged) > seen + KEYS, "acknowledgements to go on")


async def read_everything(cluster: rockoon.Cluster) -> dict[MessageQueue, list[Message]]:
    """Return all stored messages of every queue, in queue order, read without a group."""
    stored: dict[MessageQueue, list[Message]] = {}
    async with cluster.pull_consumer() as consumer:
        route = await cluster.route(TOPIC)
        await consumer.assign(route.queues)
        await consumer.seek_to_beginning()
        ends = {
            each.queue: each.state.max_offset
            for each in (await cluster.admin.describe_topic(TOPIC)).queues
            if each.state is not None
        }
        assert ends.keys() == set(route.queues)
        stored = {queue: [] for queue in route.queues}
        while any(len(stored[queue]) < ends[queue] for queue in route.queues):
            batch = await consumer.poll_batch(timeout=SECONDS_MAX)
            stored[batch.queue].extend(batch)
    return stored


def check_log(stored: dict[MessageQueue, list[Message]], load: Load) -> None:
    places = {}
    order: dict[bytes, list[int]] = defaultdict(list)
    for queue, messages in stored.items():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        seen: set[str] = set()
        for message in messages:
            places[queue, message.queue_offset] = message.message_id
            # A batch whose acknowledgement was lost with the broker is sent again: at least once.
            if message.message_id not in seen:
                seen.add(message.message_id)
                key, _, number = message.body.partition(b" ")
                order[key].append(int(number))
    for message_id, result in load.acknowledged.items():
        assert places.get((result.queue, result.queue_offset)) == message_id, "acknowledged, lost"
    for key, numbers in order.items():
        assert numbers == sorted(numbers), f"key {key!r} is out of order"


async def scenario(folder: Path, seed: int, kinds: Sequence[str]) -> None:
    chance = random.Random(seed)
    victims = [chance.choice(NODES[kind]) for kind in kinds]
    chance.shuffle(victims)
    received: set[str] = set()
    settings = {"broker": {"flush": "sync", "commit_log_file_bytes": "4MiB"}}
    async with (
        LocalCluster(folder, nameservers=2, brokers=2, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic(TOPIC, queues_per_broker=3)
        await cluster.admin.create_group("committer")
        queue = (await cluster.route(TOPIC)).queues[0]

        async def take(message: Message) -> None:
            received.add(message.message_id)

        async with (
            cluster.push_consumer("readers", {TOPIC: "*"}, take, consume_from="first"),
            cluster.producer(delivery_timeout_seconds=SECONDS_MAX) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            load, committer = Load(producer), Committer(cluster, queue)
            tasks.create_task(load.run(), name="load")
            tasks.create_task(committer.run(), name="committer")
            await until(lambda: len(load.acknowledged) > 1000, "the load to start")
            for victim in victims:
                promised = committer.acknowledged
                await kill_and_restart(local, victim, load)
                assert await committer.stored() >= promised, f"a commit was undone by {victim}"
                await until(lambda n=promised: committer.acknowledged > n + 1, "commits to go on")
            load.stopping = committer.stopping = True
            await until(lambda: load.acknowledged.keys() <= received, "the group to catch up")
        check_log(await read_everything(cluster), load)
        assert await committer.stored() >= committer.acknowledged
    print(f"killed {victims}: {len(load.acknowledged)} of {load.sent} acknowledged, none lost")


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
async def test_kill_nine_of_any_process_under_load_loses_nothing(
    tmp_path: Path, kinds: Sequence[str], seed: int
) -> None:
    await scenario(tmp_path / "cluster", seed, kinds)
