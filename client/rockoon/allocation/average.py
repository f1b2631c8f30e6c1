"""AVG and AVG_BY_CIRCLE: shares by position, whose sizes differ by at most one queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Average:
    """Consecutive queues go to one member; shares differ by at most one, the first are larger.

    Source: AllocateMessageQueueAveragely.
    """

    @property
    def name(self) -> str:
        return "AVG"

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
    """Queue number n goes to member number n modulo the number of members.

    Source: AllocateMessageQueueAveragelyByCircle.
    """

    @property
    def name(self) -> str:
        return "AVG_BY_CIRCLE"

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return queues[members.index(member) :: len(members)]
