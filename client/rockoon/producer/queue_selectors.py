"""Queue selectors: choose the queue of a batch or of an ordering key.

Messages without a key go round robin, one queue per *batch*: a batch has messages of one queue, and
a new queue for each message would open many small batches instead of a large one (which costs the
broker as much as a small one).

The queue of a key is `CRC-32 of the key's UTF-8, modulo the number of queues`, over the topic's
queues sorted by broker and queue id, including those of unavailable brokers. So a key keeps its
queue as long as the topic keeps its queues, in every process and on every machine; adding queues
moves keys. While a broker is drained, the keys of its queues have other queues. A producer can have
another hash, for example `java_key_hash`.
"""

import zlib
from collections.abc import Callable, Collection, Sequence

from rockoon_core.message_queue import MessageQueue
from rockoon_format.hashes import java_hash_code

KeyHash = Callable[[str], int]
"""Returns an integer for a key; its remainder is the index of the queue."""


def crc32_key_hash(key: str) -> int:
    """Return the CRC-32 of the key in UTF-8."""
    return zlib.crc32(key.encode())


def java_key_hash(key: str) -> int:
    """Return the hash by which RocketMQ's SelectMessageQueueByHash selects the queue of a String.

    For topics to which Java producers send as well. Several times slower than `crc32_key_hash`;
    the queue is the same only while Java sees the queues in the same order.
    """
    # Java computes the remainder of the signed number first, and then its absolute value.
    return abs(java_hash_code(key))


def accepting(queues: Sequence[MessageQueue], drained: Collection[str]) -> Sequence[MessageQueue]:
    """Return the queues whose brokers are not drained; all queues if all brokers are drained."""
    return [queue for queue in queues if queue.broker not in drained] or queues


def for_keys(queues: Sequence[MessageQueue], drained: Collection[str]) -> Sequence[MessageQueue]:
    """Return the queues for ordering keys. Another queue replaces each queue of a drained broker,
    so that only the keys of these queues move."""
    if not drained:
        return queues
    accepted = accepting(queues, drained)
    return [
        accepted[index % len(accepted)] if queue.broker in drained else queue
        for index, queue in enumerate(queues)
    ]


class RoundRobin:
    """Round robin over a topic's queues, without the queues that are not usable now.

    Args:
        start: index of the first queue, so that producers do not all start with the same queue.

    Attributes:
        next: index of the next queue, modulo the number of queues.
    """

    __slots__ = ("next",)

    def __init__(self, start: int = 0) -> None:
        self.next = start

    def choose(
        self, queues: Sequence[MessageQueue], usable: Callable[[MessageQueue], bool]
    ) -> MessageQueue | None:
        """Return the next usable queue, or None; the following call starts after it."""
        for step in range(len(queues)):
            index = (self.next + step) % len(queues)
            if usable(queues[index]):
                self.next = index + 1
                return queues[index]
        return None
