"""Results of `Admin` methods: topics, groups and their clients, queues and nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rockoon.admin.logs import LogStatus
from rockoon.errors import RockoonError
from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue
from rockoon_core.protocol import LEVEL
from rockoon_proto.v1 import offset_pb2 as offset_pb
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply, QueueState
from rockoon_proto.v1.in_flight_pb2 import Client, ListClientsReply
from rockoon_proto.v1.nameserver_pb2 import DescribeClusterReply, Group, Node


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


def group_clients(reply: ListClientsReply, readers: offset_pb.GroupMembers) -> list[GroupClient]:
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
                client.language, client.version = report.language, report.version
                client.address = report.address
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


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """State of one queue as its broker reports it, or the broker's error."""

    queue: MessageQueue
    create_revision: int
    """etcd revision at which the queue was created."""
    state: QueueState | None
    error: RockoonError | None
    as_of_ms: int = 0
    """Time of the reply by the broker's clock, epoch milliseconds; 0 if there is no state."""
    route_revision: int = 0
    """Revision of the broker's routes at that time; 0 if the broker does not report it."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    route: TopicRoute
    queues: Sequence[QueueEnds]
    groups: Sequence[str]
    """Names of the groups that read the topic, sorted."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    group: Group
    topics: Mapping[str, int]
    """Topics that the group reads → etcd revision of the subscription."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: Group
    topics: Mapping[str, int]
    """Topics that the group reads → etcd revision of the subscription."""
    members: Sequence[offset_pb.Member]
    lag: offset_pb.LagReply
    clients: Sequence[GroupClient] = ()
    """Clients that acknowledge message by message."""
    receivers: Sequence[offset_pb.ReceiverFilter] = ()
    """Filters that receivers reported lately."""
    filter_conflicts: Sequence[str] = ()
    """A sentence for each topic that members and receivers filter differently."""


@dataclass(frozen=True, slots=True)
class QueueStory:
    """Start, progress and lag of a group on one queue."""

    queue: MessageQueue
    member: str
    """The member, if members have their own progress; empty for the group's progress."""
    progress: offset_pb.Progress | None
    """Stored progress of the group on the queue; None if the group has never started there."""
    lag: offset_pb.QueueLag | None
    """Lag of the group on the queue; None if the topic does not have the queue any more."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of the cluster with its reply, or with the error if it did not answer."""

    name: str
    address: str
    node: Node | None = None
    """The node in the routes; None for a nameserver."""
    cluster: DescribeClusterReply | None = None
    """Reply of a nameserver; None for other nodes."""
    broker: DescribeBrokerReply | None = None
    """Reply of a broker; None for other nodes."""
    members: int | None = None
    """Number of live members of all groups, from the offset service; None for other nodes."""
    error: RockoonError | None = None
    problems: Sequence[str] = ()
    """Reasons why a node that answers does not work, one sentence each."""
    clock_ahead_ms: int | None = None
    """How far the node's clock is certainly ahead of this machine's, milliseconds; negative:
    behind; None: unknown."""

    @property
    def is_of_levels(self) -> bool:
        """Whether a nameserver answers and supports the feature level of this SDK."""
        return self.cluster is not None and self.cluster.level_max >= LEVEL


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    cluster: str
    nameservers: Sequence[NodeStatus]
    brokers: Sequence[NodeStatus]
    offset_services: Sequence[NodeStatus]
    logs: Sequence[LogStatus] = ()
    """Status of each replicated log."""

    @property
    def etcd_reachable(self) -> bool:
        """True if at least one nameserver answers, and every nameserver that answers reaches
        etcd."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return bool(answers) and all(answer.etcd_reachable for answer in answers)

    @property
    def routes_in_file(self) -> bool:
        """Whether the nameserver keeps the routes in a file, without etcd."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return any(answer.routes_in_file for answer in answers)

    @property
    def level(self) -> int:
        """Feature level of the cluster; 0 if no nameserver reports one."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return max((answer.level for answer in answers), default=0)

    @property
    def level_lacking(self) -> list[str]:
        """Names of services that do not support the highest level of the nameservers; a nameserver
        that does not answer counts too."""
        most = max((each.cluster.level_max for each in self.nameservers if each.cluster), default=0)
        former = [
            each.name or each.address
            for each in self.nameservers
            if each.cluster is None or each.cluster.level_max < most
        ]
        latest = self._latest
        return [*former, *(latest.level_lacking if latest is not None else ())]

    @property
    def _latest(self) -> DescribeClusterReply | None:
        """The newest reply: a nameserver without etcd reports old data."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return max(answers, key=lambda answer: (answer.revision, answer.level_max), default=None)

    @property
    def away_brokers(self) -> list[str]:
        """Names of brokers that have queues but are not registered."""
        latest = self._latest
        listed = {each.name for each in self.brokers}
        return [name for name in latest.away_brokers if name not in listed] if latest else []

    @property
    def healthy(self) -> bool:
        nodes = (*self.nameservers, *self.brokers, *self.offset_services)
        return (
            self.etcd_reachable
            and bool(self.brokers)
            and bool(self.offset_services)
            and not self.away_brokers
            and all(node.error is None and not node.problems for node in nodes)
            and all(log.is_well for log in self.logs)
        )
