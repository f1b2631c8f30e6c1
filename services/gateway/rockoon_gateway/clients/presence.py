"""Presence: the clients that this gateway knows, from their calls.

No call depends on it: clients of some languages continue without heartbeats or settings after the
gateway was restarted. Any call makes a client known. A client may call several gateways, so silence
at this one proves nothing. `Reports` sends the heard clients to the offset service.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from rockoon_core.errors import RockoonError
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.client_settings import check_client_type
from rockoon_gateway.codes import OK, Refusal
from rockoon_gateway.names import checked_group, cluster_name
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType, Code, Resource, Settings
from rockoon_proto.apache.rocketmq.v2.service_pb2 import TelemetryCommand
from rockoon_runtime.access.keys import Action
from rockoon_runtime.allocator import return_freed_memory

# More are dropped: the client does not read the stream.
COMMANDS_MAX = 100


class Outbox:
    """Commands of the gateway that wait to be sent on one client's Telemetry stream.

    Args:
        signs_of_life: counts arrivals of bytes on the stream's connection.
    """

    def __init__(self, call: GatewayCall, signs_of_life: Callable[[], int] = lambda: 0) -> None:
        self._call = call
        self.signs_of_life = signs_of_life
        self._commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue()
        self._closed = False

    def allows(self, action: Action, resource: str) -> bool:
        """True if the client's key has a permission now; arguments like `GatewayCall.require`."""
        try:
            self._call.renewed().require(action, resource)
        except (Refusal, RockoonError):
            return False
        return True

    def put(self, command: TelemetryCommand) -> bool:
        """Queue a command; False if the stream has ended, or the client does not read it."""
        if self._closed or self._commands.qsize() >= COMMANDS_MAX:
            return False
        self._commands.put_nowait(command)
        return True

    def close(self) -> None:
        """End the stream after the queued commands were sent."""
        if not self._closed:
            self._closed = True
            self._commands.put_nowait(None)

    async def next(self) -> TelemetryCommand | None:
        """Wait for the next command and return it; None after the end."""
        return await self._commands.get()


CONSUMERS = frozenset(
    {
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    }
)
CHECK_SECONDS = 5.0
# After the last use the receiving engine keeps batches and groups for 30 to 60 seconds.
RETURN_MEMORY_SECONDS = 75.0
# Memory is returned if a quarter of the clients has left: the return collects all garbage, which
# pauses the event loop. The more clients, the longer the pause.
LEFT_SHARE = 4
CLIENTS_MAX = 100_000
# Limit of all clients' settings: one caller may have any number of clients.
SETTINGS_BYTES_MAX = 64 << 20
AGENT_CHARACTERS_MAX = 255
# Kept groups of one client; official clients have one.
GROUPS_MAX = 16


@dataclass(slots=True, eq=False)
class GatewayClient:
    """State of one client of the gateway.

    Attributes:
        client_id: as sent by the client.
        peer, language, version: see `GatewayCall`.
        client_type: UNSPECIFIED until the client has sent it.
        group: group of a consumer, by its name in the cluster; empty otherwise.
        settings: the used fields of its last settings; None if it sent none, or if the limit of all
            clients' settings is reached.
        began, seen: event loop's time of its first and last call.
        groups: consumer groups that its calls have named.
        outboxes: its open Telemetry streams.
        signs_of_life: sum of its streams at the last check.
        key_id: access key of its first call; calls with another key are refused. Empty if calls
            are not signed.
    """

    client_id: str
    peer: str
    language: str
    version: str
    seen: float
    began: float = 0.0
    client_type: ClientType = ClientType.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    settings: Settings | None = None
    groups: dict[str, None] = field(default_factory=dict)
    outboxes: list[Outbox] = field(default_factory=list)
    signs_of_life: int = 0
    key_id: str = ""

    @property
    def is_consumer(self) -> bool:
        return self.client_type in CONSUMERS

    @property
    def topics(self) -> list[str]:
        """Topics that a producer sends to, from its settings, by their names in the cluster; empty
        for consumers."""
        if self.settings is None:
            return []
        return [cluster_name(topic) for topic in self.settings.publishing.topics]

    def named(self, topic: str) -> Resource:
        """Return a topic of the cluster under the name that the client uses."""
        own: list[Resource] = []
        if self.settings is not None:
            own += self.settings.publishing.topics
            own += [each.topic for each in self.settings.subscription.subscriptions]
        return next((each for each in own if cluster_name(each) == topic), Resource(name=topic))


class Presence:
    """Clients of this gateway, with their settings: recorded by calls, removed when silent.

    Args:
        seconds_max: how long a silent client stays known.
        settings_bytes_max: limit of all kept settings.

    Attributes:
        seconds_max: see the argument; may change.
        on_change: called with a client when it connects, changes its settings, or leaves.
        on_goodbye: called with a client that terminates, and the groups that it leaves.
        heard: consumers with a group, and producers with an empty text, that called since the last
            report, with the loop's time.
    """

    def __init__(self, seconds_max: float, settings_bytes_max: int = SETTINGS_BYTES_MAX) -> None:
        self.seconds_max = seconds_max
        self._settings_bytes_left = settings_bytes_max
        self._clients: dict[str, GatewayClient] = {}
        # Departures since the last time that memory was returned.
        self._left = 0
        self._returning: asyncio.TimerHandle | None = None
        self.on_change: list[Callable[[GatewayClient], None]] = []
        self.on_goodbye: list[Callable[[GatewayClient, Collection[str]], None]] = []
        self.heard: dict[tuple[GatewayClient, str], float] = {}

    def __iter__(self) -> Iterator[GatewayClient]:
        return iter(self._clients.values())

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> GatewayClient | None:
        return self._clients.get(client_id)

    def is_alive(self, client_id: str, seconds_max: float) -> bool:
        """True if a client has a Telemetry stream, or has called within this time."""
        client = self._clients.get(client_id)
        if client is None:
            return False
        return bool(client.outboxes) or self._now() - client.seen <= seconds_max

    def record_call(self, call: GatewayCall, group: str = "") -> GatewayClient:
        """Record a client's call.

        Args:
            group: named by the call; the client has the permission to read it.

        Raises:
            Refusal: UNAUTHORIZED, the client id belongs to another access key; TOO_MANY_REQUESTS.
        """
        client = self._clients.get(call.client_id)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Refusal(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are known here")
            client = self._clients[call.client_id] = self._made(call)
        check_owner(client, call)
        now = self._now()
        client.seen, client.peer = now, call.peer
        if client.client_type == ClientType.PRODUCER:
            self.heard[client, ""] = now
        if group := group or client.group:
            self.heard[client, group] = now
            if group not in client.groups:
                client.groups[group] = None
                if len(client.groups) > GROUPS_MAX:
                    del client.groups[next(iter(client.groups))]
        return client

    def check_signs_of_life(self) -> None:
        """Record consumers as alive if bytes have arrived on their stream's connection since the
        last call of this method: a client may be too busy to call.
        """
        now = self._now()
        for client in self:
            if client.outboxes and client.group:
                signs = sum(each.signs_of_life() for each in client.outboxes)
                if signs != client.signs_of_life:
                    client.signs_of_life = signs
                    self.heard[client, client.group] = now

    def _made(self, call: GatewayCall) -> GatewayClient:
        client = GatewayClient(call.client_id, call.peer, call.language, call.version, self._now())
        client.key_id = key_id(call)
        client.began = client.seen
        return client

    def record_settings(self, call: GatewayCall, settings: Settings) -> GatewayClient:
        """Record a client's settings below the limit of all settings. Raises Refusal."""
        client = self.record_call(call)
        kept: Settings | None = kept_of(settings)
        self._settings_bytes_left += _size(client.settings)
        if _size(kept) > self._settings_bytes_left:
            # Calls work without settings, as after a restart of the gateway: no client is refused.
            kept = None
        self._settings_bytes_left -= _size(kept)
        client.client_type = settings.client_type
        client.group = cluster_name(settings.subscription.group) if client.is_consumer else ""
        client.settings = kept
        if client.group or client.client_type == ClientType.PRODUCER:
            self.record_call(call, client.group)
        self._changed(client)
        return client

    def producers(self, topic: str) -> list[GatewayClient]:
        """Return the producers of a topic that have an open stream."""
        return [each for each in self if each.outboxes and topic in each.topics]

    def consumers(self, group: str) -> list[GatewayClient]:
        return [each for each in self if each.is_consumer and each.group == group]

    async def heartbeat(
        self, request: pb.HeartbeatRequest, call: GatewayCall
    ) -> pb.HeartbeatResponse:
        """Serve the Heartbeat call; OK also if this gateway does not have the client's settings."""
        client_type = request.client_type
        client = self._clients.get(call.client_id)
        if client_type == ClientType.CLIENT_TYPE_UNSPECIFIED and client is not None:
            client_type = client.client_type
        check_client_type(client_type)
        if client_type == ClientType.CLIENT_TYPE_UNSPECIFIED:
            raise Refusal(Code.UNRECOGNIZED_CLIENT_TYPE, "the client does not send its type")
        group = ""
        if client_type in CONSUMERS:
            group = checked_group(request.group, call.namespace)
            call.require("read", f"group:{group}")
        is_new = client is None or client.client_type != client_type
        client = self.record_call(call, group)
        client.client_type, client.group = client_type, group or client.group
        if is_new:
            self._changed(client)
        return pb.HeartbeatResponse(status=OK)

    async def terminate(
        self, request: pb.NotifyClientTerminationRequest, call: GatewayCall
    ) -> pb.NotifyClientTerminationResponse:
        """Remove a client that terminates; its messages become visible.

        A consumer that has only called other gateways is not known here; it names its group.
        """
        client = self._clients.get(call.client_id)
        if client is None and not request.group.name:
            raise Refusal(Code.UNRECOGNIZED_CLIENT_TYPE, "the client is not known here")
        client = client or self._made(call)
        check_owner(client, call)
        groups = dict.fromkeys(filter(None, (*client.groups, client.group)))
        if request.group.name:
            groups[checked_group(request.group, call.namespace)] = None
        for group in groups:
            call.require("read", f"group:{group}")
        self._remove(client)
        for group in (*groups, ""):
            self.heard.pop((client, group), None)
        for each in self.on_goodbye:
            each(client, groups)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def run(self) -> None:
        """Remove clients that have been silent for too long, until cancelled."""
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self.seconds_max / 2))
            self._remove_silent()

    def _remove_silent(self) -> None:
        # A separate function: a variable of `run` would keep the last client alive.
        for client in list(self):
            if not self.is_alive(client.client_id, self.seconds_max):
                self._remove(client)

    def _remove(self, client: GatewayClient) -> None:
        if self._clients.pop(client.client_id, None) is not None:
            self._settings_bytes_left += _size(client.settings)
            self._changed(client)
            self._left += 1
            if self._returning is None:
                self._return_memory_later()

    def _return_memory_later(self) -> None:
        """Start `_return_memory`'s timer if enough clients left: it blocks the loop for a while."""
        self._returning = None
        if self._left and self._left * LEFT_SHARE >= len(self._clients):
            self._returning = asyncio.get_running_loop().call_later(
                RETURN_MEMORY_SECONDS, self._return_memory, self._left
            )

    def _return_memory(self, left: int) -> None:
        """Release to the system the memory of clients that have left.

        Args:
            left: departures when the timer was started.
        """
        return_freed_memory()
        self._left -= left
        self._return_memory_later()

    def _changed(self, client: GatewayClient) -> None:
        for call in self.on_change:
            call(client)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def kept_of(settings: Settings) -> Settings:
    """Copy the used fields of settings into a message without references to the received one."""
    kept = Settings(client_type=settings.client_type)
    for name in ("user_agent", "request_timeout"):
        if settings.HasField(name):
            getattr(kept, name).CopyFrom(getattr(settings, name))
    if settings.HasField("publishing"):
        kept.publishing.topics.extend(settings.publishing.topics)
    if settings.HasField("subscription"):
        kept.subscription.subscriptions.extend(settings.subscription.subscriptions)
    if kept.HasField("user_agent"):
        agent = kept.user_agent
        agent.version = agent.version[:AGENT_CHARACTERS_MAX]
        agent.platform = agent.platform[:AGENT_CHARACTERS_MAX]
        agent.hostname = agent.hostname[:AGENT_CHARACTERS_MAX]
    kept.DiscardUnknownFields()
    return kept


def _size(settings: Settings | None) -> int:
    return 0 if settings is None else settings.ByteSize()


def key_id(call: GatewayCall) -> str:
    """Return the id of the access key that signed the call; empty without one."""
    return call.key.key_id if call.key is not None else ""


def check_owner(client: GatewayClient, call: GatewayCall) -> None:
    """Raise Refusal with UNAUTHORIZED if the call has another access key than the client."""
    if key_id(call) != client.key_id:
        raise Refusal(Code.UNAUTHORIZED, f"client id {client.client_id!r} belongs to another key")
