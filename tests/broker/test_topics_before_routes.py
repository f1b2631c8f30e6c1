"""A new leader of a log with copies deletes nothing before it has seen the routes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rockoon_broker.broker import Broker, prepared
from rockoon_broker.clock import SystemClock
from rockoon_broker.topics.served_topics import ServedTopics
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_broker.topics.topics import ServedTopic, TopicPlan, TopicTable
from rockoon_core.disk import Disk
from rockoon_core.errors import NotReady, QueueNotFound, TopicNotFound
from rockoon_format.log_marks import LogTopics
from rockoon_format.names import stored_lite_topic
from rockoon_node.nameservers import Nameservers
from rockoon_node.store_directory import StoreCluster
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_runtime.process import Stop
from support.broker import settings_of
from support.fake_nameserver import FakeNameserver
from support.replicas import opened
from support.waiting import DEADLINE_SECONDS

BROKER = "broker-a"
LITE = stored_lite_topic("chat", "one")
CREATED = {"old": 2, "young": 1, LITE: 1}


async def record(_: TopicPlan) -> None:
    """The log already has this state."""


def drop(topics: Sequence[str]) -> None:
    raise AssertionError(topics)


async def test_what_was_created_while_another_copy_led_waits_for_the_routes(
    tmp_path: Path,
) -> None:
    """Otherwise a due delayed message, or a transaction that ends, would be lost."""
    async with FakeNameserver() as nameserver, asyncio.timeout(DEADLINE_SECONDS):
        for name, queues in CREATED.items():
            await nameserver.CreateTopic(
                pb.CreateTopicRequest(
                    config=pb.TopicConfig(name=name),
                    placements=[pb.Placement(broker=BROKER, queues=queues)],
                ),
                None,
            )
        known = {name: topic.incarnation for name, topic in nameserver.topics.items()}
        history = nameserver.etcd_cluster_id
        # The file that this copy wrote when it last led: one topic with one queue.
        served = {each: ServedTopic(each, 1, known[each]) for each in ("old", LITE)}
        own = TopicTable(known["old"], history, served)
        TopicFile(tmp_path, Disk()).write(own, 0)
        nameservers = Nameservers([nameserver.address], nameserver.cluster)
        topics = ServedTopics(
            BROKER,
            TopicFile(tmp_path, Disk()),
            nameservers,
            StoreCluster(tmp_path / "clusterId", Disk().replace_file),
            SystemClock(),
            gone=lambda _: None,
            drop=drop,
            changed=lambda: None,
            record=record,
        )
        topics.use_log_topics(LogTopics(nameserver.revision, history, known))
        topics.check_writable("old", 0)
        for queue in (("young", 0), ("old", 1)):
            with pytest.raises(NotReady):
                topics.check_writable(*queue)
            with pytest.raises(NotReady):
                topics.knows_for_sure(*queue)
        # It may be about to be deleted, as a topic that accepts no messages.
        with pytest.raises(NotReady):
            topics.check_writable(LITE, 0)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(topics.routes.run(Stop()))
            await topics.routes.loaded.wait()
            following.cancel()
        for queue in (("young", 0), ("old", 1), (LITE, 0)):
            topics.check_writable(*queue)
            assert topics.knows_for_sure(*queue)
        with pytest.raises(TopicNotFound):
            topics.check_writable("none", 0)
        with pytest.raises(QueueNotFound):
            topics.check_writable("old", 2)
        assert not topics.knows_for_sure("none", 0)
        await nameservers.close()


async def test_what_is_compacted_is_not_known_before_the_routes_say_it(tmp_path: Path) -> None:
    """By the file that this copy wrote when it last led, retention would delete kept messages."""
    settings = settings_of(tmp_path, ["127.0.0.1:1"], copies=3, index="off")
    own = TopicTable(1, 1, {"Latest": ServedTopic("Latest", 1, 1)})
    (tmp_path / "config").mkdir()
    TopicFile(tmp_path / "config", Disk()).write(own, 0)
    nameservers = Nameservers(settings.nameservers, "rockoon")
    with opened(tmp_path) as copy:
        parts = (copy.store, prepared(settings, Disk()), settings, nameservers, SystemClock())
        broker = await Broker.from_store(*parts, Disk())
        broker.lead()
        assert broker.topics.table.topics.keys() == {"Latest"}
        assert not copy.store.compaction.knows_topics
        broker.compaction.close()
    await nameservers.close()
