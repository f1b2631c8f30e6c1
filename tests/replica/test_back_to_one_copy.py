"""A log returns to one copy: its only voter has the whole log, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.local.directory import choose_port
from rockoon_broker.server import serve
from rockoon_core.disk import Disk
from rockoon_core.replication_rules import Config
from rockoon_offset.server import serve as serve_offset
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1.nameserver_pb2 import ReplicaFacts as WireFacts
from rockoon_replica.log_state import StateVersion
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from rockoon_runtime.process import Fatal, Stop
from support.broker import RunningBroker, settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_watch import register
from support.nameserver import Nameserver, running_nameserver
from support.waiting import DEADLINE_SECONDS

LOG, TOPIC = "broker-a", "orders"
ITS_ID = "a" * 32


def copy_of_three(root: Path, **changes: Any) -> Path:
    """The empty store of a replica that has voted with two others."""
    facts = ReplicaFacts(
        promised=1,
        led=1,
        version=StateVersion(0, 3),
        config=Config(frozenset({ITS_ID, "b", "c"}), 2),
    )
    (root / "config").mkdir(parents=True)
    (root / "config" / "storeId").write_text(ITS_ID)
    ReplicaFile(root / "config", Disk()).write(facts._replace(**changes))
    return root


def is_untouched(root: Path) -> bool:
    """Return whether the log was not opened: a start would show, and keep, unconfirmed records."""
    return {path.name for path in root.iterdir()} <= {"config", "lock"}


async def test_a_copy_s_store_is_not_opened_as_a_broker_s_own_while_others_count(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    root = copy_of_three(tmp_path / "store")
    async with running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,)) as nameserver:
        for who in (ITS_ID, "b", "c"):
            await register(nameserver, who, facts=WireFacts(empty=True, copies=3))
        settings = settings_of(root, [nameserver.address], cluster=cluster)
        with pytest.raises(ExceptionGroup) as refused:
            await serve(settings, Stop())
        assert refused.group_contains(Fatal, match="rockoon log copies broker-a 1")
    assert is_untouched(root)


async def test_nor_while_no_nameserver_says_how_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, stop = copy_of_three(tmp_path / "store"), Stop()
    settings = settings_of(root, [f"127.0.0.1:{choose_port()}"])
    announced: list[object] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop, announce=lambda *told: announced.append(told)))
        await eventually(lambda: caplog.text.count("did not say whether it has other copies") > 1)
        stop.request("the test is over")
    assert announced == []
    assert is_untouched(root)


async def test_an_offset_service_of_one_copy_does_not_open_the_store_of_a_copy_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy_of_three(tmp_path)
    stop, settings = (
        Stop(),
        OffsetSettings(
            store_path=tmp_path / "config",
            listen="127.0.0.1:0",
            nameservers=(f"127.0.0.1:{choose_port()}",),
        ),
    )
    (settings.store_path / "storeId").rename(settings.store_path / "store_id")
    before = {path.name for path in settings.store_path.iterdir()}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_offset(settings, stop))
        await eventually(lambda: caplog.text.count("did not say whether it has other copies") > 1)
        stop.request("the test is over")
    assert {path.name for path in settings.store_path.iterdir()} == before | {"lock"}


class Log:
    """Brokers of one log, in this process, and a client that sends numbers."""

    def __init__(self, root: Path, nameserver: Nameserver, cluster: str) -> None:
        self.root = root
        self.nameserver = nameserver
        self.cluster = cluster
        self.stops: dict[str, Stop] = {}
        self.living: dict[str, asyncio.Task[None]] = {}
        self.tasks: asyncio.TaskGroup
        self.client: rockoon.Cluster
        self.sent = 0
        self.is_over = False

    def start(self, name: str, copies: int) -> None:
        settings = settings_of(
            self.root / name,
            [self.nameserver.address],
            cluster=self.cluster,
            copies=copies,
            replica=name if copies > 1 else "",
        )
        stop = self.stops[name] = Stop()
        self.living[name] = self.tasks.create_task(serve(settings, stop), name=name)

    async def stop(self, *names: str) -> None:
        for name in names:
            self.stops[name].request("the operator says so")
            await self.living[name]

    async def send(self) -> None:
        """Send numbers one after another until the end; a failed send is a failure."""
        patience = {"idempotent": True, "delivery_timeout_seconds": DEADLINE_SECONDS}
        async with self.client.producer(**patience) as producer:
            while not self.is_over:
                await producer.send(TOPIC, b"%d" % self.sent)
                self.sent += 1

    async def goes_on(self) -> None:
        """Wait for some sends from now on."""
        enough = self.sent + 10
        await eventually(lambda: self.sent >= enough)

    async def until(self, holds: Callable[[LogDescription], object]) -> LogDescription:
        async def found() -> LogDescription | None:
            return next(iter(await self.client.admin.logs.list()), None)

        described = await answered(found, lambda log: log is not None and holds(log))
        assert described is not None
        return described

    async def stored(self, address: str) -> list[int]:
        async with aio.insecure_channel(address) as channel:
            bodies = await RunningBroker(address, channel, Stop()).bodies(TOPIC)
        return list(map(int, bodies))


@asynccontextmanager
async def running_log(root: Path, etcd: EtcdServer, cluster: str) -> AsyncIterator[Log]:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(etcd.endpoint,))
        )
        log = Log(root, nameserver, cluster)
        log.tasks = await stack.enter_async_context(asyncio.TaskGroup())
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as log.client,
            ):
                yield log
        finally:
            for stop in log.stops.values():
                stop.request("the test is over")


def counting(count: int) -> Callable[[LogDescription], bool]:
    return lambda log: log.confirmed and log.leader is not None and len(log.in_sync) == count


@pytest.mark.soak
async def test_one_copy_becomes_three_and_one_and_three_while_messages_are_sent(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_log(tmp_path, shared_etcd, cluster) as log:
        log.start("broker-a-0", 1)
        await log.until(counting(1))
        await log.client.admin.create_topic(TOPIC, queues_per_broker=1)
        sending = log.tasks.create_task(log.send(), name="sending")
        await log.goes_on()
        # Followers may start before there is a leader to copy from.
        for name in ("broker-a-1", "broker-a-2"):
            log.start(name, 3)
        await log.until(lambda found: len(found.replicas) == 3)
        await log.goes_on()
        await log.stop("broker-a-0")
        log.start("broker-a-0", 3)
        described = await log.until(counting(3))
        await log.goes_on()
        # Not the leader: it hands over first.
        stays = next(each for each in described.in_sync if not each.is_leader)
        await log.client.admin.logs.set_copies(LOG, 1, stays.id)
        described = await log.until(counting(1))
        assert [each.id for each in described.in_sync] == [stays.id]
        await log.goes_on()
        others = [each.name for each in described.replicas if each.id != stays.id]
        # One of them still runs when the broker starts.
        await log.stop(others[0], stays.name)
        log.start(stays.name, 1)
        await log.goes_on()
        await log.stop(others[1])
        described = await log.until(lambda found: len(found.replicas) == 1)
        assert (described.copies, described.quorum) == (1, 1)
        for name in ("broker-a-7", "broker-a-8"):
            log.start(name, 3)
        await log.stop(stays.name)
        log.start(stays.name, 3)
        described = await log.until(counting(3))
        await log.goes_on()
        log.is_over = True
        await sending
        leader = (await log.until(counting(3))).leader
        assert leader is not None
        assert leader.address is not None
        assert await log.stored(leader.address) == list(range(log.sent))
