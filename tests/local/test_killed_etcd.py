"""The etcd of a local cluster keeps all acknowledged changes, however often it is killed."""

import asyncio
import os
import random
from asyncio.subprocess import DEVNULL
from pathlib import Path

import pytest

from rockoon.local.directory import choose_port
from rockoon.local.etcd import etcd_command, etcd_healthy, find_etcd
from rockoon_core.errors import EtcdUnavailable
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import PutKey, under
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

WRITERS = 100
# Long enough for a commit by etcd's clock, a tenth of a second, during the writes.
WRITE_SECONDS_MAX = 0.3


class Killed:
    """One etcd that is killed repeatedly during writes.

    Args:
        directory: directory of its data.
        program: path of the program.
        chance: chooses the times of the kills.
    """

    def __init__(self, directory: Path, program: Path, chance: random.Random) -> None:
        self.acknowledged: dict[str, int] = {}
        self._port = choose_port()
        # Without `sh` around it, which would survive the kill for a moment.
        words = etcd_command(program, directory, self._port, durable=False)
        self._command = words[words.index(str(program)) :]
        self._chance = chance
        self._written = 0

    async def round(self) -> dict[str, tuple[int, int]]:
        """Start it, read, write, kill it. Return key → (acknowledged, found) of lost keys."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            await eventually(lambda: etcd_healthy(self._port))
            endpoint = f"127.0.0.1:{self._port}"
            async with Etcd([endpoint], timeout_seconds=DEADLINE_SECONDS) as etcd:
                items = (await etcd.read(under("/k/"))).items
                found = {item.key: int(item.value) for item in items}
                lost = {
                    key: (number, found.get(key, 0))
                    for key, number in self.acknowledged.items()
                    if found.get(key, 0) < number
                }
                async with asyncio.TaskGroup() as tasks:
                    for writer in range(WRITERS):
                        tasks.create_task(
                            self._write(etcd, f"/k/{writer}"), name=f"writer {writer}"
                        )
                    await asyncio.sleep(self._chance.uniform(0.05, WRITE_SECONDS_MAX))
                    process.kill()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        return lost

    async def _write(self, etcd: Etcd, key: str) -> None:
        """Write until it is killed. A write under way then may have been done or not."""
        while True:
            self._written += 1
            number = self._written
            try:
                await etcd.transaction([], [PutKey(key, str(number).encode())])
            except EtcdUnavailable:
                return
            self.acknowledged[key] = number


@pytest.mark.parametrize("rounds", [3, pytest.param(300, marks=pytest.mark.soak)])
async def test_what_was_acknowledged_is_there_after_every_kill(tmp_path: Path, rounds: int) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    killed = Killed(tmp_path / "etcd", find_etcd(), random.Random(seed))
    for number in range(rounds + 1):
        assert await killed.round() == {}, f"round {number}"
    assert killed.acknowledged
