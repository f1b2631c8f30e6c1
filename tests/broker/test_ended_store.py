"""A change of the routes that arrives after the store has ended."""

import asyncio
from pathlib import Path

import pytest

from rockoon_broker.broker import Broker
from rockoon_broker.clock import SystemClock
from rockoon_broker.topics.served_topics import change_from_wire
from rockoon_core.disk import Disk
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.nameserver_pb2 import QueueBlock, RouteUpdate, Topic, TopicConfig
from support.broker import settings_of
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

NOBODY = "127.0.0.1:1"


async def test_it_is_left_to_the_next_start_and_never_said_to_be_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nameservers = Nameservers((NOBODY,), "rockoon")
    broker = await Broker.open(
        settings_of(tmp_path, [NOBODY]),
        ("127.0.0.1", 1),
        nameservers,
        clock=SystemClock(),
        disk=Disk(),
        on_failed=lambda _: None,
    )
    block = QueueBlock(broker="broker-a", queues=1, create_revision=1)
    topic = Topic(config=TopicConfig(name="T", permissions=6), incarnation=1, blocks=[block])
    made = RouteUpdate(revision=1, snapshot=True, topics=[topic])
    await broker.topics.apply(change_from_wire(made, "broker-a"))
    broker.store.close()
    gone = RouteUpdate(revision=2, removed_topics=["T"])
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        applying = tasks.create_task(broker.topics.apply(change_from_wire(gone, "broker-a")))
        await eventually(lambda: "postponed to the next start" in caplog.text)
        assert "delayed by the disk" not in caplog.text
        assert not applying.done()
        applying.cancel()
    assert broker.topics.table.revision == 1
    await nameservers.close()
