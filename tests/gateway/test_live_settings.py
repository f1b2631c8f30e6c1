"""Settings of running gateways, which are in no routes, shown and changed by operators."""

import asyncio
import logging
import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from grpc import StatusCode, aio

import rockoon
from gateway.gateways import RunningGateway, running_gateway
from gateway.wire_client import WireClient, message
from rockoon.admin.access_keys import Permission
from rockoon.admin.live_settings import ProcessSettings, SettingValue
from rockoon.errors import (
    GatewayUnavailable,
    InvalidArgument,
    NameserverUnavailable,
    NotPermitted,
)
from rockoon.local.cluster import LocalCluster
from rockoon_core.clock import wall_clock_ms
from rockoon_gateway.server import GatewayParts, assembled, serve
from rockoon_gateway.settings import GatewaySettings
from rockoon_gateway.signatures import Signatures
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.settings_pb2 import (
    ChangeSettingRequest,
    DescribeSettingsRequest,
    LiveSetting,
)
from rockoon_proto.v1.settings_pb2_grpc import SettingsStub
from rockoon_runtime.frontend import ConnectionSettings
from rockoon_runtime.live_settings import live_names
from rockoon_runtime.process import Stop
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.telemetry.telemetry import TelemetrySettings
from support.eventually import answered

# Applied by Frontend; tests/cluster/test_live_settings.py tests it.
OF_EVERY_SERVICE = {*live_names(ConnectionSettings), *live_names(TelemetrySettings)}
# New value of each other live setting, and the part that uses it.
USED: dict[str, tuple[Any, str]] = {
    "body_bytes_max": (2048, "services.telemetry.body_bytes_max"),
    "delay_seconds_max": (60.0, "services.sending.limits.delay_ms_max"),
    "client_seconds_max": (5.0, "services.presence.seconds_max"),
    "checked_topics_max": (3, "transactions.checked_max"),
    "lite_topics_max": (7, "lite_topics.count_max"),
    "lite_look_seconds": (1.0, "expiry.scan_seconds"),
}
OPERATED = {"admin_listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(single=True, access=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local_cluster: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local_cluster.nameservers, access=local_cluster.access) as connected:
        yield connected


@pytest.fixture
def audited() -> Iterator[list[str]]:
    """Audit lines of gateways in this process."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    audit, handler = logging.getLogger("rockoon.audit"), Lines()
    audit.addHandler(handler)
    yield lines
    audit.removeHandler(handler)


def opened(
    cluster: LocalCluster, name: str, **settings: Any
) -> AbstractAsyncContextManager[RunningGateway]:
    """A gateway that checks operators, and no clients without a signature."""
    assert cluster.access is not None
    secret = cluster.access.secret
    return running_gateway(cluster, name=name, access="optional", cluster_secret=secret, **settings)


def value_of(process: ProcessSettings, name: str) -> SettingValue:
    return next(each for each in process.settings if each.name == name)


async def send(gateway: RunningGateway, topic: str, body: bytes) -> int:
    async with WireClient(gateway.address) as client:
        return int((await client.send(message(topic, body))).status.code)


async def test_all_gateways_use_a_new_value_when_the_change_returns(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, audited: list[str]
) -> None:
    """Also one that starts later. The origin is shown, and one line names the access key."""
    await cluster.admin.create_topic("sizes", queues_per_broker=1)
    settings = cluster.admin.settings
    ops = await cluster.admin.access_keys.create("ops", [Permission.parse("cluster=admin")])
    with pytest.raises(GatewayUnavailable, match="no gateway follows the nameservers"):
        await settings.describe("gateway")
    async with opened(local_cluster, "a", **OPERATED) as a, opened(local_cluster, "b", **OPERATED):
        async with rockoon.connect(local_cluster.nameservers, access=ops) as connection:
            found = await connection.admin.settings.set("gateway", "body_bytes_max", "1KiB")
        (line,) = audited
        assert "access key 'ops' set body_bytes_max to '1KiB' for every gateway" in line
        assert [each.process for each in found] == ["a", "b"]
        for each in found:
            value = value_of(each, "body_bytes_max")
            assert (value.value, value.unit, value.origin) == ("1024", "bytes", "live setting")
            assert value.live is not None
            assert value.live.access_key == "ops"
        assert await send(a, "sizes", bytes(2000)) == Code.MESSAGE_BODY_TOO_LARGE
        async with opened(local_cluster, "c", **OPERATED) as c:
            assert await send(c, "sizes", bytes(2000)) == Code.MESSAGE_BODY_TOO_LARGE
            found = await settings.set("gateway", "body_bytes_max", "4096", "c")
            assert [each.process for each in found] == ["c"]
            assert await send(c, "sizes", bytes(2000)) == Code.OK
            await settings.unset("gateway", "body_bytes_max", "c")
        await settings.unset("gateway", "body_bytes_max")
        assert await send(a, "sizes", bytes(2000)) == Code.OK


async def test_a_nameserver_that_does_not_answer_is_named_beside_the_gateways(
    local_cluster: LocalCluster,
) -> None:
    away = "127.0.0.1:1"
    async with (
        opened(local_cluster, "a", **OPERATED),
        rockoon.connect(
            [*local_cluster.nameservers, away], access=local_cluster.access
        ) as connection,
    ):
        settings = connection.admin.settings
        found = {each.process: each.error for each in await settings.describe("gateway")}
        assert found.keys() == {"a", away}
        assert found["a"] is None
        assert isinstance(found[away], NameserverUnavailable)
        # The unreachable nameserver may be, or may know, the named process.
        for service in ("gateway", "nameserver"):
            with pytest.raises(NameserverUnavailable, match=away):
                await settings.describe(service, "b")
        with pytest.raises(NameserverUnavailable, match=away):
            await settings.set("gateway", "body_bytes_max", "1KiB", "b")
        # The known gateways can be changed.
        (changed,) = await settings.set("gateway", "body_bytes_max", "1KiB", "a")
        assert changed.error is None
        found = {
            each.process: each.error
            for each in await settings.set("gateway", "body_bytes_max", "2KiB")
        }
        assert isinstance(found[away], NameserverUnavailable)
        await settings.unset("gateway", "body_bytes_max", "a")
        await settings.unset("gateway", "body_bytes_max")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("body_byte_max", "1", "did you mean 'body_bytes_max'"),
        ("body_bytes_max", "64MiB", "must be between 1024 and 4194304"),
        ("listen", "127.0.0.1:1", "listen cannot change while the service runs"),
    ],
)
async def test_a_change_that_a_gateway_cannot_use_is_refused(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, name: str, value: str, reason: str
) -> None:
    async with opened(local_cluster, "a", **OPERATED):
        with pytest.raises(InvalidArgument, match=reason):
            await cluster.admin.settings.set("gateway", name, value)
        (found,) = await cluster.admin.settings.describe("gateway")
        assert all(each.live is None for each in found.settings)


async def test_only_a_key_that_may_change_the_cluster_sees_and_changes_settings(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    key = await cluster.admin.access_keys.create("watcher", [Permission.parse("cluster=read")])
    async with (
        opened(local_cluster, "a", **OPERATED),
        rockoon.connect(local_cluster.nameservers, access=key) as watcher,
    ):
        with pytest.raises(NotPermitted, match="admin"):
            await watcher.admin.settings.describe("gateway")
        with pytest.raises(NotPermitted, match="admin"):
            await watcher.admin.settings.set("gateway", "body_bytes_max", "1KiB")


async def test_a_caller_without_a_key_changes_nothing_while_clients_need_no_key(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    setting = LiveSetting(service="gateway", name="body_bytes_max", value="1KiB")
    async with opened(local_cluster, "a", **OPERATED):
        (found,) = await cluster.admin.settings.describe("gateway")
        async with aio.insecure_channel(found.address) as channel:
            stub = SettingsStub(channel)
            for call in (
                stub.ChangeSetting(ChangeSettingRequest(setting=setting)),
                stub.DescribeSettings(DescribeSettingsRequest()),
            ):
                with pytest.raises(aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() == StatusCode.UNAUTHENTICATED
        (found,) = await cluster.admin.settings.describe("gateway")
        assert all(each.live is None for each in found.settings)


@pytest.mark.parametrize("address", ["0.0.0.0:8085", ":8085", "[::]:0"])
async def test_an_address_that_operators_cannot_call_is_refused_at_the_start(address: str) -> None:
    stop = Stop()
    # A gateway with this address ends without a nameserver.
    stop.request("the test is over")
    with pytest.raises(SettingsError, match="admin_advertise is empty, and callers cannot dial"):
        await serve(GatewaySettings(admin_listen=address), stop)


async def test_a_gateway_without_a_port_for_operators_is_named_and_follows_the_others(
    local_cluster: LocalCluster, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("followed", queues_per_broker=1)
    settings = cluster.admin.settings
    async with opened(local_cluster, "quiet") as quiet:
        with pytest.raises(GatewayUnavailable, match="'quiet' accepts no calls of operators: set"):
            await settings.set("gateway", "body_bytes_max", "1KiB")
        async with opened(local_cluster, "a", **OPERATED):
            named = await settings.set("gateway", "body_bytes_max", "1KiB")
            assert [each.error is None for each in named] == [True, False]
            await answered(
                lambda: send(quiet, "followed", bytes(2000)),
                lambda code: code == Code.MESSAGE_BODY_TOO_LARGE,
            )
            await settings.unset("gateway", "body_bytes_max")


@pytest.fixture
async def parts(cluster: rockoon.Cluster) -> AsyncIterator[GatewayParts]:
    async with asyncio.TaskGroup() as tasks:
        signatures = Signatures(None, None, wall_clock_ms)
        parts = assembled(GatewaySettings(), cluster, signatures, tasks)
        yield parts
        await parts.services.sending.close()


def test_each_live_setting_has_a_part_that_uses_it() -> None:
    assert set(live_names(GatewaySettings)) == OF_EVERY_SERVICE | USED.keys()


async def test_the_parts_use_new_values_and_then_the_former_ones(parts: GatewayParts) -> None:
    loaded = GatewaySettings()
    for name, (value, part) in USED.items():
        used = operator.attrgetter(part)
        before = used(parts)
        parts.use_settings(replace(loaded, **{name: value}))
        assert used(parts) != before, name
        parts.use_settings(loaded)
        assert used(parts) == before, name
