"""Settings of running processes, shown and changed while a process starts."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from grpc import aio

import rockoon
from rockoon_core.errors import NotReady
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_proto.v1.settings_pb2 import StoreSettingRequest
from rockoon_proto.v1.settings_pb2_grpc import add_SettingsServicer_to_server
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.settings import setting
from rockoon_runtime.settings_service import SettingsService
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.fake_cluster import FakeCluster


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A setting that may change."""

    hours: int = setting(72, "a duration, hours", live=True)


@dataclass
class Process:
    """A process with the real service for its settings, which refuses its first replies.

    Attributes:
        live: its settings.
        refusals: number of replies that it still refuses.
    """

    live: LiveSettings[Settings]
    refusals: int = 0

    async def store(self, request: StoreSettingRequest) -> int:
        self.live.replace([request.setting], self.live.revision + 1)
        return self.live.revision

    def check_may_answer(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise NotReady(service="the broker", reason="it waits for the access keys")


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=()) as fake:
        yield fake


@asynccontextmanager
async def served(fake: FakeCluster, **processes: Process) -> AsyncIterator[rockoon.Cluster]:
    """Serve processes as brokers, and yield a connection to their cluster."""
    async with AsyncExitStack() as opened:
        for name, process in processes.items():
            service = SettingsService("broker", name, process.live, process.store)

            def register(server: aio.Server, service: SettingsService = service) -> None:
                add_SettingsServicer_to_server(service, server)

            server = GrpcServer(
                "broker",
                "rockoon",
                "127.0.0.1:0",
                register,
                [],
                drain=AT_ONCE,
                check_may_answer=process.check_may_answer,
            )
            await opened.enter_async_context(server)
            fake.nameserver.put_node(BROKER, name, server.address)
        yield await opened.enter_async_context(rockoon.connect([fake.address]))


async def test_a_process_that_is_starting_is_asked_again(fake: FakeCluster) -> None:
    live = LiveSettings(Settings())
    started, starting = Process(live), Process(live)
    async with served(fake, a=started, b=starting) as cluster:
        starting.refusals = 2
        await cluster.admin.settings.check("broker", "hours", "80")
        starting.refusals = 2
        await cluster.admin.settings.set("broker", "hours", "96")
        starting.refusals = 2
        found = await cluster.admin.settings.describe("broker")
    assert [each.settings[0].value for each in found] == ["96", "96"]
