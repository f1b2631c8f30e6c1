"""Descriptions of topics, groups, queues and nodes, as `Admin` returns them."""

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
    """What a broker says of one queue, or why it says nothing."""

    queue: MessageQueue
    create_revision: int
    """etcd revision at which the queue was created."""
    state: QueueState | None
    error: RockoonError | None
    as_of_ms: int = 0
    """The broker's clock at its answer, epoch milliseconds; 0 without a state."""
    route_revision: int = 0
    """Routes that the broker had heard of; 0 where it does not say."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    route: TopicRoute
    queues: Sequence[QueueEnds]
    groups: Sequence[str]
    """Groups that read the topic, sorted."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    group: Group
    topics: Mapping[str, int]
    """Topics it reads, with the etcd revision at which it began to."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: Group
    topics: Mapping[str, int]
    """Topics it reads, with the etcd revision at which it began to."""
    members: Sequence[Member]
    lag: LagReply
    clients: Sequence[GroupClient] = ()
    """Clients that read message by message."""
    receivers: Sequence[ReceiverFilter] = ()
    """Filters that receivers reported lately."""
    filter_conflicts: Sequence[str] = ()
    """A sentence for each topic that members and receivers read by different filters."""


@dataclass(frozen=True, slots=True)
class QueueStory:
    """Where a group stands on one queue, how it came to be there, and what is left."""

    queue: MessageQueue
    member: str
    """Whose progress, where members have their own; empty for the group's."""
    progress: Progress | None
    """None when the group has never started on the queue."""
    lag: QueueLag | None
    """None when the queue is no longer part of the topic."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of the cluster and what it answered; `error` is why it did not."""

    name: str
    address: str
    node: Node | None = None
    """As the routes have it; None for a nameserver."""
    cluster: DescribeClusterReply | None = None
    """From a nameserver."""
    broker: DescribeBrokerReply | None = None
    """From a broker."""
    members: int | None = None
    """From the offset service: live members of all groups."""
    error: RockoonError | None = None
    problems: Sequence[str] = ()
    """What keeps a node that answers from its work, a sentence each."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    cluster: str
    nameservers: Sequence[NodeStatus]
    brokers: Sequence[NodeStatus]
    offset_services: Sequence[NodeStatus]
    logs: Sequence[LogStatus] = ()
    """Those with copies."""

    @property
    def etcd_reachable(self) -> bool:
        """Whether every nameserver that answers reaches etcd, and one answers at all."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return bool(answers) and all(answer.etcd_reachable for answer in answers)

    @property
    def routes_in_file(self) -> bool:
        """Whether a nameserver keeps the routes in a file, and there is no etcd."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        return any(answer.routes_in_file for answer in answers)

    @property
    def away_brokers(self) -> list[str]:
        """Names of brokers that are not among the nodes any more, and have queues."""
        answers = [each.cluster for each in self.nameservers if each.cluster is not None]
        # One that cannot reach etcd says what was true.
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
