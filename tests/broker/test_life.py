"""A broker's start and end: replies in the meantime, and reasons that stop its start."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rockoon.local.directory import choose_port
from rockoon_broker.server import serve
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_core import errors
from rockoon_core.disk import Disk
from rockoon_core.failed_call import from_rpc_error
from rockoon_core.protocol import PROTOCOL
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_runtime.process import ExitStatus, Fatal, Stop
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.wire import LIVENESS
from support.broker import RunningBroker, batch, running_broker
from support.broker import settings_of as broker_settings
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.holding_disk import HoldingDisk
from support.waiting import DEADLINE_SECONDS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = health_pb2.HealthCheckRequest(service="rockoon.v1.Broker")


@asynccontextmanager
async def health_of(address: str) -> AsyncIterator[Any]:
    async with aio.insecure_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(SERVICE, wait_for_ready=True)
        yield call
        call.cancel()


def cause_of(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def test_a_broker_that_recovers_is_not_ready_and_says_so(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]):
        pass
    disk = HoldingDisk(held=True, everything=True)
    address = f"127.0.0.1:{choose_port()}"
    # A client that watches its health and never ends the call does not delay its end.
    settings = {"listen": address, "drain_seconds_max": 60.0}
    async with asyncio.TaskGroup() as tasks:

        async def use() -> None:
            async with running_broker(
                tmp_path, [nameserver.address], disk=disk, **settings
            ) as broker:
                await broker.append("T", 0, b"x")
                assert (await health.read()).status == SERVING
                broker.stop.request("the test is over")
                assert (await health.read()).status == NOT_SERVING
                async with asyncio.timeout(DEADLINE_SECONDS):
                    assert await health.read() is aio.EOF

        async with health_of(address) as health, aio.insecure_channel(address) as channel:
            life = tasks.create_task(use())
            assert (await health.read()).status == NOT_SERVING
            early = RunningBroker(address, channel, None)  # type: ignore[arg-type]
            with pytest.raises(errors.NotReady, match="recovering"):
                await early.append("T", 0, b"x")
            with pytest.raises(errors.NotReady):
                await early.pull("T")
            assert [reply async for reply in refused_stream(early)] == ["NOT_READY"]
            disk.release()
            await life


async def refused_stream(broker: RunningBroker) -> AsyncIterator[str]:
    try:
        async for _ in broker.stub.AppendStream():
            yield "answered"
    except aio.AioRpcError as failure:
        yield from_rpc_error(failure, errors.BrokerUnavailable, broker="").name


async def test_a_stop_answers_who_waits_and_finishes_what_was_taken(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """A stop needs the time of the disk, and not the time for which readers were ready to wait."""
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = HoldingDisk()
    async with (
        running_broker(tmp_path, [nameserver.address], disk=disk) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        pulling = tasks.create_task(broker.pull("T", wait_ms=30_000))
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        disk.hold()
        call = broker.stub.AppendStream()
        for serial in range(3):
            await call.write(batch("T", 0, b"%d" % serial, request_id=serial))
        await broker.until(lambda seen: seen.messages_appended == 3)
        unary = tasks.create_task(broker.append("T", 0, b"3"))
        await broker.until(lambda seen: seen.messages_appended == 4)

        broker.stop.request("the test says so")
        assert (await pulling).status in (pb.NO_MESSAGE_IN_QUEUE, pb.NO_MATCHED_LOGIC_QUEUE)
        assert nameserver.nodes == {}
        disk.release()
        replies = [await call.read() for _ in range(3)]
        assert [reply.appended.first_queue_offset for reply in replies] == [0, 1, 2]
        assert await call.read() is aio.EOF
        assert (await unary).first_queue_offset == 3
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert (await broker.describe()).recovery_was_clean
        assert await broker.bodies("T") == [b"0", b"1", b"2", b"3"]


async def test_a_broker_tells_what_its_cluster_has_to_have_in_common_with_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    nameserver.cluster_id = 0x1234
    async with running_broker(tmp_path, [nameserver.address], flush="async"):
        await eventually(lambda: nameserver.registrations)
    told = nameserver.registered
    assert (told.cluster_id, told.protocol) == (0x1234, PROTOCOL)
    assert told.node.shared_settings["flush"] == '"async"'
    assert told.node.shared_settings["tls"] == told.node.shared_settings["access"] == '"off"'


async def test_a_nameserver_that_cannot_tell_yet_whose_it_is_gets_no_foreign_store(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """A broker that has just started accepts every node: it does not know its cluster's
    identity."""
    nameserver.cluster_id = 0x1234
    async with running_broker(tmp_path, [nameserver.address]):
        await eventually(lambda: nameserver.registrations)
    before = nameserver.registrations
    nameserver.cluster_id = 0x4321
    nameserver.refuse_watch = errors.NotReady(service="the nameserver", reason="waiting for etcd")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.describe()
        assert nameserver.registrations == before
        nameserver.refuse_watch = None
        await eventually(lambda: broker.stop.requested)
    assert "belongs to cluster 0000000000001234" in str(broker.stop.fatal)
    assert nameserver.registrations == before


async def test_who_has_not_heard_yet_that_a_broker_leaves_is_served(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """First it is not ready and leaves the routes; until clients know, it accepts their
    messages."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(
        tmp_path, [nameserver.address], quiet_seconds=4.0, drain_seconds_max=60.0
    ) as broker:
        health = health_pb2_grpc.HealthStub(broker.channel)
        await broker.append("T", 0, b"early")
        broker.stop.request("the test says so")
        await eventually(lambda: nameserver.nodes == {})
        assert (await health.Check(SERVICE)).status == NOT_SERVING
        alive = await health.Check(health_pb2.HealthCheckRequest(service=LIVENESS))
        assert alive.status == SERVING
        assert (await broker.append("T", 0, b"late")).first_queue_offset == 1
        # A pull that would wait is asked to come again.
        found = await broker.pull("T", offset=2, wait_ms=30_000)
        assert found.status == pb.OFFSET_OVERFLOW_ONE
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await broker.bodies("T") == [b"early", b"late"]


async def test_a_broker_that_is_told_to_stop_while_it_looks_for_nameservers_stops(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nameserver = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = broker_settings(tmp_path, [nameserver])
        stop = Stop()
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
            life = tasks.create_task(serve(settings, stop, first_routes_seconds_max=600.0))
            await eventually((tmp_path / "config" / "storeId").exists)
            stop.request("the test says so")
            await life


async def test_a_broker_is_not_ready_any_more_before_it_leaves_the_routes(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    seen: list[int] = []
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        health = health_pb2_grpc.HealthStub(broker.channel)

        async def look() -> None:
            seen.append((await health.Check(SERVICE)).status)

        nameserver.on_unregister = look
        broker.stop.request("the test says so")
        await eventually(lambda: nameserver.nodes == {})
    assert seen == [NOT_SERVING]


def idle_appends(broker: RunningBroker) -> Any:
    return broker.stub.AppendStream()


def idle_checks(broker: RunningBroker) -> Any:
    request = pb.CheckTransactionsRequest(producer_group="payments", client_id="one")
    return broker.stub.CheckTransactions(request)


@pytest.mark.parametrize("opened", [idle_appends, idle_checks])
async def test_an_idle_stream_does_not_hold_up_a_stop(
    tmp_path: Path, nameserver: BrokerRoutes, opened: Callable[[RunningBroker], Any]
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    settings = {"drain_seconds_max": 60.0}
    async with running_broker(tmp_path, [nameserver.address], **settings) as broker:
        call = opened(broker)
        if opened is idle_appends:
            await call.write(batch("T", 0, b"0"))
        await call.read()
        broker.stop.request("the test says so")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await call.read() is aio.EOF


async def test_a_broker_that_stops_writes_down_how_far_it_followed_the_routes(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """A start without a nameserver then knows the route revisions for which it need not wait."""
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"x")
        elsewhere = await nameserver.create_topic("U", {"broker-b": 1})
        await broker.append("T", 0, b"y", route_revision=elsewhere)
    assert TopicFile(tmp_path / "config", Disk()).read().revision >= elsewhere


async def test_a_log_of_another_file_size_is_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    # If a single file has another size, the setting need not be the cause.
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"x")
    await refused(tmp_path, nameserver, "expected 1048576 bytes", commit_log_file_bytes=1 << 20)


async def test_a_store_in_use_is_refused(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    async with running_broker(tmp_path, [nameserver.address]):
        await refused(tmp_path, nameserver, "already open", name="broker-b")


async def test_a_foreign_file_in_the_log_is_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").write_text("mine")
    await refused(tmp_path, nameserver, "notes.txt")


async def test_a_damaged_topics_file_is_refused(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    await refused(tmp_path, nameserver, "topics.json cannot be read")
    # The start was refused because of the file only, and the store is free again.
    (tmp_path / "config" / "topics.json").unlink()
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.describe()


async def test_a_store_with_a_damaged_identity_is_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "storeId").write_text("")
    await refused(tmp_path, nameserver, "storeId is damaged")


async def refused(tmp_path: Path, nameserver: BrokerRoutes, text: str, **changes: Any) -> None:
    with pytest.raises(BaseExceptionGroup) as failure:
        async with running_broker(tmp_path, [nameserver.address], **changes):
            pass
    cause = cause_of(failure.value)
    assert isinstance(cause, Fatal)
    assert cause.status is ExitStatus.STORE
    assert text in str(cause)


async def test_settings_that_only_the_store_can_judge_are_refused_as_settings(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    for changes in ({"delete_when": "25"}, {"store_host": "no.such.host.invalid:1"}):
        with pytest.raises(BaseExceptionGroup) as failure:
            async with running_broker(tmp_path, [nameserver.address], **changes):
                pass
        assert isinstance(cause_of(failure.value), SettingsError)
