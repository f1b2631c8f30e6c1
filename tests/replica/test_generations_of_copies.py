"""Compacted topics of a log with three copies: each leader has all remaining messages."""

import asyncio
import shutil
import subprocess
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import rockoon
from replica.test_killed_brokers import NAMES, broker_process, created
from rockoon_broker.server import serve
from rockoon_core.errors import GenerationRefused, RockoonError
from rockoon_format.generation import CURRENT_FILE, MANIFEST_FILE, decode_current, generation_name
from rockoon_runtime.process import Stop
from support.broker import CHANNEL_OPTIONS, RunningBroker, settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.generations import made_elsewhere, publish, upload
from support.nameserver import running_nameserver

TOPIC = "Latest"
COMPACTED = {TOPIC: 86_400_000}
SMALL: dict[str, Any] = {
    "commit-log-file-bytes": 8192,
    "disk-check-interval-ms": 100,
    "reserved-hours": 0,
    "delete-when": ";".join(f"{hour:02d}" for hour in range(24)),
}


class ThreeCopies:
    """The replicas of one log, in this process, and a client.

    Args:
        root: parent of the stores.
        where: nameserver, and name of the cluster.
        tasks: of the replicas.
    """

    def __init__(
        self,
        root: Path,
        where: tuple[str, str],
        client: rockoon.Cluster,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.root = root
        self.client = client
        self.where = where
        self._tasks = tasks
        self._running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}
        self._copies = 0

    def start(self, *names: str) -> None:
        nameserver, cluster = self.where
        small = {key.replace("-", "_"): value for key, value in SMALL.items()}
        for name in names:
            parts = {"cluster": cluster, "copies": 3, "replica": name}
            settings = settings_of(self.root / name, [nameserver], **parts, **small)
            stop = Stop()
            self._running[name] = stop, self._tasks.create_task(serve(settings, stop), name=name)

    async def end(self, name: str) -> None:
        stop, task = self._running.pop(name)
        stop.request("the test says so")
        await task

    async def end_all(self) -> None:
        for name in list(self._running):
            await self.end(name)

    async def leader(self) -> str:
        """Return the leader that replies."""

        async def found() -> str:
            try:
                log = await self.client.admin.logs.describe("broker-a")
                if log.leader is None or log.leader.address is None:
                    return ""
                async with aio.insecure_channel(log.leader.address) as channel:
                    await RunningBroker(log.leader.address, channel, Stop()).describe()
            except RockoonError:
                return ""
            return log.leader.name

        return await answered(found, bool)

    async def calls(self, stack: AsyncExitStack) -> RunningBroker:
        """Send to the current leader."""
        await self.leader()
        log = await self.client.admin.logs.describe("broker-a")
        assert log.leader is not None
        assert log.leader.address is not None
        dialed = aio.insecure_channel(log.leader.address, options=CHANNEL_OPTIONS)
        channel = await stack.enter_async_context(dialed)
        return RunningBroker(log.leader.address, channel, Stop())

    async def lead(self, name: str, producer: rockoon.Producer) -> None:
        """Elect a replica: it has more records than another one that was away."""
        if await self.leader() == name:
            return
        away, other = (each for each in NAMES if each != name)
        await self.end(away)
        await self.leader()
        await producer.send("orders", b"the other is away")
        if await self.leader() != name:
            await self.end(other)
            self.start(away)
            assert await self.leader() == name
            away = other
        self.start(away)

    def made(self, leader: str) -> Path:
        """Make the next generation of a leader's log."""
        self._copies += 1
        copy = self.root / f"made-{self._copies}"
        return made_elsewhere(self.root / leader, copy, topics=COMPACTED, links=True)

    async def compact(self, upload_id: str) -> bytes:
        """Upload a generation to the leader; return its manifest."""
        async with AsyncExitStack() as stack:
            leader = await self.leader()
            broker = await self.calls(stack)
            manifest = await upload(broker, self.made(leader), upload_id)
            await publish(broker, upload_id, manifest)
            return manifest

    def in_force(self, name: str) -> bytes:
        """Return the manifest of the generation that a copy uses; empty if there is none."""
        home = self.root / name / "compacted"
        try:
            number = decode_current((home / CURRENT_FILE).read_bytes())
            return (home / generation_name(number) / MANIFEST_FILE).read_bytes()
        except FileNotFoundError:
            return b""

    def log_min(self, name: str) -> int:
        files = (self.root / name / "commitlog").glob("0*")
        return min((int(each.name) for each in files), default=0)

    async def level(self, manifest: bytes) -> None:
        """Wait until all copies use it, and have deleted its files of the log."""
        await eventually(lambda: all(self.in_force(name) == manifest for name in NAMES))
        await eventually(lambda: all(self.log_min(name) > 8192 for name in NAMES))

    async def read(self) -> list[bytes]:
        """Return the messages of the topic's readers, once the leader knows the topic."""

        async def bodies() -> list[bytes]:
            try:
                async with AsyncExitStack() as stack:
                    return await (await self.calls(stack)).bodies(TOPIC)
            except RockoonError:
                return []

        return await answered(bodies, bool)


async def sent(producer: rockoon.Producer, **values: bytes) -> None:
    for key, body in values.items():
        await producer.send(TOPIC, body + bytes(1500), keys=key)


class ThreeProcesses(ThreeCopies):
    """As `ThreeCopies`, each in a process, which is killed."""

    def __init__(self, *parts: Any, ends: ExitStack) -> None:
        super().__init__(*parts)
        self._ends = ends
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            process = broker_process(name, self.root, *self.where, **SMALL)
            self._processes[name] = self._ends.enter_context(process)

    async def end(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()


async def compacted_topic(client: rockoon.Cluster) -> None:
    """Create an ordinary topic, too."""
    await answered(lambda: created(client), bool)
    policy = {"cleanup.policy": "COMPACTION"}
    await client.admin.create_topic(TOPIC, queues_per_broker=1, attributes=policy)


async def filled(producer: rockoon.Producer) -> None:
    """Delete earlier files by retention."""
    for _ in range(2):
        await producer.send("orders", bytes(6000))


async def test_a_copy_from_an_empty_disk_has_what_was_deleted_before_it_votes(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with (
        running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,)) as nameserver,
        rockoon.connect(nameserver.address, cluster=cluster) as client,
        client.producer() as producer,
        asyncio.TaskGroup() as tasks,
    ):
        copies = ThreeCopies(tmp_path, (nameserver.address, cluster), client, tasks)
        copies.start(*NAMES)
        try:
            await compacted_topic(client)
            await sent(producer, a=b"1", b=b"1")
            await sent(producer, a=b"2", c=b"1")
            await filled(producer)
            manifest = await copies.compact("one")
            await filled(producer)
            await copies.level(manifest)
            await sent(producer, b=b"2")

            leader = await copies.leader()
            emptied = next(name for name in NAMES if name != leader)
            await copies.end(emptied)
            shutil.rmtree(tmp_path / emptied)
            copies.start(emptied)

            async def votes() -> bool:
                log = await client.admin.logs.describe("broker-a")
                return emptied in {each.name for each in log.in_sync if each.address}

            await answered(votes, bool)
            assert copies.in_force(emptied) == manifest
            assert copies.log_min(emptied) > 0
            await copies.lead(emptied, producer)
            assert [body[:1] for body in await copies.read()] == [b"1", b"2", b"1", b"2"]
        finally:
            await copies.end_all()


@pytest.mark.soak
async def test_a_generation_is_on_all_copies_and_each_shows_the_same_when_it_leads(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    with ExitStack() as ends:
        async with (
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,)) as nameserver,
            rockoon.connect(nameserver.address, cluster=cluster) as client,
            client.producer() as producer,
        ):
            where = (nameserver.address, cluster)
            copies = ThreeProcesses(tmp_path, where, client, None, ends=ends)
            copies.start(*NAMES)
            await compacted_topic(client)
            await sent(producer, a=b"1", b=b"1")
            await sent(producer, a=b"2", c=b"1")

            # Uploaded; the leader is killed before the publication.
            leader = await copies.leader()
            async with AsyncExitStack() as stack:
                manifest = await upload(await copies.calls(stack), copies.made(leader), "one")
            await copies.end(leader)
            async with AsyncExitStack() as stack:
                broker = await copies.calls(stack)
                with pytest.raises(GenerationRefused, match="in upload"):
                    await publish(broker, "one", manifest)
            assert len(await copies.read()) == 4
            copies.start(leader)

            # Published; the leader is killed right after it.
            await copies.compact("two")
            await copies.end(await copies.leader())
            shown = [body[:1] for body in await copies.read()]
            assert shown in ([b"1", b"2", b"1"], [b"1", b"1", b"2", b"1"])
            for name in NAMES:
                await copies.end(name)
            copies.start(*NAMES)

            # The second generation of a log that had one before.
            for number in range(2):
                await sent(producer, a=b"%d" % (3 + number), d=b"%d" % number)
                await filled(producer)
                manifest = await copies.compact(f"three-{number}")
            await copies.level(manifest)
            for name in NAMES:
                await copies.lead(name, producer)
                shown = [body[:1] for body in await copies.read()]
                assert shown == [b"1", b"1", b"4", b"1"], name
