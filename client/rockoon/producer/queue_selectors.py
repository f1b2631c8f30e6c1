"""Queue selectors: the queue that a message goes to.

Messages without a key go round robin, one queue per *batch*: a batch holds messages of one queue,
so changing the queue with every message would open as many small batches as there are queues
where one large one does (a large one costs the broker the same as a small one).

Messages with a key go by `CRC-32 of the key's UTF-8, modulo the number of queues`, over the
topic's queues sorted by broker and queue id, those of brokers that are away included. So a key
keeps its queue while the topic keeps its queues, in every process and on every machine; adding
queues moves keys. A producer may be given another hash, for example `java_key_hash`.
"""

import zlib
from collections.abc import Callable, Sequence

from rockoon_core.message_queue import MessageQueue
from rockoon_format.hashes import java_hash_code

KeyHash = Callable[[str], int]
"""Returns any integer for a key; the queue is its remainder."""


def crc32_key_hash(key: str) -> int:
    """Return the CRC-32 of the key in UTF-8."""
    return zlib.crc32(key.encode())


def java_key_hash(key: str) -> int:
    """Return a hash that chooses as RocketMQ's SelectMessageQueueByHash does with a String.

    For topics that Java producers fill as well. Several times slower than `crc32_key_hash`, and
    only the same as long as Java sees the queues in the same order.
    """
    # Java's remainder of a negative number is negative, and its absolute value is taken after it.
    return abs(java_hash_code(key))


class RoundRobin:
    """Goes round a topic's queues, passing over those that cannot take anything now.

    Args:
        start: where to begin, so that many producers do not all begin with the first queue.
    """

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def choose(
        self, queues: Sequence[MessageQueue], usable: Callable[[MessageQueue], bool]
    ) -> MessageQueue | None:
        """Return the next usable queue and go on behind it, None if there is no usable one."""
        for step in range(len(queues)):
            index = (self._next + step) % len(queues)
            if usable(queues[index]):
                self._next = index + 1
                return queues[index]
        return None
