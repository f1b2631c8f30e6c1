"""The example of payments in SQLite: database and topic agree, wherever the sender stops."""

import asyncio
import importlib.util
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import rockoon
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.waiting import DEADLINE_SECONDS

EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "pay_and_tell_sqlite.py"
SOON: dict[str, Any] = {
    "transaction_timeout_ms": 1,
    "transaction_check_interval_ms": 20,
    "transaction_checks_max": 10_000,
}


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("pay_and_tell_sqlite", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def until_told(broker: RunningBroker, shop: Any) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            told = await broker.bodies("orders", 0) + await broker.bodies("orders", 1)
            pending = (await broker.describe()).transactions_pending
            if sorted(told) == [order.encode() for order in shop.paid()] and not pending:
                return


async def test_what_is_paid_is_told_once_wherever_the_sender_stops(
    tmp_path: Path, nameserver: BrokerRoutes, example: Any
) -> None:
    shop = example.Shop(str(tmp_path / "shop.db"))
    async with running_broker(tmp_path / "store", [nameserver.address], **SOON) as broker:
        await example.main(nameserver.address, "orders", str(tmp_path / "shop.db"), "1", "2")
        async with (
            rockoon.connect(nameserver.address) as cluster,
            cluster.transactional_producer(example.GROUP, check=shop.check) as producer,
        ):
            with pytest.raises(sqlite3.IntegrityError):
                await example.pay(producer, "orders", shop, "2")
        async with rockoon.connect(nameserver.address) as cluster:
            stopping = cluster.transactional_producer(example.GROUP, check=shop.check)
            # Before the database, and after it.
            early = await stopping.begin("orders", b"3", check_after_seconds=0)
            late = await stopping.begin("orders", b"4", check_after_seconds=0)
            shop.mark_paid("4", late.message_id)
        async with (
            rockoon.connect(nameserver.address) as cluster,
            cluster.transactional_producer(example.GROUP, check=shop.check),
        ):
            await until_told(broker, shop)
        assert shop.paid() == ["1", "2", "4"]
        # A sender that was only slow is too late now: its message is gone.
        with pytest.raises(sqlite3.IntegrityError):
            shop.mark_paid("3", early.message_id)
