from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from offset.cluster import Cluster


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
