"""CONFIG: a fixed list of queues for each member."""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Configured:
    """This member reads a fixed list of queues, independent of other members.

    The operator must make sure that the lists of all members cover every queue once. Unlike in
    RocketMQ, a listed queue that does not exist or is not readable is skipped until it is.

    Args:
        queues: queues of any topics that this member reads.

    Source: AllocateMessageQueueByConfig.
    """

    @property
    def name(self) -> str:
        return "CONFIG"

    queues: tuple[MessageQueue, ...]

    def allocate(
        self,
        member: str,  # noqa: ARG002 - the result does not depend on the member
        members: Sequence[str],  # noqa: ARG002 - nor on other members
        queues: Sequence[MessageQueue],
    ) -> Sequence[MessageQueue]:
        return [queue for queue in queues if queue in self.queues]
