"""A broker with three copies: if its leader stops, clients continue and lose no message."""

import asyncio
import urllib.request
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

import rockoon
from rockoon.local.directory import choose_port
from rockoon_broker.server import serve
from rockoon_core.errors import NotReady, RockoonError
from rockoon_proto.v1.broker_pb2 import (
    BrokerQueue,
    CheckTransactionsRequest,
    QueueStatusRequest,
    SearchOffsetRequest,
)
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from rockoon_proto.v1.logs_pb2 import Log
from rockoon_runtime.process import Stop
from support.broker import RunningBroker, settings_of
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_watch import WatchingLog
from support.nameserver import Nameserver, running_nameserver
from support.waiting import DEADLINE_SECONDS


async def test_a_producer_goes_on_when_the_leader_leaves_and_everything_is_read(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stops: dict[str, Stop] = {}
        ports: list[int] = []
        for number in range(3):
            name = f"broker-a-{number}"
            ports.append(choose_port(set(ports)))
            settings = settings_of(
                tmp_path / name,
                [nameserver.address],
                cluster=cluster,
                copies=3,
                replica=name,
                metrics_listen=f"127.0.0.1:{ports[-1]}",
            )
            stops[name] = Stop()
            tasks.create_task(serve(settings, stops[name]), name=name)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                for number in range(10):
                    await producer.send("orders", b"%d" % number)
                # The health service of each copy reports that it leads, or is level with the
                # leader.
                for node in (await led_log(nameserver)).nodes:
                    await answered(partial(is_serving, node.address), bool)
                await answered(partial(measured, ports), told_of_three)
                described = await client.admin.logs.describe("broker-a")
                told = await client.admin.logs.ask_replicas(described)
                assert [each.ready for each in told.values()] == [True] * 3
                assert [len(each.others) for each in told.values() if each.leads] == [2]
                (log_status,) = (await client.admin.status()).logs
                assert log_status.is_well
                await nobody_waits_at_a_deposed_leader(client)
                leader = leader_of(await led_log(nameserver))
                stops[leader].request("a rolling restart")
                for number in range(10, 20):
                    await producer.send("orders", b"%d" % number)
                log = await led_log(nameserver)
                assert leader_of(log) != leader
                address = next(
                    node.address for node in log.nodes if node.store_id == log.state.leader
                )
                async with aio.insecure_channel(address) as channel:
                    reader = RunningBroker(address, channel, Stop())
                    stored = [int(body) for body in await reader.bodies("orders")]
                    # In order, and once: a leader that hands over has replied before.
                    assert stored == list(range(20))
                    for name in stops.keys() - {leader, leader_of(log)}:
                        stops[name].request("nobody is left to say who leads")
                    await answered(partial(tells_no_end, reader, len(stored)), bool)
                    assert len(await reader.bodies("orders")) == len(stored)
        finally:
            for stop in stops.values():
                stop.request("the test is over")


async def test_retention_deletes_of_all_copies_what_all_of_them_have(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stop, roots = Stop(), [tmp_path / f"broker-a-{number}" for number in range(3)]
        for root in roots:
            settings = settings_of(
                root,
                [nameserver.address],
                cluster=cluster,
                copies=3,
                replica=root.name,
                commit_log_file_bytes=4096,
                disk_check_interval_ms=1,
                reserved_hours=0,
                delete_when=";".join(f"{hour:02d}" for hour in range(24)),
            )
            tasks.create_task(serve(settings, stop), name=root.name)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                for _ in range(4):
                    await producer.send("orders", bytes(3000))
                # The last file stays, whatever its age; one may be reserved ahead.
                await eventually(
                    lambda: all(
                        min(path.name for path in (root / "commitlog").iterdir()) > f"{4096:020}"
                        for root in roots
                    )
                )
        finally:
            stop.request("the test is over")


async def test_a_copy_that_cannot_go_on_is_set_aside_and_made_anew(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    """The others have deleted the next records of a fourth replica while it was away."""
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stops: dict[str, Stop] = {}

        def start(name: str) -> "asyncio.Task[None]":
            settings = settings_of(
                tmp_path / name,
                [nameserver.address],
                cluster=cluster,
                copies=3,
                replica=name,
                commit_log_file_bytes=4096,
                disk_check_interval_ms=1,
                reserved_hours=0,
                delete_when=";".join(f"{hour:02d}" for hour in range(24)),
            )
            stops[name] = Stop()
            return tasks.create_task(serve(settings, stops[name]), name=name)

        def oldest(name: str) -> int:
            try:
                return min((int(each.name) for each in logs[name].iterdir()), default=0)
            except FileNotFoundError:
                # It is being set aside.
                return 0

        names = [f"broker-a-{number}" for number in range(4)]
        logs = {name: tmp_path / name / "commitlog" for name in names}
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                for name in names[:3]:
                    start(name)
                await answered(lambda: created(client), bool)
                await producer.send("orders", bytes(100))
                late = start(names[3])
                await eventually(lambda: logs[names[3]].exists() and any(logs[names[3]].iterdir()))
                stops[names[3]].request("away for a while")
                await late
                behind = oldest(names[3])
                for _ in range(4):
                    await producer.send("orders", bytes(3000))
                await eventually(lambda: all(oldest(name) > 4096 for name in names[:3]))
                start(names[3])
                await eventually(lambda: oldest(names[3]) > 4096)
            (aside,) = (tmp_path / names[3] / "lost").iterdir()
            former = (aside / "config" / "storeId").read_text().strip()
            assert aside.name == f"replica-{former}"
            assert min(int(each.name) for each in (aside / "commitlog").iterdir()) == behind
            log = await led_log(nameserver)
            assert former not in {each.replica_id for each in log.state.replicas}
        finally:
            for stop in stops.values():
                stop.request("the test is over")


async def nobody_waits_at_a_deposed_leader(client: rockoon.Cluster) -> None:
    """Streams of a broker's own calls end with its leadership, while its process continues."""
    leader = (await client.admin.logs.describe("broker-a")).leader
    assert leader is not None
    assert leader.address is not None
    async with aio.insecure_channel(leader.address) as channel:
        asked: Any = BrokerStub(channel).CheckTransactions(
            CheckTransactionsRequest(producer_group="payments", client_id="one")
        )
        await asked.read()
        await client.admin.logs.elect("broker-a")
        assert await asked.read() is aio.EOF


async def is_serving(address: str) -> bool:
    async with aio.insecure_channel(address) as channel:
        stub: Any = HealthStub(channel)
        return bool((await stub.Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING)


async def measured(ports: list[int]) -> str:
    """Return all metrics of the replicas."""

    def ask(port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read(), "utf-8")

    return "".join([await asyncio.to_thread(ask, port) for port in ports])


def told_of_three(page: str) -> bool:
    """Return whether one replica leads and two follow, level with it."""
    values: dict[str, list[float]] = {}
    for line in page.splitlines():
        if line.startswith("rockoon_"):
            values.setdefault(line.partition("{")[0], []).append(float(line.split()[-1]))
    wanted = {
        "rockoon_ready": [1, 1, 1],
        "rockoon_replica_leads": [0, 0, 1],
        "rockoon_replica_lag_bytes": [0, 0],
        "rockoon_replica_lag_seconds": [0, 0],
        "rockoon_replicas_missing": [0],
    }
    ends, epochs = (
        set(values.get(name, ()))
        for name in ("rockoon_replica_committed_end_bytes", "rockoon_replica_epoch")
    )
    told = {name: sorted(values.get(name, ())) for name in wanted}
    return told == wanted and len(ends) == len(epochs) == 1


async def tells_no_end(reader: RunningBroker, end: int) -> bool:
    """Return whether a broker refuses to report the end of a queue, which only a leader knows."""
    queue = BrokerQueue(topic="orders", queue_id=0)

    async def refused(ask: Coroutine[Any, Any, Any]) -> bool:
        try:
            await ask
        except NotReady:
            return True
        return False

    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(refused(ask))
            for ask in (
                reader.pull("orders", offset=end + 1),
                reader.call("QueueStatus", QueueStatusRequest(queues=[queue])),
                reader.call("SearchOffset", SearchOffsetRequest(queues=[queue])),
            )
        ]
    return all(task.result() for task in asked)


async def created(client: rockoon.Cluster) -> bool:
    try:
        await client.admin.create_topic("orders", queues_per_broker=1, if_absent=True)
    except RockoonError:
        # No replica leads the log yet.
        return False
    return True


async def led_log(nameserver: Nameserver) -> Log:
    async with WatchingLog(nameserver) as watching:
        return await watching.until(lambda log: log.state.leader and log.state.confirmed)


def leader_of(log: Log) -> str:
    """Return the name of the replica that leads."""
    return next(each.name for each in log.state.replicas if each.replica_id == log.state.leader)
