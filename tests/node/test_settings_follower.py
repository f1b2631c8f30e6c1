"""Live settings of a node: those of a nameserver, or else those of the last run."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to every method

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc import aio

from rockoon_core.disk import Disk
from rockoon_node.nameservers import Nameservers
from rockoon_node.settings_follower import FILE, SettingsFollower
from rockoon_proto.v1 import settings_pb2 as pb
from rockoon_proto.v1.settings_pb2_grpc import (
    LiveSettingsServicer,
    add_LiveSettingsServicer_to_server,
)
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.process import Stop
from rockoon_runtime.settings import setting
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually

NOBODY = "127.0.0.1:1"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A setting that may change."""

    hours: int = setting(72, "a duration, hours", live=True)


class Nameserver(LiveSettingsServicer):
    """Sends each update that a test adds to `updates`."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[pb.SettingsUpdate] = asyncio.Queue()
        self.requests: list[pb.WatchSettingsRequest] = []

    def send(self, revision: int, *values: str) -> None:
        settings = [pb.LiveSetting(service="broker", name="hours", value=each) for each in values]
        self.updates.put_nowait(
            pb.SettingsUpdate(settings=settings, revision=revision, etcd_reachable=True)
        )

    async def StoreSetting(
        self, request: pb.StoreSettingRequest, context: object
    ) -> pb.ChangeSettingReply:
        return pb.ChangeSettingReply()

    async def WatchSettings(
        self, request: pb.WatchSettingsRequest, context: object
    ) -> AsyncIterator[pb.SettingsUpdate]:
        self.requests.append(request)
        while True:
            yield await self.updates.get()


@asynccontextmanager
async def served(nameserver: Nameserver) -> AsyncIterator[str]:
    def register(server: aio.Server) -> None:
        add_LiveSettingsServicer_to_server(nameserver, server)

    server = GrpcServer("nameserver", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE)
    async with asyncio.timeout(60), server:
        yield server.address


async def test_the_settings_of_a_nameserver_are_in_use_before_the_node_starts(
    told_of: Callable[..., Nameservers], tmp_path: Path
) -> None:
    nameserver, live = Nameserver(), LiveSettings(Settings())
    nameserver.send(5, "168")
    async with served(nameserver) as address:
        follower = SettingsFollower(told_of(address), "broker", "broker-a", live)
        async with follower.following(tmp_path, Disk(), Stop(), 60.0):
            assert live.current.hours == 168
            assert [(each.service, each.node) for each in nameserver.requests] == [
                ("broker", "broker-a")
            ]
            nameserver.send(6)
            await eventually(lambda: live.current.hours == 72)


async def test_a_node_that_finds_no_nameserver_uses_the_settings_of_its_last_run(
    told_of: Callable[..., Nameservers], tmp_path: Path
) -> None:
    nameserver = Nameserver()
    nameserver.send(5, "168")
    async with served(nameserver) as address:
        first = SettingsFollower(told_of(address), "broker", "broker-a", LiveSettings(Settings()))
        async with first.following(tmp_path, Disk(), Stop(), 60.0):
            await eventually((tmp_path / FILE).exists)
    live = LiveSettings(Settings())
    second = SettingsFollower(told_of(NOBODY), "broker", "broker-a", live)
    async with second.following(tmp_path, Disk(), Stop(), 60.0):
        assert live.current.hours == 168


@pytest.mark.parametrize("content", [b"{", b'{"settings": "\xff"}'])
async def test_a_damaged_file_is_ignored(
    told_of: Callable[..., Nameservers], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    live = LiveSettings(Settings())
    follower = SettingsFollower(told_of(NOBODY), "broker", "broker-a", live)
    async with follower.following(tmp_path, Disk(), Stop(), 60.0):
        assert live.current.hours == 72


async def test_the_file_of_a_newer_version_is_used(
    told_of: Callable[..., Nameservers], tmp_path: Path
) -> None:
    setting = {"name": "hours", "value": "168", "field_of_a_newer_version": 1}
    (tmp_path / FILE).write_text(json.dumps({"settings": [setting]}))
    live = LiveSettings(Settings())
    follower = SettingsFollower(told_of(NOBODY), "broker", "broker-a", live)
    async with follower.following(tmp_path, Disk(), Stop(), 60.0):
        assert live.current.hours == 168


async def test_a_nameserver_that_lags_does_not_replace_the_settings_of_the_last_run(
    told_of: Callable[..., Nameservers], tmp_path: Path
) -> None:
    """Retention would delete files that the newer setting keeps."""
    nameserver, lagging = Nameserver(), Nameserver()
    nameserver.send(5, "168")
    async with served(nameserver) as address:
        first = SettingsFollower(told_of(address), "broker", "broker-a", LiveSettings(Settings()))
        async with first.following(tmp_path, Disk(), Stop(), 60.0):
            await eventually((tmp_path / FILE).exists)
    nameserver.send(6, "200")
    lagging.send(4)
    seen: list[int] = []
    live = LiveSettings(Settings())
    live.follow(lambda now: seen.append(now.hours), live.loaded)
    async with served(lagging) as behind, served(nameserver) as ahead:
        second = SettingsFollower(told_of(behind, ahead), "broker", "broker-a", live)
        async with second.following(tmp_path, Disk(), Stop(), 60.0):
            await eventually(lambda: live.current.hours == 200)
    assert seen == [168, 200]


async def test_an_error_of_the_node_is_raised_as_it_is(
    told_of: Callable[..., Nameservers], tmp_path: Path
) -> None:
    live = LiveSettings(Settings())
    follower = SettingsFollower(told_of(NOBODY), "broker", "broker-a", live)
    with pytest.raises(OSError, match="no disk"):
        async with follower.following(tmp_path, Disk(), Stop(), 60.0):
            raise OSError("no disk")
