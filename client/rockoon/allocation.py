"""Which member of a group reads which queues: the same answer on every member, without a vote.

Every member runs the same strategy over the same sorted input: queues by topic, broker and id,
member ids by code point, and of the members only those that subscribe to the topic. While two of
them see different members or routes they may disagree for a moment; the epochs of the offset
service decide then.
Source: RebalanceImpl#rebalanceByTopic and the AllocateMessageQueueStrategy classes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rockoon.message import MessageQueue


class AllocationStrategy(Protocol):
    """A way to share the queues of one topic."""

    @property
    def name(self) -> str:
        """What the strategy is called in settings, for example "AVG"."""

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        """Return the queues of `member`, in the order given.

        Args:
            member: one of `members`.
            members: sorted ids of all members that subscribe to the topic.
            queues: sorted queues of one topic.
        """


@dataclass(frozen=True, slots=True)
class Average:
    """Neighbouring queues stay together; shares differ by one at most, the first are larger.

    Source: AllocateMessageQueueAveragely.
    """

    name: ClassVar[str] = "AVG"

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        index = members.index(member)
        share, rest = divmod(len(queues), len(members))
        if share == 0:
            return queues[index : index + 1]
        size = share + (index < rest)
        start = index * size + (0 if index < rest else rest)
        return queues[start : start + size]


@dataclass(frozen=True, slots=True)
class AverageByCircle:
    """Queues are dealt round the members like cards.

    Source: AllocateMessageQueueAveragelyByCircle.
    """

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return queues[members.index(member) :: len(members)]


AVERAGE = Average()
AVERAGE_BY_CIRCLE = AverageByCircle()

STRATEGIES: Mapping[str, AllocationStrategy] = {
    strategy.name: strategy for strategy in (AVERAGE, AVERAGE_BY_CIRCLE)
}


def allocate(
    strategy: AllocationStrategy,
    member: str,
    topics_of: Mapping[str, Collection[str]],
    queues: Collection[MessageQueue],
) -> set[MessageQueue]:
    """Return all queues that `member` reads.

    Args:
        strategy: how the queues of each topic are shared.
        member: this member's id; one that `topics_of` does not know reads nothing.
        topics_of: member id to the topics it subscribes to, of every live member.
        queues: the readable queues of all topics, in any order; a topic that `member` does not
            subscribe to is not looked at.
    """
    mine: set[MessageQueue] = set()
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic in topics_of.get(member, ()):
        members = sorted(other for other, topics in topics_of.items() if topic in topics)
        ordered = sorted(by_topic.get(topic, ()), key=lambda queue: (queue.broker, queue.queue_id))
        mine.update(strategy.allocate(member, members, ordered))
    return mine
