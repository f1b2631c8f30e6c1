"""What every broker test starts from: a nameserver that tells what the test wants."""

from collections.abc import AsyncIterator

import pytest

from support.fake_nameserver import FakeNameserver


@pytest.fixture
async def nameserver() -> AsyncIterator[FakeNameserver]:
    async with FakeNameserver() as running:
        yield running
