"""A cluster for all tests of a file, and a gateway for each test."""

import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import rockoon
from gateway.gateways import RunningGateway, running_gateway
from gateway.wire_client import WireClient
from rockoon.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(single=True) as cluster:
        yield cluster


@pytest.fixture
async def gateway(local_cluster: LocalCluster) -> AsyncIterator[RunningGateway]:
    async with running_gateway(local_cluster) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[WireClient]:
    async with WireClient(gateway.address) as connected:
        yield connected


@pytest.fixture
async def cluster(local_cluster: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local_cluster.nameservers) as connected:
        yield connected


@pytest.fixture
def stopped(local_cluster: LocalCluster) -> Iterator[Callable[[signal.Signals], None]]:
    """Sends signals to the process of the cluster, and resumes it at the end of the test."""
    (node,) = local_cluster.nodes
    yield node.signal
    node.signal(signal.SIGCONT)
