"""The example with progress and effects in one database, killed at random points."""

import asyncio
import importlib.util
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rockoon
from rockoon.errors import StoreLocked
from rockoon.local import LocalCluster
from rockoon.offsets.custom_offset_store import OffsetSnapshot
from rockoon.offsets.start import Position
from rockoon_core.message_queue import MessageQueue
from support import doomed_counter
from support.seeds import seeds

MESSAGES = 1500
KILLS = 8
# Enough that all kills together leave work for the last run.
STEPS_MAX = 3 * MESSAGES // KILLS
EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "exactly_once_sqlite.py"
Q0 = MessageQueue("orders", "broker-a", 0)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    settings = {"offset": {"heartbeat_seconds": 0.1, "lease_seconds": 0.5}}
    with LocalCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exactly_once_sqlite", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def run(local: LocalCluster, topic: str, database: Path, step: int) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        doomed_counter.__file__,
        ",".join(local.nameservers),
        topic,
        str(database),
        str(MESSAGES),
        str(step),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode().strip()


@pytest.mark.parametrize("seed", seeds(1))
async def test_effects_are_there_exactly_once_however_often_the_process_is_killed(
    local: LocalCluster, example: ModuleType, tmp_path: Path, seed: int
) -> None:
    chance, topic = random.Random(seed), f"orders-{seed}"
    expected: Counter[str] = Counter()
    orders: Counter[str] = Counter()
    bodies = []
    for _ in range(MESSAGES):
        customer, amount = f"customer-{chance.randrange(20)}", chance.randrange(1000)
        expected[customer] += amount
        orders[customer] += 1
        bodies.append(f"{customer} {amount}".encode())
    async with rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(topic, queues_per_broker=2)
        async with cluster.producer() as producer:
            await producer.send_many(topic, bodies)
    database = tmp_path / "orders.db"
    for _ in range(KILLS):
        status, where = await run(local, topic, database, step=chance.randrange(1, STEPS_MAX))
        print(f"killed: {where}")
        assert status == -signal.SIGKILL
    assert await run(local, topic, database, step=0) == (0, "")
    wanted = {customer: (expected[customer], orders[customer]) for customer in sorted(expected)}
    assert example.totals(str(database)) == wanted


async def test_a_second_process_on_the_database_is_refused(
    example: ModuleType, tmp_path: Path
) -> None:
    path = str(tmp_path / "orders.db")
    first, second = example.SqliteBackend(path), example.SqliteBackend(path)
    await first.load()
    with pytest.raises(StoreLocked):
        await second.load()
    await second.close()
    await first.close()


async def test_what_was_handled_of_a_deleted_queue_is_not_taken_for_the_new_ones(
    example: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    backend = example.SqliteBackend(str(path))
    await backend.load()
    await backend.write(OffsetSnapshot({Q0: Position(5, create_revision=3)}, {"orders": 2}))
    backend.database.execute("INSERT INTO handled VALUES ('orders', 'broker-a', 0, 7)")
    await backend.write(OffsetSnapshot({Q0: Position(6, create_revision=3)}))
    assert backend._is_handled(("orders", "broker-a", 0), 7)
    await backend.write(OffsetSnapshot({Q0: Position(0, create_revision=9)}))
    assert not backend._is_handled(("orders", "broker-a", 0), 7)
    await backend.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM handled").fetchone() == (0,)
    database.close()
    assert await reloaded(example, path) == OffsetSnapshot(
        {Q0: Position(0, create_revision=9)}, {"orders": 2}
    )


async def reloaded(example: ModuleType, path: Path) -> OffsetSnapshot:
    backend = example.SqliteBackend(str(path))
    try:
        kept: OffsetSnapshot = await backend.load()
        return kept
    finally:
        await backend.close()
