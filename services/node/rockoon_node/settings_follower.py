"""Follower of live settings, which keeps a copy in a node's store, and changes of live settings."""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from rockoon_core.clock import wait_at_most
from rockoon_core.disk import Disk
from rockoon_node.key_follower import CompleteUpdates
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1.settings_pb2 import (
    SettingsUpdate,
    StoreSettingRequest,
    WatchSettingsRequest,
)
from rockoon_proto.v1.settings_pb2_grpc import LiveSettingsStub
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.process import Stop

if TYPE_CHECKING:
    from grpc import aio

log = logging.getLogger(__name__)

FILE = "liveSettings.json"
# How long a start waits for the live settings; after that it uses those of the file.
FIRST_SECONDS_MAX = 3.0
STORE_SECONDS = 0.5
NAMESERVER_SECONDS_MAX = 5.0


class SettingsFollower:
    """Applies the live settings of a node that the nameservers send.

    A file in the store has the last ones, for a start while no nameserver answers. Otherwise
    retention, for example, could delete files that a live setting keeps.

    Args:
        service, node: see `LiveSetting` in settings.proto.
        address, tls_server_name: see `WatchSettingsRequest` in settings.proto.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        service: str,
        node: str,
        live: LiveSettings[Any],
        address: str = "",
        tls_server_name: str = "",
    ) -> None:
        self._live = live
        # Set when the settings may differ from the file.
        self._changed = asyncio.Event()
        request = WatchSettingsRequest(
            service=service, node=node, address=address, tls_server_name=tls_server_name
        )

        def watch(channel: "aio.Channel") -> "AsyncIterable[SettingsUpdate]":
            return LiveSettingsStub(channel).WatchSettings(request, metadata=nameservers.metadata)

        self._updates = CompleteUpdates(nameservers, "live settings", watch, self._apply)

    def _apply(self, update: SettingsUpdate) -> None:
        self._live.replace(update.settings, update.revision)
        self._changed.set()

    @property
    def attempted(self) -> asyncio.Event:
        """Set when live settings have arrived, or when no nameserver has answered."""
        return self._updates.attempted

    async def run(self, stop: Stop) -> None:
        """Follow the live settings until cancelled, without a copy in a store."""
        await self._updates.run(stop)

    @asynccontextmanager
    async def following(
        self, directory: Path, disk: Disk, stop: Stop, seconds: float = FIRST_SECONDS_MAX
    ) -> AsyncIterator[None]:
        """Follow the live settings while entered. On entry the last known ones are in use.

        Args:
            directory: directory of the file in the store.
            disk: writes the file.
            stop: ends the wait for the first settings.
            seconds: time limit of the wait.
        """
        self._read(directory / FILE)
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as tasks:
            following = [
                tasks.create_task(self.run(stop), name="live settings"),
                tasks.create_task(self._write(directory / FILE, disk), name="settings file"),
            ]
            try:
                await wait_at_most(seconds, stop.or_event(self.attempted))
                yield
            except BaseException as raised:  # noqa: BLE001 - raised below
                # The TaskGroup would wrap it in an exception group.
                failure = raised
            finally:
                for task in following:
                    task.cancel()
        if failure is not None:
            raise failure

    def _read(self, path: Path) -> None:
        try:
            content = path.read_bytes()
            stored = json_format.Parse(content, SettingsUpdate(), ignore_unknown_fields=True)
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError, json_format.ParseError) as failure:
            log.warning("live settings in %s are ignored: %s", path, failure)
            return
        # A nameserver that lags does not replace them.
        self._updates.revision = stored.revision
        self._live.replace(stored.settings, stored.revision)

    async def _write(self, path: Path, disk: Disk) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            update = SettingsUpdate(settings=self._live.stored, revision=self._live.revision)
            content = json_format.MessageToJson(update).encode()
            try:
                if not await asyncio.to_thread(write_if_changed, path, content, disk):
                    self._changed.set()
                    await asyncio.sleep(STORE_SECONDS)
            except OSError as failure:
                # The next change writes the file again. Until then a start without nameservers
                # uses older settings.
                log.warning("live settings cannot be written to %s: %s", path, failure)


async def store_setting(nameservers: Nameservers, request: StoreSettingRequest) -> int:
    """Store or remove a live setting in etcd; return etcd's revision. Raises RockoonError."""
    reply = await nameservers.call_channel(
        lambda channel: LiveSettingsStub(channel).StoreSetting(
            request, timeout=NAMESERVER_SECONDS_MAX, metadata=nameservers.metadata
        )
    )
    return reply.revision


def write_if_changed(path: Path, content: bytes, disk: Disk) -> bool:
    """Write a file durably; returns False if its directory does not exist, because the store is
    being created. Raises OSError."""
    if not path.parent.is_dir():
        return False
    if not path.exists() or path.read_bytes() != content:
        disk.replace_file(path, content)
    return True
