"""An etcd that was wiped and set up alike tells nothing about what a broker stores."""

from pathlib import Path

import pytest

from rockoon_proto.v1.nameserver_pb2 import CreateTopicRequest, Placement, TopicConfig
from support.broker import RunningBroker, running_broker
from support.etcd import EtcdServer
from support.nameserver import Nameserver, running_nameserver


async def create_topic(nameserver: Nameserver, name: str) -> int:
    request = CreateTopicRequest(
        config=TopicConfig(name=name), placements=[Placement(broker="broker-a", queues=1)]
    )
    return int((await nameserver.call("CreateTopic", request)).revision)


async def append(broker: RunningBroker, body: bytes, revision: int) -> int:
    appended = await broker.append("T", 0, body, route_revision=revision)
    return int(appended.first_queue_offset)


@pytest.mark.parametrize("revisions_go_on", [True, False])
async def test_messages_outlive_the_etcd_that_knew_their_topic(
    tmp_path: Path, revisions_go_on: bool
) -> None:
    (tmp_path / "etcd").mkdir()
    with EtcdServer(tmp_path / "etcd") as etcd:
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(tmp_path / "store", [nameserver.address]) as broker,
        ):
            revision = await create_topic(nameserver, "T")
            assert await append(broker, b"0", revision) == 0
        etcd.kill()
        etcd.erase()
        etcd.start()
        if revisions_go_on:
            for number in range(revision + 20):
                etcd.control("put", f"/others/{number % 5}", str(number))
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(tmp_path / "store", [nameserver.address]) as broker,
        ):
            again = await create_topic(nameserver, "T")
            assert (again > revision) is revisions_go_on
            assert await append(broker, b"1", again) == 1
            assert await broker.bodies("T") == [b"0", b"1"]
