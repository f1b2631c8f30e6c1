"""CONFIG: the operator says which member reads what."""

from collections.abc import Sequence
from dataclasses import dataclass

from rockoon_core.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Configured:
    """This member reads a fixed list of queues, whoever else is there.

    Nobody sees to it that the lists of all members cover every queue, or no queue twice. Unlike in
    RocketMQ, a listed queue that is not there, or not readable, is left out until it is.

    Args:
        queues: of any topics, what this member reads.

    Source: AllocateMessageQueueByConfig.
    """

    @property
    def name(self) -> str:
        return "CONFIG"

    queues: tuple[MessageQueue, ...]

    def allocate(
        self,
        member: str,  # noqa: ARG002 - whoever it is, and
        members: Sequence[str],  # noqa: ARG002 - whoever else is there
        queues: Sequence[MessageQueue],
    ) -> Sequence[MessageQueue]:
        return [queue for queue in queues if queue in self.queues]
