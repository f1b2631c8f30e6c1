"""Fixture of a node's tests: a nameserver, and a node that calls it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from rockoon_node.nameservers import Nameservers
from support.broker_routes import BrokerRoutes


@pytest.fixture
async def nameserver() -> AsyncIterator[BrokerRoutes]:
    async with BrokerRoutes() as running:
        yield running


@pytest.fixture
async def told_of() -> AsyncIterator[Callable[..., Nameservers]]:
    """Creates the parts of a service that knows some addresses; closed at the end."""
    async with AsyncExitStack() as stack:

        def make(*addresses: str) -> Nameservers:
            nameservers = Nameservers(addresses, "rockoon")
            stack.push_async_callback(nameservers.close)
            return nameservers

        yield make
