"""The service as a process: killed, refused by a lock, registered, on a full disk."""

import asyncio
import contextlib
import json
import random
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from offset.cluster import GROUP, TOPIC, Cluster, running

from rockoon_node.registration import boot_seconds
from rockoon_offset.journal.journal_files import journal_path
from rockoon_offset.server import serve
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import ExitStatus, Fatal, Stop, root_cause
from rockoon_runtime.wire import QUIET_SECONDS
from support.eventually import answered, eventually, moves_until
from support.received_messages import ReceivedMessages
from support.seeds import seeds
from support.waiting import DEADLINE_SECONDS

COMMITTERS = 20
KILLS = 3
# Messages of each queue that receivers finish one by one.
RECEIVED = 400


class Process:
    """`python -m rockoon_offset` with a stub for calls."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: aio.Channel, ready: Any
    ) -> None:
        self.process = process
        self.stub: Any = OffsetServiceStub(channel)
        self.receivers: Any = InFlightServiceStub(channel)
        self.ready = ready

    async def killed(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@contextlib.asynccontextmanager
async def process(
    cluster: Cluster, *arguments: str, file_bytes_max: int = resource.RLIM_INFINITY
) -> AsyncIterator[Process]:
    """The cluster's own service must be stopped: there is one store."""
    # The process limits itself: between fork and exec, gRPC's threads allow nothing.
    code = (
        "import resource, runpy; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes_max},) * 2); "
        "runpy.run_module('rockoon_offset', run_name='__main__', alter_sys=True)"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        "--listen=127.0.0.1:0",
        f"--nameservers={cluster.nameserver.address}",
        f"--store-path={cluster.store_path}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            ready = await started.stdout.readline()
        line = json.loads(ready) if ready else {}
        async with aio.insecure_channel(line.get("address", "127.0.0.1:1")) as channel:
            yield Process(started, channel, line)
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def starts(stub: Any, cluster: Cluster, queues: int) -> list[pb.Start]:
    request = pb.ResolveRequest(
        group=GROUP,
        member_id="m1",
        queues=[cluster.ref(queue_id) for queue_id in range(queues)],
        policy=ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST),
        route_revision=cluster.nameserver.revision,
    )
    return list((await stub.Resolve(request)).starts)


async def starts_or_none(stub: Any, cluster: Cluster) -> list[pb.Start]:
    """Return None while the service is not ready."""
    try:
        return await starts(stub, cluster, 1)
    except aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return []


async def commit_until_it_dies(
    stub: Any, cluster: Cluster, start: pb.Start, acknowledged: dict[int, int]
) -> None:
    """Commit one by one; record the acknowledged offsets."""
    offset = start.offset
    with contextlib.suppress(aio.AioRpcError):
        while True:
            offset += 1
            entry = pb.CommitEntry(queue=start.queue, offset=offset, epoch=start.epoch)
            request = pb.CommitRequest(group=GROUP, member_id="m1", entries=[entry])
            (result,) = (await stub.Commit(request)).results
            if result.HasField("error"):
                raise AssertionError(result.error.message)
            acknowledged[start.queue.queue_id] = offset


async def test_killed_again_and_again_under_load_nothing_acknowledged_is_lost(
    cluster: Cluster,
) -> None:
    await cluster.stop_service()
    await cluster.create_topic("busy", queues=1)
    await cluster.add_queues(COMMITTERS - 2)
    for queue_id in range(COMMITTERS):
        cluster.broker.queue(TOPIC, queue_id).append(1_000_000)
    acknowledged: dict[int, int] = {}
    for kill in range(1, KILLS + 1):
        # A small journal, so that generations change under the load too.
        async with process(cluster, "--journal-bytes-max=16384") as service:
            found = await starts(service.stub, cluster, COMMITTERS)
            for start in found:
                assert start.offset >= acknowledged.get(start.queue.queue_id, 0)
            wanted = kill * 1000
            async with asyncio.TaskGroup() as tasks:
                for start in found:
                    tasks.create_task(
                        commit_until_it_dies(service.stub, cluster, start, acknowledged)
                    )
                await moves_until(lambda: sum(acknowledged.values()), wanted.__lt__)
                await service.killed()
    await cluster.start_service()
    stored = {entry.queue.queue_id: entry.offset for entry in await cluster.progress()}
    for queue_id, offset in acknowledged.items():
        # One more may have reached the disk without a reply to this process.
        assert offset <= stored[queue_id] <= offset + 1


@pytest.mark.parametrize("seed", seeds(1))
async def test_killed_while_receivers_work_nothing_acknowledged_comes_again_and_all_else_does(
    cluster: Cluster, seed: int
) -> None:
    await cluster.stop_service()
    queues = [cluster.ref(queue_id) for queue_id in range(2)]
    for queue in queues:
        cluster.broker.queue(TOPIC, queue.queue_id).append(RECEIVED)
    received = ReceivedMessages(GROUP, queues, RECEIVED, random.Random(seed))
    for kill in range(1, KILLS + 1):
        wanted = kill * len(received.all) // (KILLS + 1)
        async with (
            process(cluster, "--journal-bytes-max=16384") as service,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(4):
                tasks.create_task(received.receive_until_it_dies(service.receivers))
            await moves_until(lambda: len(received.done), wanted.__lt__)
            await service.killed()
    assert received.redelivered
    async with process(cluster) as service, asyncio.timeout(DEADLINE_SECONDS):
        await received.receive(service.receivers, finishes=True)
        stored = (await service.stub.ListProgress(pb.ListProgressRequest(group=GROUP))).progress
        assert [each.offset for each in stored] == [RECEIVED, RECEIVED]


async def test_a_disk_that_refuses_ends_the_process_and_acknowledges_nothing_more(
    cluster: Cluster,
) -> None:
    await cluster.stop_service()
    cluster.broker.queue(TOPIC).append(1_000_000)

    acknowledged: dict[int, int] = {}
    async with process(cluster, "--export-seconds=0", file_bytes_max=8192) as service:
        (start, _) = await starts(service.stub, cluster, 2)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await commit_until_it_dies(service.stub, cluster, start, acknowledged)
            assert await service.process.wait() == ExitStatus.DISK_FAILED
        assert service.process.stderr is not None
        assert b"File too large" in await service.process.stderr.read()
    assert acknowledged[0] > 3
    await cluster.start_service()
    assert (await cluster.progress())[0].offset >= acknowledged[0]


async def test_a_service_that_was_stopped_for_longer_than_its_lease_decides_nothing(
    cluster: Cluster,
) -> None:
    """Another process with a copy of its store may have its name by then."""
    cluster.broker.queue(TOPIC).append(10)
    await cluster.stop_service()
    cluster.nameserver.lease_seconds = 2.0
    async with process(cluster) as paused:
        (start,) = await answered(lambda: starts_or_none(paused.stub, cluster), bool)
        cluster.nameserver.registering.clear()
        paused.process.send_signal(signal.SIGSTOP)
        over = boot_seconds() + cluster.nameserver.lease_seconds
        await eventually(lambda: boot_seconds() > over)
        entry = pb.CommitEntry(queue=start.queue, offset=5, epoch=start.epoch)
        request = pb.CommitRequest(group=GROUP, member_id="m1", entries=[entry])

        async def refused(call: Awaitable[Any]) -> None:
            with pytest.raises(aio.AioRpcError, match="its lease is over"):
                await call

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused(paused.stub.Commit(request)))
            tasks.create_task(refused(starts(paused.stub, cluster, 1)))
            paused.process.send_signal(signal.SIGCONT)
        cluster.nameserver.registering.set()
        await answered(lambda: starts_or_none(paused.stub, cluster), bool)


async def test_a_second_process_on_the_same_store_is_refused(cluster: Cluster) -> None:
    async with process(cluster) as second, asyncio.timeout(DEADLINE_SECONDS):
        assert await second.process.wait() == ExitStatus.STORE
        assert second.process.stderr is not None
        assert b"in use by another process" in await second.process.stderr.read()


async def test_a_second_service_with_another_store_is_refused(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("offset", "offset-2"):
        settings = cluster.settings(store_path=tmp_path / name, name=name)
        with pytest.raises(BaseExceptionGroup) as refused:
            async with running(settings, Stop()):
                pass
        fatal = root_cause(refused.value)
        assert isinstance(fatal, Fatal)
        assert cluster.address in str(fatal)
    assert await cluster.progress() == []


async def test_the_service_is_in_the_routes_while_it_runs_and_keeps_its_identity(
    cluster: Cluster,
) -> None:
    key = (ns.OFFSET_SERVICE, "offset")
    first = cluster.nameserver.nodes[key]
    # A nameserver compares it with its own.
    assert first.shared_settings["tls"] == first.shared_settings["access"] == '"off"'
    assert first.address == cluster.address
    await cluster.stop_service()
    assert key not in cluster.nameserver.nodes
    await cluster.start_service()
    again = cluster.nameserver.nodes[key]
    assert again.store_id == first.store_id
    # Renewed: a nameserver that lost it gets it again.
    del cluster.nameserver.nodes[key]
    await cluster.until(lambda: key in cluster.nameserver.nodes)


async def test_who_has_not_heard_yet_that_the_service_leaves_is_served(cluster: Cluster) -> None:
    """First it leaves the routes; until clients know, it accepts and keeps their commits."""
    await cluster.stop_service()
    # For half of its time limit, because the calls do not end.
    cluster.quiet_seconds = 60.0
    cluster.more_settings |= {"drain_seconds_max": 4.0}
    await cluster.start_service()
    cluster.broker.queue(TOPIC).append(10)
    epoch = (await cluster.start_of()).epoch
    cluster.stop.request("the test says so")
    await cluster.until(lambda: (ns.OFFSET_SERVICE, "offset") not in cluster.nameserver.nodes)
    late = await cluster.commit(10, epoch)
    assert not late.HasField("error")
    await cluster.stop_service()
    cluster.more_settings.clear()
    cluster.quiet_seconds = QUIET_SECONDS
    await cluster.start_service()
    assert [each.offset for each in await cluster.progress()] == [10]


async def test_a_service_that_stops_is_not_ready_first_and_exports_last(cluster: Cluster) -> None:
    await cluster.stop_service()
    cluster.more_settings |= {"export_seconds": 3600.0}
    await cluster.start_service()
    cluster.broker.queue(TOPIC).append(10)
    epoch = (await cluster.start_of()).epoch
    seen: list[int] = []
    async with aio.insecure_channel(cluster.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def look() -> None:
            request = health_pb2.HealthCheckRequest(service="rockoon.v1.OffsetService")
            seen.append((await health.Check(request)).status)

        cluster.nameserver.on_unregister = look
        assert not (await cluster.commit(10, epoch)).HasField("error")
        await cluster.stop_service()
    assert seen == [health_pb2.HealthCheckResponse.NOT_SERVING]
    exported = cluster.store_path / "config" / cluster.broker.name / "consumerOffset.json"
    assert '"0":10' in exported.read_text()


async def test_a_damaged_journal_is_refused_with_the_place(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    epoch = (await cluster.start_of()).epoch
    await cluster.commit(10, epoch)
    await cluster.stop_service()
    path = journal_path(cluster.store_path / "journal", 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Fatal, match=r"000000000001.journal is damaged: no valid frame") as refused:
        await serve(cluster.settings(), Stop())
    assert refused.value.status is ExitStatus.STORE
    assert path.read_bytes() == bytes(data)


async def test_until_a_nameserver_has_answered_commits_are_taken_and_nothing_is_decided(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    start = await cluster.start_of()
    await cluster.stop_service()
    nameserver = cluster.nameserver.address
    await cluster.nameserver.stop()
    stop = Stop()
    settings = cluster.settings(nameservers=(nameserver,), listen=cluster.address)
    async with asyncio.TaskGroup() as tasks, aio.insecure_channel(cluster.address) as channel:
        serving = tasks.create_task(serve(settings, stop))
        cluster.stub = OffsetServiceStub(channel)
        await channel.channel_ready()
        with pytest.raises(Exception, match="no nameserver has answered yet"):
            await cluster.start_of()
        assert not (await cluster.commit(10, start.epoch)).HasField("error")
        stop.request("the scenario is over")
    assert serving.done()
    await cluster.nameserver.start()
