"""Clients that acknowledge message by message: gateway clients and simple consumers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rockoon_proto.v1.in_flight_pb2 import Client, ListClientsReply
from rockoon_proto.v1.offset_pb2 import GroupMembers


@dataclass(slots=True)
class GroupClient:
    """A client of a group, with its in-flight messages. Unknown texts are empty."""

    client_id: str
    """Id that a gateway client has set; for a simple consumer, its receiver name."""
    key_id: str = ""
    """Name of the access key that signs the client's calls; empty for unsigned calls."""
    gateway: str = ""
    """Name of the gateway that last reported the client; empty for a simple consumer."""
    client_type: str = ""
    """Type of a gateway client: "push_consumer", "simple_consumer" or "lite_push_consumer"; else
    empty."""
    language: str = ""
    version: str = ""
    """Version of the client's SDK."""
    address: str = ""
    """Network address of the client's last call, in gRPC's notation."""
    hostname: str = ""
    heard_ms_ago: int | None = None
    """Milliseconds since the client's last call to a gateway, or its last report of filters; None
    if unknown."""
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    """Topics that the client reads → its filter, as far as reported."""
    lite_parent: str = ""
    lite_topics: int = 0
    """Number of lite topics of `lite_parent` that the client reads."""
    messages: int = 0
    """Number of messages that the client holds; they are invisible to other clients."""
    queues: int = 0
    """Number of queues with messages that the client holds."""
    attempt_max: int = 0
    """Highest delivery attempt of the messages that the client holds."""

    @property
    def is_at_gateway(self) -> bool:
        """True if a gateway has reported the client."""
        return bool(self.gateway)


def group_clients(reply: ListClientsReply, readers: GroupMembers) -> list[GroupClient]:
    """Return all clients of a group, sorted by id.

    Args:
        reply: gateway clients, and receivers that hold messages.
        readers: filters reported by receivers; several receivers may share a name.
    """
    found = {(each.client_id, each.key_id): _of_gateway(each) for each in reply.clients}
    for holding in reply.holdings:
        name = holding.receiver, holding.key_id
        client = found.setdefault(name, GroupClient(*name))
        client.messages, client.queues = holding.messages, holding.queues
        client.attempt_max = holding.attempt_max
    by_id: dict[str, list[GroupClient]] = {}
    for client in found.values():
        by_id.setdefault(client.client_id, []).append(client)
    reported: dict[str, dict[str, str]] = {}
    for report in readers.receivers:
        filters = reported.setdefault(report.receiver, {})
        filters[report.filter.topic] = report.filter.expression
        clients = by_id.setdefault(report.receiver, [GroupClient(report.receiver)])
        for client in clients:
            if not client.is_at_gateway:
                ago = max(reply.as_of_ms - report.heard_at_ms, 0)
                before = client.heard_ms_ago
                client.heard_ms_ago = ago if before is None else min(ago, before)
    for client_id, filters in reported.items():
        for client in by_id[client_id]:
            client.subscriptions = client.subscriptions or filters
    every = (client for clients in by_id.values() for client in clients)
    return sorted(every, key=lambda each: (each.client_id, each.key_id))


def _of_gateway(client: Client) -> GroupClient:
    details = client.details
    return GroupClient(
        client.client_id,
        client.key_id,
        client.gateway,
        details.client_type,
        details.language,
        details.version,
        details.address,
        details.hostname,
        client.heard_ms_ago,
        {each.topic: each.expression for each in details.subscriptions},
        client.lite_parent,
        client.lite_topics,
    )
