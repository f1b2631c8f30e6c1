"""Fixture of all broker tests: a nameserver whose routes the test chooses."""

from collections.abc import AsyncIterator

import pytest

from support.broker_routes import BrokerRoutes


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        yield running
