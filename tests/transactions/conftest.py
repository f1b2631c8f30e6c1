"""Fixture of all tests of transactions: a nameserver that knows one topic."""

from collections.abc import AsyncIterator

import pytest

from support.broker_routes import BrokerRoutes


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        await running.create_topic("orders", {"broker-a": 2})
        yield running
