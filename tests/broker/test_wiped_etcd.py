"""A store and its etcd: another etcd's state says nothing about the messages of the store."""

import re
from pathlib import Path

import pytest

from rockoon_proto.v1.nameserver_pb2 import (
    CreateGroupRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    GroupConfig,
    Placement,
    TopicConfig,
)
from rockoon_runtime.process import ExitStatus, Fatal
from support.broker import RunningBroker, running_broker
from support.etcd import EtcdServer
from support.eventually import eventually
from support.nameserver import Nameserver, running_nameserver


async def create_topic(nameserver: Nameserver, name: str) -> int:
    request = CreateTopicRequest(
        config=TopicConfig(name=name), placements=[Placement(broker="broker-a", queues=1)]
    )
    return int((await nameserver.call("CreateTopic", request)).revision)


async def create_topic_of_others(nameserver: Nameserver) -> None:
    """Give the etcd an identity, and a group."""
    await nameserver.call("CreateGroup", CreateGroupRequest(config=GroupConfig(name="g")))


async def append(broker: RunningBroker, body: bytes, revision: int) -> int:
    appended = await broker.append("T", 0, body, route_revision=revision)
    return int(appended.first_queue_offset)


async def cluster_that_refuses(store: Path, nameserver: Nameserver) -> str:
    """Check twice that a broker refuses to start; return the etcd identity that it names."""
    refusals = []
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as refused:
            async with running_broker(store, [nameserver.address]):
                pytest.fail("it started")
        (fatal, *_) = leaves(refused.value)
        assert isinstance(fatal, Fatal)
        assert fatal.status == ExitStatus.CONFIGURATION
        refusals.append(str(fatal))
    first, again = refusals
    assert first == again
    said = re.fullmatch(
        r"this store belongs to cluster ([0-9a-f]{16}) \(see .*/config/clusterId\), but the "
        r"nameservers belong to cluster ([0-9a-f]{16}): point nameservers at the store's cluster, "
        r"or start with accept_cluster_id = \2 to move the store to the other cluster",
        first,
    )
    assert said is not None
    assert said[1] != said[2]
    return said[2]


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions:
        found += leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


async def test_a_broker_whose_etcd_is_set_up_anew_under_it_goes_on_until_its_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
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
            await eventually(lambda: "the next start will be refused" in caplog.text)
            assert await broker.bodies("T") == [b"0"]
        async with running_nameserver(etcd=(etcd.endpoint,)) as nameserver:
            await cluster_that_refuses(tmp_path / "store", nameserver)


@pytest.mark.parametrize("counted", ["behind", "past"])
async def test_messages_outlive_an_etcd_restored_from_before_their_topic(
    tmp_path: Path, counted: str
) -> None:
    (tmp_path / "etcd").mkdir()
    with EtcdServer(tmp_path / "etcd") as etcd:
        async with running_nameserver(etcd=(etcd.endpoint,)) as nameserver:
            await create_topic_of_others(nameserver)
        etcd.stop()
        etcd.back_up("backup")
        etcd.start()
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(tmp_path / "store", [nameserver.address]) as broker,
        ):
            revision = await create_topic(nameserver, "T")
            assert await append(broker, b"0", revision) == 0
        etcd.kill()
        etcd.restore("backup")
        etcd.start()
        for number in range(revision + 20 if counted == "past" else 0):
            etcd.control("put", f"/others/{number % 5}", str(number))
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(tmp_path / "store", [nameserver.address]) as broker,
        ):
            assert await broker.bodies("T") == [b"0"]
            again = await create_topic(nameserver, "T")
            assert (again > revision) is (counted == "past")
            assert await append(broker, b"1", again) == 1
            assert await broker.bodies("T") == [b"0", b"1"]
            # Deleted topics stay deleted.
            await nameserver.call("DeleteTopic", DeleteTopicRequest(name="T"))
            again = await create_topic(nameserver, "T")
            assert await append(broker, b"2", again) == 0


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
        async with running_nameserver(etcd=(etcd.endpoint,)) as nameserver:
            accepted = await cluster_that_refuses(tmp_path / "store", nameserver)
            assert not (await nameserver.call("DescribeCluster", DescribeClusterRequest())).nodes
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(
                tmp_path / "store", [nameserver.address], accept_cluster_id=accepted
            ) as broker,
        ):
            again = await create_topic(nameserver, "T")
            assert (again > revision) is revisions_go_on
            assert await append(broker, b"1", again) == 1
            assert await broker.bodies("T") == [b"0", b"1"]
        # The store has accepted the new etcd: no further confirmation is needed.
        async with (
            running_nameserver(etcd=(etcd.endpoint,)) as nameserver,
            running_broker(tmp_path / "store", [nameserver.address]) as broker,
        ):
            assert await broker.bodies("T") == [b"0", b"1"]
