"""AVG and AVG_BY_CIRCLE: shares by position, the same size but for one queue."""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Average:
    """Neighbouring queues stay together; shares differ by one at most, the first are larger.

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
    """Queues are dealt round the members like cards.

    Source: AllocateMessageQueueAveragelyByCircle.
    """

    @property
    def name(self) -> str:
        return "AVG_BY_CIRCLE"

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return queues[members.index(member) :: len(members)]
