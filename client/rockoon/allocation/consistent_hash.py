"""CONSISTENT_HASH: queues and members on a ring; few queues move, but shares may be uneven."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue


def ring_hash(text: str) -> int:
    """Return the ring position of a text: the first 32 bits of its MD5, big-endian, unsigned.

    Source: ConsistentHashRouter.MD5Hash.
    """
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_key(queue: MessageQueue) -> str:
    """Return the text whose hash is the position of a queue.

    Source: MessageQueue#toString, which Java members hash.
    """
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
    )


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """A queue belongs to the next member on the ring.

    If a member joins or leaves, only its own queues move. But one member may read several times as
    much as another, or nothing. `Sticky` moves some more queues and keeps shares even.

    Args:
        virtual_nodes: ring positions per member; must be equal on all members.

    Raises:
        InvalidArgument: `virtual_nodes` is less than one.

    Source: AllocateMessageQueueConsistentHash, ConsistentHashRouter, VirtualNode.
    """

    @property
    def name(self) -> str:
        return "CONSISTENT_HASH"

    virtual_nodes: int = 10

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise InvalidArgument(reason=f"virtual_nodes is {self.virtual_nodes}, not at least 1")

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        # If two nodes have one position, the later member gets it, as in the Java tree map.
        ring = {
            ring_hash(f"{other}-{number}"): other
            for other in members
            for number in range(self.virtual_nodes)
        }
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, ring_hash(queue_key(queue))) % len(places)]]
            == member
        ]
