"""Clients from another network: through the external listener they get external addresses.

client ── 127.0.0.2 ──▶ nameserver's external listener
       ── 127.0.0.2 ──▶ gates in front of broker-a and the offset service
services ── 127.0.0.1 ──▶ one another; broker-b has no external address
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc import aio

import rockoon
from rockoon.errors import NoExternalAddress
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.message import Message
from rockoon.transactions.transaction import Resolution
from rockoon_core.errors import InvalidArgument, NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.nameserver_pb2 import (
    BROKER,
    Node,
    RegisterNodeRequest,
    WatchRoutesRequest,
)
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from support.eventually import eventually
from support.own_connections import own_connections
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS

OUTSIDE = "127.0.0.2"
NO_ADDRESS = "has no external address.*set advertise_external on"


@dataclass
class Networks:
    """A cluster, and its addresses for external clients."""

    local: LocalCluster
    nameserver: str
    broker: TcpGate
    offset: TcpGate

    def dialled_from_here(self) -> Counter[str]:
        """Return far ends of this process's connections to the cluster, without those of gates."""
        found = own_connections()
        for gate in (self.broker, self.offset):
            found[gate.target] -= gate.connections
        known = {node.address for node in self.local.nodes}
        outer = {self.nameserver, self.broker.address, self.offset.address}
        return +Counter({each: found[each] for each in known | outer})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, list[int]]]:
    """The cluster, and the ports outside of its nameserver, of broker-a and the offset service."""
    ports: list[int] = []
    while len(ports) < 3:
        ports.append(choose_port(set(ports)))
    settings = {
        "nameserver": {"external_listen": f"{OUTSIDE}:{ports[0]}"},
        "broker-a": {"advertise_external": f"{OUTSIDE}:{ports[1]}"},
        "offset": {"advertise_external": f"{OUTSIDE}:{ports[2]}"},
    }
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, brokers=2, durable=False, settings=settings) as local:
        yield local, ports


@pytest.fixture
async def networks(running: tuple[LocalCluster, list[int]]) -> AsyncIterator[Networks]:
    local, (nameserver, of_broker, of_offset) = running
    async with (
        TcpGate(local.node("broker-a").address, OUTSIDE, of_broker) as broker,
        TcpGate(local.node("offset").address, OUTSIDE, of_offset) as offset,
    ):
        yield Networks(local, f"{OUTSIDE}:{nameserver}", broker, offset)


async def test_a_client_from_outside_does_everything_and_dials_no_inner_address(
    networks: Networks,
) -> None:
    got: set[bytes] = set()

    def take(message: Message) -> None:
        got.add(bytes(message.body))

    async with rockoon.connect(networks.nameserver) as cluster:
        await cluster.admin.create_topic("t", placements={"broker-a": 2})
        async with (
            cluster.push_consumer("pushed", {"t": "*"}, take, consume_from="first"),
            cluster.producer() as producer,
            cluster.transactional_producer("payers", check=unsure) as payer,
            cluster.pull_consumer("pulled", consume_from="first") as puller,
        ):
            await producer.send("t", b"sent")
            await producer.send("t", b"later", delay_seconds=0.1)
            async with payer.transaction("t", b"paid"):
                pass
            await puller.assign_all("t")
            pulled: set[bytes] = set()
            async with asyncio.timeout(DEADLINE_SECONDS):
                while len(pulled) < 3:
                    pulled |= {
                        bytes(message.body)
                        for message in await puller.poll(timeout=DEADLINE_SECONDS)
                    }
            await puller.commit()
            await eventually(lambda: got == pulled == {b"sent", b"later", b"paid"}, 30)
            lag = await cluster.admin.lag("pulled")
            assert (lag.complete, lag.total_lag) == (True, 0)
            status = await cluster.admin.status()
            assert [each.address for each in status.brokers] == [networks.broker.address, ""]
            assert [each.address for each in status.offset_services] == [networks.offset.address]
            dialled = networks.dialled_from_here()
    outer = {networks.nameserver, networks.broker.address, networks.offset.address}
    assert dialled.keys() == outer


def unsure(message: Message) -> Resolution:
    return Resolution.UNKNOWN


async def test_a_node_without_an_external_address_is_named_and_not_dialled(
    networks: Networks,
) -> None:
    async with rockoon.connect(networks.nameserver) as cluster:
        await cluster.admin.create_topic("both", queues_per_broker=1)
        await cluster.admin.create_topic("inner", placements={"broker-b": 1})
        async with (
            cluster.producer() as producer,
            cluster.producer(delivery_timeout_seconds=2) as hasty,
            cluster.pull_consumer() as puller,
        ):
            # A client with a choice uses the broker that it can reach.
            sent = [await producer.send("both", b"%d" % number) for number in range(6)]
            assert {each.queue.broker for each in sent} == {"broker-a"}
            with pytest.raises(NoExternalAddress, match=f"broker-b {NO_ADDRESS} broker-b"):
                await hasty.send("inner", b"x")
            with pytest.raises(NoExternalAddress, match=f"broker-b {NO_ADDRESS} broker-b"):
                await puller.assign_all("inner")
        with pytest.raises(NoExternalAddress, match="broker-b"):
            await cluster.admin.describe_broker("broker-b")
        status = await cluster.admin.status()
        (refused,) = [each.error for each in status.brokers if each.name == "broker-b"]
        assert isinstance(refused, NoExternalAddress)
        assert networks.local.node("broker-b").address not in networks.dialled_from_here()
    async with rockoon.connect(networks.local.nameservers) as cluster:
        # Clients inside notice nothing of it.
        async with cluster.producer() as producer:
            assert (await producer.send("inner", b"x")).queue.broker == "broker-b"
        nodes = {node.name: node for node in cluster.routes.nodes}
        assert nodes["broker-a"].address == networks.local.node("broker-a").address
        assert nodes["broker-a"].external_address == networks.broker.address


async def test_an_offset_service_without_an_external_address_is_named_over_tls_too(
    tmp_path: Path,
) -> None:
    # The certificates of a local cluster have no other address.
    nameserver = f"127.0.0.1:{choose_port()}"
    settings = {"nameserver": {"external_listen": nameserver}}
    local = LocalCluster(tmp_path / "cluster", durable=False, settings=settings, tls="mutual")
    async with local, rockoon.connect(nameserver, tls=local.tls) as cluster:
        await cluster.admin.create_topic("t")
        with pytest.raises(NoExternalAddress, match=f"offset {NO_ADDRESS} offset"):
            await cluster.push_consumer("g", {"t": "*"}, print).start()
        with pytest.raises(NoExternalAddress, match="offset"):
            await cluster.admin.lag("g")


async def test_no_node_is_registered_by_who_comes_from_outside(networks: Networks) -> None:
    node = Node(kind=BROKER, name="broker-x", address="there:1", store_id="ours")
    async with aio.insecure_channel(networks.nameserver) as channel:
        stub = NameServerStub(channel)
        with pytest.raises(grpc.RpcError) as refusal:
            await stub.RegisterNode(RegisterNodeRequest(node=node))
    error = from_rpc_error(refusal.value, NameserverUnavailable, address="")
    assert isinstance(error, InvalidArgument)
    assert "external listener" in str(error)


async def test_who_watches_from_outside_is_told_outer_addresses(networks: Networks) -> None:
    async with aio.insecure_channel(networks.nameserver) as channel:
        watch = NameServerStub(channel).WatchRoutes(WatchRoutesRequest())
        async with asyncio.timeout(DEADLINE_SECONDS):
            update = await watch.read()
        watch.cancel()
    assert {(node.address, node.external_address) for node in update.nodes} == {
        (networks.broker.address, ""),
        (networks.offset.address, ""),
        ("", ""),
    }
