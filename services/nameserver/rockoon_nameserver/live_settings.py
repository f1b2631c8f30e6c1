"""Live settings in etcd, and the LiveSettings service.

The service that receives a change has checked the value: nameservers do not know the settings of
other services.
"""
# ruff: noqa: ARG002 - gRPC passes a request and a context to each method

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from rockoon_core.errors import Busy, InvalidArgument, SettingChanged
from rockoon_core.key_checks import check_owner
from rockoon_core.protocol import ABSENT_REVISION
from rockoon_nameserver.access_keys import AWAY_SECONDS_MAX
from rockoon_nameserver.etcd_data import DeleteKey, PutKey, absent, exists, unchanged
from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.keyspace import PATH_PART, Keyspace, SettingKey, setting_value
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1 import settings_pb2 as pb
from rockoon_proto.v1.settings_pb2_grpc import LiveSettingsServicer

# Each node receives its settings after a change of any.
SETTINGS_MAX = 5_000


class LiveSettingService(LiveSettingsServicer):
    """The gRPC service LiveSettings (settings.proto)."""

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        follower: EtcdFollower,
        now_ms: Callable[[], int],
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._follower = follower
        self._now_ms = now_ms
        # Name, address and TLS server name of each watching gateway → number of its watches.
        self._gateways: Counter[tuple[str, str, str]] = Counter()

    async def StoreSetting(
        self, request: pb.StoreSettingRequest, context: Any
    ) -> pb.ChangeSettingReply:
        return pb.ChangeSettingReply(revision=await self.store(request))

    async def WatchSettings(
        self, request: pb.WatchSettingsRequest, context: Any
    ) -> AsyncIterator[pb.SettingsUpdate]:
        gateway = request.node, request.address, request.tls_server_name
        watcher = [gateway] if request.service == "gateway" else []
        self._gateways.update(watcher)
        try:
            async for update in self._follower.live_settings(
                request.service, request.node, AWAY_SECONDS_MAX
            ):
                yield update
        finally:
            self._gateways.subtract(watcher)
            # Removes gateways without a watch.
            self._gateways = +self._gateways

    async def ListGateways(
        self, request: pb.ListGatewaysRequest, context: Any
    ) -> pb.ListGatewaysReply:
        gateways = [
            pb.Gateway(name=name, address=address, tls_server_name=tls_server_name)
            for name, address, tls_server_name in sorted(self._gateways)
        ]
        return pb.ListGatewaysReply(gateways=gateways)

    async def store(self, request: pb.StoreSettingRequest) -> int:
        """Store or remove a live setting; return etcd's revision.

        Raises:
            InvalidArgument: a name or the owner is not valid, or the setting to remove is not
                stored.
            SettingChanged: its revision is not the expected one, or it is stored and must not be.
            Busy: the cluster has `SETTINGS_MAX` live settings.
        """
        setting = request.setting
        key = SettingKey(setting.service, setting.node, setting.name)
        for part in (key.service, key.name, key.node or "all"):
            if not PATH_PART.fullmatch(part):
                raise InvalidArgument(reason=f"{part[:80]!r} is not part of a live setting's name")
        check_owner(setting.owner)
        name, one = self._keyspace.key(key), self._keyspace.one(key)
        expected = request.expected_modified_revision
        conditions = []
        if expected:
            conditions = [absent(one) if expected == ABSENT_REVISION else unchanged(name, expected)]
        scope = f"{key.service} {key.node}" if key.node else f"every {key.service}"
        if request.unset:
            outcome = await self._etcd.transaction(
                [exists(name), *conditions], [DeleteKey(one)], otherwise=[one]
            )
            if not outcome.succeeded and not outcome.found[0]:
                raise InvalidArgument(reason=f"{key.name} has no live setting for {scope}")
        else:
            if self._follower.table.setting_count >= SETTINGS_MAX:
                raise Busy(reason=f"there are {SETTINGS_MAX} live settings: remove some")
            setting.changed_ms = self._now_ms()
            put = PutKey(name, setting_value(setting))
            outcome = await self._etcd.transaction(conditions, [put])
        if not outcome.succeeded:
            raise SettingChanged(setting=key.name, node=scope)
        await self._follower.wait_served(outcome.revision)
        return outcome.revision
