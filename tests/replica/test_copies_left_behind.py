"""A copy that is away for longer than retention waits does not count, and begins again later."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import rockoon
from replica.test_broker_copies import created, leader_of, led_log, measured
from rockoon.local.directory import choose_port
from rockoon_broker.server import serve
from rockoon_runtime.process import Stop
from support.broker import settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.nameserver import Nameserver, running_nameserver
from support.waiting import DEADLINE_SECONDS

FILE_BYTES = 4096


class Retaining:
    """Three replicas of one log that is older than the retention time; a file has one message.

    Args:
        away_seconds: time for which retention waits for a copy.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        root: Path,
        nameserver: Nameserver,
        cluster: str,
        away_seconds: float,
    ) -> None:
        self._tasks, self._root = tasks, root
        self._nameserver, self._cluster = nameserver, cluster
        self._away_seconds = away_seconds
        self.names = [f"broker-a-{number}" for number in range(3)]
        self.ports: list[int] = []
        for _ in self.names:
            self.ports.append(choose_port(set(self.ports)))
        self._running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}

    def start(self, name: str) -> None:
        settings = settings_of(
            self._root / name,
            [self._nameserver.address],
            cluster=self._cluster,
            copies=3,
            replica=name,
            metrics_listen=f"127.0.0.1:{self.ports[self.names.index(name)]}",
            commit_log_file_bytes=FILE_BYTES,
            disk_check_interval_ms=10,
            reserved_hours=0,
            delete_when=";".join(f"{hour:02d}" for hour in range(24)),
            copy_away_seconds_max=self._away_seconds,
        )
        stop = Stop()
        self._running[name] = stop, self._tasks.create_task(serve(settings, stop), name=name)

    async def stop(self, name: str) -> None:
        stop, task = self._running.pop(name)
        stop.request("away for a while")
        await task

    def stop_all(self) -> None:
        for stop, _ in self._running.values():
            stop.request("the test is over")

    def oldest(self, name: str) -> int:
        """Return the beginning of a replica's log; 0: unknown."""
        try:
            found = (self._root / name / "commitlog").iterdir()
            return min((int(each.name) for each in found), default=0)
        except FileNotFoundError:
            # It is being set aside.
            return 0

    def aside(self, name: str) -> list[str]:
        """Return the former replicas of a process."""
        lost = self._root / name / "lost"
        return sorted(each.name for each in lost.iterdir()) if lost.exists() else []


async def held_bytes(ports: list[int]) -> list[float]:
    """Return the copies for which retention waits, as reported by each leading broker."""
    page = await measured(ports)
    return [
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("rockoon_retention_held_bytes")
    ]


async def test_retention_goes_on_without_a_copy_that_is_away_and_that_is_made_anew(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Retaining(tasks, tmp_path, nameserver, cluster, 3.0)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                for name in brokers.names:
                    brokers.start(name)
                await answered(lambda: created(client), bool)
                await producer.send("orders", bytes(100))
                log = await led_log(nameserver)
                assert len(log.state.in_sync) == 3
                away = next(name for name in brokers.names if name != leader_of(log))
                ids = {each.name: each.replica_id for each in log.state.replicas}
                await brokers.stop(away)
                others = [name for name in brokers.names if name != away]
                ports = [brokers.ports[brokers.names.index(name)] for name in others]
                for _ in range(6):
                    await producer.send("orders", bytes(3000))
                # At first retention waits for it, and reports this.
                await answered(lambda: held_bytes(ports), any)
                # Then it does not count any more, and retention deletes files.
                await eventually(
                    lambda: all(brokers.oldest(name) > 3 * FILE_BYTES for name in others)
                )
                log = await led_log(nameserver)
                assert set(log.state.in_sync) == {ids[name] for name in others}
                assert log.state.quorum == 2
                (told,) = (await client.admin.status()).logs
                assert not told.is_well
                await producer.send("orders", b"goes on")
                # It returns before the beginning of the log: as another replica, which counts in
                # the end.
                brokers.start(away)
                log = await answered(
                    lambda: led_log(nameserver), lambda log: len(log.state.in_sync) == 3
                )
                assert ids[away] not in {each.replica_id for each in log.state.replicas}
                assert brokers.aside(away) == [f"replica-{ids[away]}"]
                assert not any(brokers.aside(name) for name in others)
        finally:
            brokers.stop_all()
