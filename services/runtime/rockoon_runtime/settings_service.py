"""The gRPC service Settings (settings.proto): shows and changes the settings of a process."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to each method

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rockoon_core.errors import InvalidArgument
from rockoon_proto.v1 import settings_pb2 as pb
from rockoon_proto.v1.settings_pb2 import LiveSetting, StoreSettingRequest
from rockoon_proto.v1.settings_pb2_grpc import SettingsServicer
from rockoon_runtime.access.callers import current_caller
from rockoon_runtime.access.rules import Rules, on_cluster
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.settings import SettingsError

audit = logging.getLogger("rockoon.audit")
# Whatever the level of other lines.
audit.setLevel(logging.INFO)

SERVICE_NAME = "rockoon.v1.Settings"
RULES: Rules = {
    f"/{SERVICE_NAME}/{method}": on_cluster("admin")
    for method in ("DescribeSettings", "ChangeSetting")
}
APPLIED_SECONDS_MAX = 2.0


class SettingsService(SettingsServicer):
    """Shows the settings of a process, and checks and stores changes of its live settings."""

    def __init__(
        self,
        service: str,
        node: str,
        live: LiveSettings[Any],
        store: Callable[[StoreSettingRequest], Awaitable[int]],
    ) -> None:
        self._service = service
        self._node = node
        self._live = live
        self._store = store

    async def DescribeSettings(
        self, request: pb.DescribeSettingsRequest, context: Any
    ) -> pb.DescribeSettingsReply:
        await self._live.wait_revision(request.min_revision, APPLIED_SECONDS_MAX)
        return pb.DescribeSettingsReply(
            settings=self._live.states(), revision=self._live.revision, stored=self._live.stored
        )

    async def ChangeSetting(
        self, request: pb.ChangeSettingRequest, context: Any
    ) -> pb.ChangeSettingReply:
        setting = request.setting
        if setting.service != self._service or setting.node not in ("", self._node):
            raise InvalidArgument(
                reason=f"this is {self._service} {self._node!r}, not {setting.service} "
                f"{setting.node!r}"
            )
        try:
            if request.unset:
                self._live.check_removal(setting.name)
            else:
                self._live.check(setting.name, setting.value)
        except SettingsError as failure:
            raise InvalidArgument(reason=str(failure)) from failure
        if request.check_only:
            return pb.ChangeSettingReply()
        caller = current_caller()
        stored = LiveSetting(
            service=setting.service,
            node=setting.node,
            name=setting.name,
            value="" if request.unset else setting.value,
            access_key="" if caller is None else caller.key_id,
            owner=setting.owner,
        )
        revision = await self._store(
            StoreSettingRequest(
                setting=stored,
                unset=request.unset,
                expected_modified_revision=request.expected_modified_revision,
            )
        )
        audit.info(
            "audit: %s %s for %s at revision %d",
            "a caller without an access key" if caller is None else f"access key {caller.key_id!r}",
            f"removed the live setting {setting.name}"
            if request.unset
            else f"set {setting.name} to {setting.value!r}",
            f"{self._service} {setting.node}" if setting.node else f"every {self._service}",
            revision,
        )
        return pb.ChangeSettingReply(revision=revision)
