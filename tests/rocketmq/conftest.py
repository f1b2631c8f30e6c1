"""Tests that need a real broker: not part of `make test`, see `make rocketmq`."""

from pathlib import Path

import pytest

from rocketmq import real

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.rocketmq)


@pytest.fixture(scope="session", autouse=True)
def rocketmq_is_there() -> None:
    try:
        real.prepare()
    except real.NoRocketMq as reason:
        pytest.skip(f"RocketMQ cannot be run: {reason}")
