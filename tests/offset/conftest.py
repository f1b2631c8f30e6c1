from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from offset.cluster import TOPIC, Cluster
from offset.receiver import Receiver


@pytest.fixture
async def bare_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """As `cluster`, without topic and group."""
    async with Cluster(tmp_path) as started:
        yield started


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A running service, a nameserver, and a broker with topic `orders` of two queues and group
    `billing`."""
    async with Cluster(tmp_path) as started:
        await started.create_topic(queues=2)
        await started.set_group()
        yield started


@pytest.fixture
async def receiver(cluster: Cluster) -> Receiver:
    """A member of group `billing`; queue 0 of topic `orders` has ten messages."""
    cluster.broker.queue(TOPIC).append(10)
    return Receiver(cluster)
