"""Removal of a broker from the routes, with concurrent changes of topics and groups."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rockoon_core.errors import BrokerNotFound, Busy, InvalidArgument
from rockoon_nameserver.broker_removal import BrokerRemoval
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import DeleteKey, KeyRange, KeyValue, PutKey, only
from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.keyspace import (
    BlockKey,
    Keyspace,
    NodeKey,
    TopicKey,
    block_value,
    node_value,
    topic_value,
)
from rockoon_nameserver.topics import TopicRecords
from rockoon_proto.v1.logs_pb2 import (
    LogState,
    Rank,
    RecordCommittedEndRequest,
    Report,
    ReportLogRequest,
)
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    CreateTopicRequest,
    DeleteTopicRequest,
    Node,
    Placement,
    RegisterNodeRequest,
    RemoveBrokerReply,
    RemoveBrokerRequest,
    Topic,
    TopicConfig,
    UnregisterNodeRequest,
    UpdateTopicRequest,
)
from support.etcd import EtcdServer
from support.eventually import eventually
from support.log_states import LOG, call, replica_node
from support.log_watch import call_logs, register
from support.nameserver import Nameserver, broker_node, running_nameserver
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

OTHER, TOPIC = "broker-z", "orders"
KEYSPACE = Keyspace("rockoon")
TOPIC_KEY = KEYSPACE.key(TopicKey(TOPIC))


async def remove(nameserver: Nameserver, broker: str) -> RemoveBrokerReply:
    reply: RemoveBrokerReply = await nameserver.call(
        "RemoveBroker", RemoveBrokerRequest(broker=broker)
    )
    return reply


async def elected(nameserver: Nameserver, store: str) -> LogState:
    """Register three empty replicas of a new log, and let them report; return the log's state."""
    for who in "abc":
        await register(nameserver, who + store)
    state = LogState(kind=BROKER, log=LOG, epoch=1)
    for who in "ab":
        told = Report(rank=Rank(epoch=0, end=0), sound=True)
        request = ReportLogRequest(caller=call(state, who + store), report=told)
        state = (await call_logs(nameserver, "ReportLog", request)).state
    return state


async def unregister(nameserver: Nameserver, node: Node) -> None:
    request = UnregisterNodeRequest(kind=BROKER, name=node.name, store_id=node.store_id)
    await nameserver.call("UnregisterNode", request)


async def test_a_new_log_with_the_name_of_a_removed_one_elects_a_leader(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        state = await elected(nameserver, "1")
        end = RecordCommittedEndRequest(caller=call(state, state.leader), end=100)
        assert (await call_logs(nameserver, "RecordCommittedEnd", end)).done
        for who in "abc":
            await unregister(nameserver, replica_node(who + "1"))
        assert not (await remove(nameserver, LOG)).live
        state = await elected(nameserver, "2")
        assert (bool(state.leader), state.held) == (True, "")


async def test_a_log_is_drained_once_all_its_replicas_know_of_it(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        replies = {who: await register(nameserver, who, drained=who != "a") for who in "abc"}
        with pytest.raises(InvalidArgument, match="live and not drained"):
            await remove(nameserver, LOG)
        await register(nameserver, "a", lease_id=replies["a"].lease_id, drained=True)
        assert (await remove(nameserver, LOG)).live


class Overtaken(Etcd):
    """A connection to etcd; once, after a read of a key, another caller is faster."""

    def __init__(
        self, endpoint: str, change: Sequence[PutKey | DeleteKey], key: str = TOPIC_KEY
    ) -> None:
        super().__init__([endpoint])
        self._change = change
        self._key = key

    async def read_at_once(self, *key_ranges: KeyRange) -> list[list[KeyValue]]:
        found = await super().read_at_once(*key_ranges)
        if any(each.key == self._key for items in found for each in items):
            change, self._change = self._change, ()
            if change:
                await self.transaction([], change)
        return found


async def stored_topic(etcd: Etcd) -> None:
    """Store a topic with a queue on each of two brokers."""
    queues = [BlockKey(TOPIC, broker, 0) for broker in (LOG, OTHER)]
    topic = PutKey(TOPIC_KEY, topic_value(TopicConfig()))
    await etcd.transaction(
        [], [topic, *(PutKey(KEYSPACE.key(each), block_value(1)) for each in queues)]
    )


async def keys_of_topic(etcd: Etcd) -> list[str]:
    blocks = await etcd.read_at_once(only(TOPIC_KEY), KEYSPACE.blocks(TOPIC))
    return [each.key for items in blocks for each in items]


def removal_by(etcd: Etcd, follower: EtcdFollower) -> BrokerRemoval:
    topics = TopicRecords(etcd, KEYSPACE, lambda _: [], follower.wait_broker)
    return BrokerRemoval(etcd, KEYSPACE, topics, follower.table.topics_on, follower.wait_reached)


CHANGED = TopicConfig(attributes={"description": "changed"})


@pytest.mark.parametrize(
    ("change", "remaining"),
    [
        (
            [
                PutKey(TOPIC_KEY, topic_value(CHANGED)),
                PutKey(KEYSPACE.key(BlockKey(TOPIC, LOG, 1)), block_value(1)),
                PutKey(KEYSPACE.key(BlockKey(TOPIC, OTHER, 1)), block_value(1)),
            ],
            [TOPIC_KEY, *(KEYSPACE.key(BlockKey(TOPIC, OTHER, first)) for first in (0, 1))],
        ),
        ([DeleteKey(only(TOPIC_KEY)), DeleteKey(KEYSPACE.blocks(TOPIC))], []),
    ],
    ids=["changed", "deleted"],
)
async def test_a_concurrent_change_of_a_topic_is_kept(
    own_etcd: EtcdServer, change: list[PutKey | DeleteKey], remaining: list[str]
) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Overtaken(own_etcd.endpoint, change) as etcd,
        Etcd([own_etcd.endpoint]) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        await stored_topic(reader)
        follower = EtcdFollower(reader, KEYSPACE, time.monotonic)
        following = tasks.create_task(follower.run())
        await follower.wait_loaded()
        await removal_by(etcd, follower).remove(RemoveBrokerRequest(broker=LOG))
        following.cancel()
        assert await keys_of_topic(reader) == remaining
        for item in (await reader.read(only(TOPIC_KEY))).items:
            assert item.value == topic_value(CHANGED)


async def test_queues_that_a_nameserver_does_not_know_yet_are_removed_too(
    own_etcd: EtcdServer,
) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), Etcd([own_etcd.endpoint]) as etcd:
        follower = EtcdFollower(etcd, KEYSPACE, time.monotonic)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follower.run())
            await follower.wait_loaded()
            following.cancel()
        await stored_topic(etcd)
        async with asyncio.TaskGroup() as tasks:
            removal = removal_by(etcd, follower).remove(RemoveBrokerRequest(broker=LOG))
            removing = tasks.create_task(removal)
            await etcd.header()
            following = tasks.create_task(follower.run())
            assert (await removing).topics == 1
            following.cancel()
        assert await keys_of_topic(etcd) == [TOPIC_KEY, KEYSPACE.key(BlockKey(TOPIC, OTHER, 0))]


@pytest.mark.parametrize("call", ["create", "create many", "create anywhere", "update"])
async def test_a_broker_that_leaves_meanwhile_gets_no_queues(
    own_etcd: EtcdServer, call: str
) -> None:
    keys = {name: KEYSPACE.key(NodeKey(BROKER, name)) for name in (LOG, OTHER)}
    both = [Placement(broker=name, queues=1) for name in keys]
    request = CreateTopicRequest(
        config=TopicConfig(name=TOPIC), placements=both if call != "create anywhere" else []
    )
    kept = [TOPIC_KEY, KEYSPACE.key(BlockKey(TOPIC, OTHER, 0))]
    async with Overtaken(own_etcd.endpoint, [DeleteKey(only(keys[LOG]))], keys[LOG]) as etcd:
        nodes = [PutKey(key, node_value(broker_node(name))) for name, key in keys.items()]
        await etcd.transaction([], nodes)
        topics = TopicRecords(etcd, KEYSPACE, lambda _: [], never)
        if call == "create anywhere":
            await topics.create(request)
            assert await keys_of_topic(etcd) == kept
        elif call == "create many":
            (result,) = (await topics.create_many([request])).results
            assert result.error.code == BrokerNotFound(broker=LOG).to_wire().code
            assert await keys_of_topic(etcd) == []
        elif call == "create":
            with pytest.raises(BrokerNotFound):
                await topics.create(request)
            assert await keys_of_topic(etcd) == []
        else:
            topic = PutKey(TOPIC_KEY, topic_value(TopicConfig()))
            await etcd.transaction([], [topic, PutKey(kept[1], block_value(1))])
            with pytest.raises(BrokerNotFound):
                await topics.update(UpdateTopicRequest(name=TOPIC, add=both))
            assert await keys_of_topic(etcd) == kept


class Owner:
    """Changes one topic at random, and compares the stored topic with its own changes.

    Args:
        nameserver: called by this object.
        name: name of the topic.
        chance: random numbers.

    Attributes:
        queues: queues of the topic on the broker that stays; 0: the topic does not exist.
    """

    def __init__(self, nameserver: Nameserver, name: str, chance: random.Random) -> None:
        self.name = name
        self.queues = 0
        self._nameserver = nameserver
        self._chance = chance
        self._changes = 0

    @property
    def config(self) -> TopicConfig:
        return TopicConfig(name=self.name, attributes={"delete.retention.ms": str(self._changes)})

    async def change(self) -> None:
        """Create, change or delete the topic. It has a queue on the broker that stays."""
        kept = Placement(broker=OTHER, queues=self._chance.randrange(1, 4))
        placements = self._chance.choice(([kept], [kept, Placement(broker=LOG, queues=2)]))
        try:
            if not self.queues:
                self._changes += 1
                create = CreateTopicRequest(config=self.config, placements=placements)
                await self._nameserver.call("CreateTopic", create)
                self.queues = kept.queues
            elif self._chance.random() < 0.2:
                await self._nameserver.call("DeleteTopic", DeleteTopicRequest(name=self.name))
                self.queues = 0
            else:
                self._changes += 1
                added = self._chance.choice(([], placements))
                update = UpdateTopicRequest(
                    name=self.name, attributes=self.config.attributes, add=added
                )
                await self._nameserver.call("UpdateTopic", update)
                self.queues += kept.queues if added else 0
        except (BrokerNotFound, Busy):
            self._changes -= 1

    def check(self, topic: Topic | None) -> None:
        """Compare the stored topic, None if there is none."""
        assert (topic is not None) == (self.queues > 0), self.name
        if topic is not None:
            assert topic.config.attributes == self.config.attributes
            assert {each.broker for each in topic.blocks} == {OTHER}
            assert sum(each.queues for each in topic.blocks) == self.queues


async def never() -> None:
    """The removal waits for no broker."""
    raise AssertionError("there is a live broker")


async def persistently(nameserver: Nameserver) -> None:
    """Remove the broker; repeat the call as long as topics change too often."""
    while True:
        try:
            await remove(nameserver, LOG)
        except Busy:
            continue
        return


@pytest.mark.parametrize("seed", seeds(3))
async def test_topics_that_change_meanwhile_keep_their_changes_and_lose_the_broker(
    shared_etcd: EtcdServer, cluster: str, seed: int
) -> None:
    chance = random.Random(seed)
    settings: dict[str, Any] = {"etcd": (shared_etcd.endpoint,), "cluster": cluster}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        running_nameserver(**settings) as one,
        running_nameserver(**settings) as two,
        asyncio.TaskGroup() as tasks,
    ):
        for name in (LOG, OTHER):
            node = broker_node(name, drained=name == LOG)
            await one.call("RegisterNode", RegisterNodeRequest(node=node))
        owners = [Owner(chance.choice((one, two)), f"topic-{each}", chance) for each in range(12)]
        removed = asyncio.Event()

        async def changing(owner: Owner) -> None:
            while not removed.is_set() or chance.random() < 0.5:
                await owner.change()

        for owner in owners:
            tasks.create_task(changing(owner))
        await eventually(lambda: sum(owner.queues > 0 for owner in owners) > len(owners) // 2)
        for _ in range(chance.randrange(4)):
            # Of a live broker: its queues may be added again.
            await persistently(chance.choice((one, two)))
        await unregister(one, broker_node(LOG))
        await persistently(chance.choice((one, two)))
        removed.set()
    async with Etcd([shared_etcd.endpoint]) as etcd:
        keyspace = Keyspace(cluster)
        topics = TopicRecords(etcd, keyspace, lambda _: [], never)
        for owner in owners:
            key = TopicKey(owner.name)
            found = await etcd.read_at_once(keyspace.one(key), keyspace.blocks(owner.name))
            owner.check(topics.stored(key, found) if found[0] else None)
            assert found[0] or not found[1], "queues without a topic"
