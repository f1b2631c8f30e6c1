"""Settings of running services: shown and changed through `cluster.admin.settings`.

A live setting replaces a value that services have loaded from their file, environment and options.
It is stored in etcd, and survives restarts. The caller needs `admin` on `cluster`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from rockoon.bounds import refuses_invalid_text
from rockoon.errors import (
    BrokerNotFound,
    BrokerUnavailable,
    GatewayUnavailable,
    NameserverUnavailable,
    NotReady,
    OffsetServiceUnavailable,
    RockoonError,
)
from rockoon.net.retried import retried
from rockoon_core.channels import Channels
from rockoon_proto.v1 import settings_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import BROKER, OFFSET_SERVICE, DescribeClusterRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub
from rockoon_proto.v1.settings_pb2_grpc import LiveSettingsStub, SettingsStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

Call: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""Function that calls a process."""

CALL_SECONDS_MAX = 8.0
READY_SECONDS_MAX = 8.0
UNREACHABLE = (
    BrokerUnavailable,
    OffsetServiceUnavailable,
    NameserverUnavailable,
    GatewayUnavailable,
)
NODE_KINDS = {"broker": BROKER, "offset": OFFSET_SERVICE}


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A setting of one running process.

    Attributes:
        name: as in the service's file.
        value: the value in use, in TOML; empty if there is none.
        unit: unit of the value; empty if it has none.
        origin: "default", a path, "environment ...", an option, or "live setting ...".
        doc: what the setting means.
        is_live: whether it may change while the service runs.
        live: the live setting in use; None if the loaded value is in use.
        refusal: why a stored live setting is not in use; empty if none is refused.
    """

    name: str
    value: str
    unit: str
    origin: str
    doc: str
    is_live: bool
    live: pb.LiveSetting | None
    refusal: str

    @classmethod
    def from_wire(cls, state: pb.SettingState) -> "SettingValue":
        live = state.live if state.HasField("live") else None
        return cls(
            state.name,
            state.value,
            state.unit,
            state.source if live is None else "live setting",
            state.doc,
            state.is_live,
            live,
            state.refusal,
        )


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The settings of one process of a service.

    Attributes:
        process: its name; for a replica the replica's name.
        node: name of the node; for a replica the name of its log.
        address: "host:port".
        settings: in the order of the service's file; empty if there is an error.
        stored: live settings of the node and of all nodes, also those that are not in use.
        revision: etcd's revision of the live settings in use.
        error: why the process did not answer; None if it did.
        tls_server_name: name that its certificate must contain; empty: the host of `address`.
    """

    process: str
    node: str
    address: str
    settings: Sequence[SettingValue] = ()
    stored: Sequence[pb.LiveSetting] = ()
    revision: int = 0
    error: RockoonError | None = None
    tls_server_name: str = ""


@refuses_invalid_text
class SettingsAdmin:
    """Settings of running services: `cluster.admin.settings`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def describe(
        self, service: str, node: str = "", *, min_revision: int = 0
    ) -> Sequence[ProcessSettings]:
        """Return the settings of each process of a service, sorted by name.

        Args:
            service: "broker", "offset", "nameserver" or "gateway".
            node: only the processes of this node; empty for all.
            min_revision: wait at most two seconds until a process uses this revision.

        Raises:
            BrokerNotFound, OffsetServiceUnavailable, NameserverUnavailable, GatewayUnavailable: no
                such process runs.
        """
        request = pb.DescribeSettingsRequest(min_revision=min_revision)
        async with self._processes(service, node) as (found, call):
            replies = await in_parallel(
                asked(call, each, "DescribeSettings", request) for each in found
            )
        described = []
        for each, reply in zip(found, replies, strict=True):
            if isinstance(reply, UNREACHABLE):
                described.append(replace(each, error=reply))
                continue
            if isinstance(reply, RockoonError):
                raise reply
            values = [SettingValue.from_wire(state) for state in reply.settings]
            described.append(
                replace(each, settings=values, stored=reply.stored, revision=reply.revision)
            )
        return described

    async def set(
        self,
        service: str,
        name: str,
        value: str,
        node: str = "",
        *,
        owner: str = "",
        expected_modified_revision: int = 0,
    ) -> Sequence[ProcessSettings]:
        """Set a live setting, and return the settings of each process that it concerns.

        Args:
            service: "broker", "offset", "nameserver" or "gateway".
            value: as in an environment variable.
            node: only this node, with all its replicas; empty for all nodes of the service.
            owner: see `LiveSetting` in settings.proto.
            expected_modified_revision: change it only if the stored one has this
                `modified_revision`; 0 means any, -1 means that none may be stored yet.

        Raises:
            SettingChanged: the stored one has another `modified_revision`.
            InvalidArgument: the setting is unknown or cannot change, or a process cannot use the
                value.
            BrokerNotFound, OffsetServiceUnavailable, NameserverUnavailable, GatewayUnavailable: no
                such process answers.
        """
        setting = pb.LiveSetting(service=service, node=node, name=name, value=value, owner=owner)
        return await self._change(
            pb.ChangeSettingRequest(
                setting=setting, expected_modified_revision=expected_modified_revision
            )
        )

    async def check(self, service: str, name: str, value: str, node: str = "") -> None:
        """Check that all processes that answer can use a live setting; errors as in `set`."""
        setting = pb.LiveSetting(service=service, node=node, name=name, value=value)
        request = pb.ChangeSettingRequest(setting=setting)
        async with self._processes(service, node) as (found, call):
            await self._accepting(request, found, call)

    async def unset(
        self, service: str, name: str, node: str = "", *, expected_modified_revision: int = 0
    ) -> Sequence[ProcessSettings]:
        """Remove a live setting: loaded values are in use again. See `set`."""
        return await self._change(
            pb.ChangeSettingRequest(
                setting=pb.LiveSetting(service=service, node=node, name=name),
                unset=True,
                expected_modified_revision=expected_modified_revision,
            )
        )

    async def _change(self, request: pb.ChangeSettingRequest) -> Sequence[ProcessSettings]:
        setting = request.setting
        async with self._processes(setting.service, setting.node) as (found, call):
            accepting = await self._accepting(request, found, call)
            request.check_only = False
            reply = await call(accepting, "ChangeSetting", request)
        return await self.describe(setting.service, setting.node, min_revision=reply.revision)

    async def _accepting(
        self, request: pb.ChangeSettingRequest, found: Sequence[ProcessSettings], call: Call
    ) -> ProcessSettings:
        """Return a process that accepts a change; raise the error of a process that refuses it."""
        request.check_only = True
        replies = await in_parallel(asked(call, each, "ChangeSetting", request) for each in found)
        accepting = None
        for each, reply in zip(found, replies, strict=True):
            if not isinstance(reply, RockoonError):
                accepting = accepting or each
            elif not isinstance(reply, UNREACHABLE):
                raise reply
            # Otherwise the process checks the setting when it runs again.
        if accepting is None:
            assert isinstance(replies[0], RockoonError)
            raise replies[0]
        return accepting

    @asynccontextmanager
    async def _processes(
        self, service: str, node: str
    ) -> AsyncIterator[tuple[list[ProcessSettings], Call]]:
        """Yield the processes of a service, and a function that calls one of them."""
        channels = Channels(self._cluster.tls, self._cluster.access)

        async def call(process: ProcessSettings, method: str, request: Any) -> Any:
            if process.error is not None:
                raise process.error
            stub = SettingsStub(channels.get(process.address, process.tls_server_name))
            unavailable: Any = BrokerUnavailable
            details: dict[str, Any] = {"broker": process.process}
            if service == "nameserver":
                unavailable, details = NameserverUnavailable, {"address": process.address}
            elif service == "offset":
                unavailable, details = OffsetServiceUnavailable, {}
            elif service == "gateway":
                unavailable, details = GatewayUnavailable, {"gateway": process.process}
            return await self._cluster.call(
                getattr(stub, method),
                request,
                unavailable=unavailable,
                timeout_seconds=CALL_SECONDS_MAX,
                **details,
            )

        try:
            if service == "nameserver":
                known = await self._nameservers(channels)
            elif service == "gateway":
                known = await self._gateways(channels)
            else:
                known = self._nodes(service)
            found = [each for each in known if node in ("", each.node)]
            if not found:
                # The node may be, or may be known by, a nameserver that does not answer.
                away = (each.error for each in known if not each.node and each.error)
                raise next(away, not_found(service, node))
            found.sort(key=lambda each: each.process)
            yield found, call
        finally:
            await channels.close()

    def _nodes(self, service: str) -> list[ProcessSettings]:
        found = []
        for node in self._cluster.routes.nodes:
            if node.kind != NODE_KINDS[service]:
                continue
            found += [
                ProcessSettings(each.name, node.name, each.address) for each in node.replicas
            ] or [ProcessSettings(node.name, node.name, node.address)]
        return found

    async def _ask_nameservers(
        self, method: Callable[[str], Any], request: Any
    ) -> list[tuple[str, Any]]:
        """Call all nameservers; return the reply or the error of each, with its address."""
        addresses = self._cluster.nameservers
        replies = await in_parallel(
            self._cluster.call(
                method(address),
                request,
                unavailable=NameserverUnavailable,
                timeout_seconds=CALL_SECONDS_MAX,
                address=address,
            )
            for address in addresses
        )
        return [*zip(addresses, replies, strict=True)]

    async def _gateways(self, channels: Channels) -> list[ProcessSettings]:
        """Return the gateways that follow their live settings at a nameserver, and the nameservers
        that do not answer: their gateways are unknown."""
        replies = await self._ask_nameservers(
            lambda address: LiveSettingsStub(channels.get(address)).ListGateways,
            pb.ListGatewaysRequest(),
        )
        found = {}
        away = []
        for nameserver, reply in replies:
            if not isinstance(reply, RockoonError):
                found.update({(each.name, each.address): each for each in reply.gateways})
            elif isinstance(reply, UNREACHABLE):
                away.append(ProcessSettings(nameserver, "", nameserver, error=reply))
            else:
                raise reply
        return away + [
            ProcessSettings(
                *(each.name, each.name, each.address),
                error=None if each.address else without_address(each.name),
                tls_server_name=each.tls_server_name,
            )
            for each in found.values()
        ]

    async def _nameservers(self, channels: Channels) -> list[ProcessSettings]:
        replies = await self._ask_nameservers(
            lambda address: NameServerStub(channels.get(address)).DescribeCluster,
            DescribeClusterRequest(),
        )
        found = []
        for address, reply in replies:
            if not isinstance(reply, RockoonError):
                found.append(ProcessSettings(reply.nameserver, reply.nameserver, address))
            elif isinstance(reply, UNREACHABLE):
                # Its name is unknown.
                found.append(ProcessSettings(address, "", address, error=reply))
            else:
                raise reply
        return found


async def asked(call: Call, process: ProcessSettings, method: str, request: Any) -> Any:
    """Call a process, for at most `READY_SECONDS_MAX` also while it is starting. For calls that may
    be made twice."""
    return await retried(lambda: call(process, method, request), READY_SECONDS_MAX, NotReady)


async def in_parallel(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Make calls in parallel; return the reply or the error of each."""

    async def answer(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        except RockoonError as error:
            # Returned instead of raised: a TaskGroup would wrap it in an exception group.
            return error

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(answer(call)) for call in calls]
    return [task.result() for task in asked]


def without_address(gateway: str) -> RockoonError:
    return GatewayUnavailable(
        f"gateway {gateway!r} accepts no calls of operators: set its admin_listen", gateway=gateway
    )


def not_found(service: str, node: str) -> RockoonError:
    if service == "gateway":
        name = f"named {node!r} " if node else ""
        return GatewayUnavailable(f"no gateway {name}follows the nameservers", gateway=node)
    if service == "offset":
        return OffsetServiceUnavailable()
    if service == "nameserver":
        return NameserverUnavailable(address=node or "any configured address")
    return BrokerNotFound(broker=node or "any name")
