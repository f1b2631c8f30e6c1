"""A nameserver and two appending brokers in memory, and a connection to them."""

from collections.abc import AsyncIterator

import pytest

import rockoon
from rockoon.cluster import Cluster
from support.fake_append_broker import FakeAppendBroker
from support.scripted_nameserver import ScriptedNameserver


@pytest.fixture
async def nameserver() -> AsyncIterator[ScriptedNameserver]:
    async with ScriptedNameserver() as running:
        yield running


@pytest.fixture
async def broker(nameserver: ScriptedNameserver) -> AsyncIterator[FakeAppendBroker]:
    async with FakeAppendBroker("broker-a", nameserver) as running:
        yield running


@pytest.fixture
async def other(nameserver: ScriptedNameserver) -> AsyncIterator[FakeAppendBroker]:
    async with FakeAppendBroker("broker-b", nameserver) as running:
        yield running


@pytest.fixture
async def cluster(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> AsyncIterator[Cluster]:
    nameserver.put_topic("orders", {"broker-a": 4})
    async with rockoon.connect(nameserver.address) as connected:
        yield connected
