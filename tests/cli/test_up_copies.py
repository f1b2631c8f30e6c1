"""`rockoon up` from one copy to three and back, and commands for copies, while a group reads."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import rockoon
from rockoon.local.directory import choose_port
from support.eventually import answered, moves_until
from support.seeds import seeds
from support.up_process import ROCKOON, Up, run, up
from support.waiting import DEADLINE_SECONDS

TOPIC, GROUP = "orders", "billing"
LOGS = ("broker-a", "offset")
# A cluster may be away for the time of two starts.
PATIENCE_SECONDS = 10 * DEADLINE_SECONDS


class Load:
    """Sends numbers, one after another, and reads them in a group."""

    def __init__(self) -> None:
        self.sent = 0
        self.seen: list[int] = []
        self.is_over = False

    async def run(self, port: int) -> None:
        async with (
            rockoon.connect(f"127.0.0.1:{port}", retry_seconds=PATIENCE_SECONDS) as cluster,
            cluster.producer(
                idempotent=True, delivery_timeout_seconds=PATIENCE_SECONDS
            ) as producer,
            cluster.push_consumer(GROUP, {TOPIC: "*"}, self.take, consume_from="first"),
        ):
            while not self.is_over:
                await producer.send(TOPIC, b"%d" % self.sent)
                self.sent += 1
            await moves_until(lambda: len(set(self.seen)), lambda count: count == self.sent)
        assert list(dict.fromkeys(self.seen)) == list(range(self.sent))

    async def take(self, message: rockoon.Message) -> None:
        self.seen.append(int(message.body))

    async def goes_on(self) -> None:
        """Wait until some more were sent and read."""
        enough = self.sent + 20
        await moves_until(lambda: len(set(self.seen)), lambda count: count >= enough)


class Cluster:
    """`rockoon up` on one directory, repeatedly, and commands for it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port

    @asynccontextmanager
    async def up(self, *options: str) -> AsyncIterator[Up]:
        entered = up(self.directory, self.port, *options)
        running = await asyncio.to_thread(entered.__enter__)
        try:
            yield running
            assert await asyncio.to_thread(running.end, signal.SIGINT) == 0
        finally:
            await asyncio.to_thread(entered.__exit__, None, None, None)

    async def run(self, *arguments: str) -> str:
        return await asyncio.to_thread(run, self.port, *arguments)

    async def log(self, log: str, holds: Callable[[Any], object]) -> Any:
        """Return a log from `rockoon log describe`, once a condition is true."""

        async def described() -> Any:
            return json.loads(await self.run("log", "describe", log, "--json"))

        return await answered(described, holds)

    async def node(self, action: str, name: str) -> None:
        command = [*ROCKOON, "up", action, name, "--dir", str(self.directory)]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=DEADLINE_SECONDS)

    def interrupted(self, options: Sequence[str], seconds: float) -> None:
        """Start `rockoon up` and kill it after this time."""
        command = [*ROCKOON, "up", "--dir", str(self.directory), "--port", str(self.port)]
        with (self.directory.with_suffix(".interrupted")).open("wb") as output:
            process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def names(log: Any) -> set[str]:
    return {each["name"] for each in log["replicas"] if each["in_sync"]}


def counting(count: int) -> Callable[[Any], object]:
    return lambda log: log["confirmed"] and log["leader"] and len(names(log)) == count


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", seeds(1))
async def test_one_copy_becomes_three_and_one_again_by_the_commands_and_nothing_is_lost(
    seed: int, tmp_path: Path
) -> None:
    chance, port = random.Random(seed), choose_port()
    load, cluster = Load(), Cluster(tmp_path / "data", port)
    async with asyncio.TaskGroup() as tasks:
        async with cluster.up():
            await cluster.run("topic", "create", TOPIC, "--queues", "1")
            loading = tasks.create_task(load.run(port))
            await load.goes_on()
        async with cluster.up("--replicas", "3"):
            for log in LOGS:
                await cluster.log(log, counting(3))
            await load.goes_on()
            await replace_a_copy(cluster, load)
            for log in LOGS:
                await cluster.run("log", "copies", log, "1")
                await cluster.log(log, counting(1))
            await load.goes_on()
            for log in LOGS:
                await cluster.run("log", "copies", log, "3")
                await cluster.log(log, counting(3))
            await load.goes_on()
        for _ in range(2):
            # Wherever it is interrupted.
            await asyncio.to_thread(cluster.interrupted, ("--replicas", "1"), chance.uniform(2, 20))
        async with cluster.up("--replicas", "1"):
            for log in LOGS:
                await cluster.log(log, counting(1))
            await load.goes_on()
        async with cluster.up("--replicas", "3"):
            for log in LOGS:
                await cluster.log(log, counting(3))
            await load.goes_on()
            status = json.loads(await cluster.run("status", "--json"))
            assert [each["well"] for each in status["logs"]] == [True, True]
            load.is_over = True
            await loading


async def replace_a_copy(cluster: Cluster, load: Load) -> None:
    """Replace a copy of the offset service by another process, and back."""
    await cluster.node("kill", "offset-0")
    settings = {
        "name": "offset",
        "replica": "offset-9",
        "copies": 3,
        "listen": "127.0.0.1:0",
        "store-path": cluster.directory.with_name("offset-9"),
        "nameservers": f"127.0.0.1:{cluster.port}",
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "rockoon_offset", "--stop-with-parent", *flags]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        await cluster.log("offset", lambda log: len(log["replicas"]) == 4)
        await cluster.run("replica", "replace", "offset", "offset-0", "offset-9")
        await cluster.log("offset", lambda log: "offset-9" in names(log))
        await load.goes_on()
        await cluster.node("start", "offset-0")
        await cluster.run("replica", "replace", "offset", "offset-9", "offset-0")
        await cluster.log("offset", lambda log: "offset-0" in names(log))
        await load.goes_on()
    finally:
        process.terminate()
        await process.wait()
