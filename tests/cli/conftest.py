"""One cluster for all tests of the command line, and the real command in its own process."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rockoon.cluster import connect
from rockoon.testing.disposable import DisposableCluster
from support.command_forks import CommandForks


@dataclass(frozen=True)
class Ran:
    """Result of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> list[list[str]]:
        """Return the words of each line."""
        return [line.split() for line in self.out.splitlines()]


class Command:
    """`rockoon` with the address of a cluster.

    Args:
        environment: environment of the command.
        forks: runs it.
    """

    def __init__(self, environment: dict[str, str], forks: CommandForks) -> None:
        self.environment = environment
        self.program = (sys.executable, "-m", "rockoon.cli")
        self._forks = forks

    def __call__(
        self,
        *arguments: str,
        stdin: str | bytes = "",
        output: str = "",
        status: int | None = 0,
    ) -> Ran:
        """Run it and check its exit status, unless any status is allowed."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        ran = Ran(*self._forks.run(arguments, given, output))
        assert status in (None, ran.status), f"{arguments}: {ran}"
        assert "Traceback" not in ran.err, ran.err
        return ran

    def fails(self, *arguments: str) -> str:
        """Run it, expect a failure, and return its one sentence."""
        lines = self(*arguments, status=1).err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("rockoon: ")
        return lines[0].removeprefix("rockoon: ")

    def misused(self, *arguments: str) -> str:
        """Run it, and expect the report of a wrong use."""
        return " ".join(self(*arguments, status=2).err.split())


@pytest.fixture(scope="session")
def cluster() -> Iterator[DisposableCluster]:
    # A killed broker stays in the routes, however slow a command is on a busy machine.
    settings = {"nameserver": {"node_lease_seconds": 600}}
    with DisposableCluster(brokers=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rockoon(
    cluster: DisposableCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Command]:
    environment = {**os.environ, "ROCKOON_NAMESERVERS": ",".join(cluster.nameservers)}
    with CommandForks(tmp_path_factory.mktemp("command"), environment) as forks:
        yield Command(environment, forks)


@pytest.fixture
def topic(cluster: DisposableCluster, request: pytest.FixtureRequest) -> str:
    """A topic of one test, with a queue on each of the two brokers."""
    return cluster.new_topic(request.node.name, queues_per_broker=1)


@pytest.fixture
def filled(cluster: DisposableCluster, topic: str) -> str:
    """A topic of one test, with eight messages in the queue on each of the two brokers."""

    async def send() -> None:
        async with connect(cluster.nameservers) as connected, connected.producer() as producer:
            for each in (await connected.admin.describe_topic(topic)).queues:
                await producer.send_many(topic, [b"body"] * 8, queue=each.queue)

    asyncio.run(send())
    return topic


@pytest.fixture(scope="session")
def taken(cluster: DisposableCluster) -> str:
    """A topic that stays empty."""
    return cluster.new_topic("taken")
