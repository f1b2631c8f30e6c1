"""A cluster in one process for all tests of a file, and a topic and a group for each."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from receiving.orders import Orders

import rockoon
from rockoon.cluster import Cluster
from rockoon.local import LocalCluster

numbers = itertools.count()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(single=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(local.nameservers) as connected:
        yield connected


@pytest.fixture
async def orders(cluster: Cluster) -> Orders:
    topic = f"orders-{next(numbers)}"
    await cluster.admin.create_topic(topic, queues_per_broker=4)
    return Orders(cluster, topic)
