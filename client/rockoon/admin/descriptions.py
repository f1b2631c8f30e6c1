"""Results of `Admin` methods: topics, groups, queues and nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rockoon.admin.group_clients import GroupClient
from rockoon.admin.log_status import LogStatus
from rockoon.errors import RockoonError
from rockoon.net.routes import TopicRoute
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply, QueueState
from rockoon_proto.v1.nameserver_pb2 import DescribeClusterReply, Group, Node
from rockoon_proto.v1.offset_pb2 import LagReply, Member, Progress, QueueLag, ReceiverFilter


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
    members: Sequence[Member]
    lag: LagReply
    clients: Sequence[GroupClient] = ()
    """Clients that acknowledge message by message."""
    receivers: Sequence[ReceiverFilter] = ()
    """Filters that receivers reported lately."""
    filter_conflicts: Sequence[str] = ()
    """A sentence for each topic that members and receivers filter differently."""


@dataclass(frozen=True, slots=True)
class QueueStory:
    """Start, progress and lag of a group on one queue."""

    queue: MessageQueue
    member: str
    """The member, if members have their own progress; empty for the group's progress."""
    progress: Progress | None
    """Stored progress of the group on the queue; None if the group has never started there."""
    lag: QueueLag | None
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
    def away_brokers(self) -> list[str]:
        """Names of brokers that have queues but are not registered."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        # The newest reply: a nameserver without etcd reports old data.
        latest = max(answers, key=lambda answer: answer.revision, default=None)
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
