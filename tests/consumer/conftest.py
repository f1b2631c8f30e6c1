"""A cluster in memory and a connection to it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import rockoon
from rockoon.connection import Cluster
from support.fake_cluster import FakeCluster

WAIT_SECONDS_MAX = 15.0


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
async def cluster(fake: FakeCluster) -> AsyncIterator[Cluster]:
    async with rockoon.connect(fake.address) as connected:
        yield connected


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not holds():
            await asyncio.sleep(0.002)
