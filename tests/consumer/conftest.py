"""A cluster in memory and a connection to it."""

from collections.abc import AsyncIterator

import pytest

import rockoon
from rockoon.cluster import Cluster
from support.fake_cluster import FakeCluster


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(fake: FakeCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(fake.address) as connected:
        yield connected
