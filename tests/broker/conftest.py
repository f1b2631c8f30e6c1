"""What every broker test starts from: a nameserver that tells what the test wants."""

from collections.abc import AsyncIterator

import pytest

from support.broker_routes import BrokerRoutes


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        yield running
