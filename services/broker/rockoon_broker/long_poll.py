"""Long polling: pulls that wait for messages of their queue.

A pull that finds nothing new waits for its queue. Something arrives: it looks again, and if its
filter matches nothing of it, it goes on waiting for the rest of its time, from behind what it has
examined. Pure: waiting itself, and the time, are the caller's.
Source: PullRequestHoldService#notifyMessageArriving.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import GetResult, GetStatus

Wake = Callable[[], None]
Notify = Callable[[], bool]
"""Called when messages have arrived. False removes it: it is registered again when it is wanted."""

_EMPTY = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})


class Step(Enum):
    """What a pull does next."""

    ANSWER = "answer"
    LOOK_ON = "look at the following entries"
    WAIT = "wait for the next message"


@dataclass(slots=True)
class PullProgress:
    """One pull between its request and its answer."""

    asked_offset: int
    """Where the reader wanted to begin."""
    offset: int
    """Where to look next; beyond `asked_offset` by what its filter did not match."""

    def step(self, found: GetResult) -> Step:
        """Take in what was found at `offset`, and decide as if there were time left."""
        status = found.status
        if status is GetStatus.NO_MATCHED_MESSAGE:
            self.offset = found.next_offset
            return Step.LOOK_ON if found.next_offset < found.max_offset else Step.WAIT
        at_end = status is GetStatus.OFFSET_OVERFLOW_ONE or (status in _EMPTY and self.offset == 0)
        return Step.WAIT if at_end else Step.ANSWER

    def answer(self, found: GetResult) -> tuple[GetStatus, int]:
        """Status and next offset to answer with.

        A pull that has examined entries says so: its reader goes on behind them.
        """
        if found.status is GetStatus.OFFSET_OVERFLOW_ONE and self.offset > self.asked_offset:
            return GetStatus.NO_MATCHED_MESSAGE, self.offset
        return found.status, found.next_offset


class WaitingPulls:
    """The pulls that wait, each with what wakes it, and the queues that streams wait for.

    Args:
        count_max: how many pulls may wait at once; further ones have to answer at once.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._open = True
        self._queues: dict[QueueKey, set[Wake]] = {}
        # Of streams, which bound their number.
        self._watching: dict[QueueKey, set[Notify]] = {}

    def __len__(self) -> int:
        return self._count

    def hold(self, queue: QueueKey, wake: Wake) -> bool:
        """Let a pull wait; False when too many do, or none may any more."""
        if not self._open or self._count >= self._count_max:
            return False
        self._queues.setdefault(queue, set()).add(wake)
        self._count += 1
        return True

    def forget(self, queue: QueueKey, wake: Wake) -> None:
        """Take a pull out, whether it still waits or not."""
        waiting = self._queues.get(queue)
        if waiting is None or wake not in waiting:
            return
        waiting.remove(wake)
        self._count -= 1
        if not waiting:
            del self._queues[queue]

    def watch(self, queue: QueueKey, notify: Notify) -> None:
        """Call `notify` with each arrival in a queue until it returns False or is removed."""
        self._watching.setdefault(queue, set()).add(notify)

    def unwatch(self, queue: QueueKey, notify: Notify) -> None:
        """Remove what `watch` has registered; it may have been removed before."""
        watching = self._watching.get(queue)
        if watching is None:
            return
        watching.discard(notify)
        if not watching:
            del self._watching[queue]

    def arrived(self, queue: QueueKey) -> None:
        """Wake all that wait for a queue."""
        waiting = self._queues.pop(queue, None)
        if waiting is not None:
            self._wake(waiting)
        watching = self._watching.get(queue)
        if watching is not None:
            for notify in tuple(watching):
                if not notify():
                    self.unwatch(queue, notify)

    def topic_gone(self, topic: str) -> None:
        """Wake all that wait for any queue of a topic."""
        for queue in {*self._queues, *self._watching}:
            if queue[0] == topic:
                self.arrived(queue)

    def release(self) -> None:
        """Answer all pulls, and let none wait any more; streams are ended by who has them."""
        self._open = False
        while self._queues:
            self._wake(self._queues.popitem()[1])

    def _wake(self, waiting: set[Wake]) -> None:
        self._count -= len(waiting)
        for wake in waiting:
            wake()
