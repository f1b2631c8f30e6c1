"""Long polling: pulls that wait for new messages of their queue.

A pull that finds no new message waits for its queue. When messages arrive, it reads again. If its
filter matches none, it continues to wait for the rest of its time, and later reads from after the
examined messages. Pure: the caller waits and measures the time.
Source: PullRequestHoldService#notifyMessageArriving.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import GetResult, GetStatus

Wake = Callable[[], None]
Notify = Callable[[], bool]
"""Called when messages have arrived. False removes it; `watch` can register it again."""

_EMPTY = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})


class Step(Enum):
    """The next step of a pull."""

    ANSWER = "answer"
    CONTINUE = "read the following entries"
    WAIT = "wait for the next message"


@dataclass(slots=True)
class PullProgress:
    """State of a pull between its request and its reply."""

    asked_offset: int
    """The offset of the request."""
    offset: int
    """The offset to read next: after the messages that the filter did not match."""

    def step(self, found: GetResult) -> Step:
        """Apply the result of a read at `offset`; return the next step if there is time left."""
        status = found.status
        if status is GetStatus.NO_MATCHED_MESSAGE:
            self.offset = found.next_offset
            return Step.CONTINUE if found.next_offset < found.max_offset else Step.WAIT
        at_end = status is GetStatus.OFFSET_OVERFLOW_ONE or (status in _EMPTY and self.offset == 0)
        return Step.WAIT if at_end else Step.ANSWER

    def answer(self, found: GetResult) -> tuple[GetStatus, int]:
        """Return status and next offset of the reply.

        If the pull has examined entries, the reader continues after them.
        """
        if found.status is GetStatus.OFFSET_OVERFLOW_ONE and self.offset > self.asked_offset:
            return GetStatus.NO_MATCHED_MESSAGE, self.offset
        return found.status, found.next_offset


class WaitingPulls:
    """Pulls and streams that wait for messages, by queue.

    Args:
        count_max: maximum of waiting pulls; further pulls must reply without waiting.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._open = True
        self._queues: dict[QueueKey, set[Wake]] = {}
        # Callbacks of streams, whose number the streams bound.
        self._watching: dict[QueueKey, set[Notify]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, queue: QueueKey, wake: Wake) -> bool:
        """Add a waiting pull; False if the maximum is reached, or after `release`."""
        if not self._open or self._count >= self._count_max:
            return False
        self._queues.setdefault(queue, set()).add(wake)
        self._count += 1
        return True

    def remove(self, queue: QueueKey, wake: Wake) -> None:
        """Remove a pull, if it still waits."""
        waiting = self._queues.get(queue)
        if waiting is None or wake not in waiting:
            return
        waiting.remove(wake)
        self._count -= 1
        if not waiting:
            del self._queues[queue]

    def watch(self, queue: QueueKey, notify: Notify) -> None:
        """Call `notify` for each arrival in a queue until it returns False or is removed."""
        self._watching.setdefault(queue, set()).add(notify)

    def unwatch(self, queue: QueueKey, notify: Notify) -> None:
        """Remove a callback of `watch`, if it is still registered."""
        watching = self._watching.get(queue)
        if watching is None:
            return
        watching.discard(notify)
        if not watching:
            del self._watching[queue]

    def arrived(self, queue: QueueKey) -> None:
        """Wake the pulls and notify the streams that wait for a queue."""
        waiting = self._queues.pop(queue, None)
        if waiting is not None:
            self._wake(waiting)
        watching = self._watching.get(queue)
        if watching is not None:
            for notify in tuple(watching):
                if not notify():
                    self.unwatch(queue, notify)

    def wake_topic(self, topic: str) -> None:
        """Wake the pulls and notify the streams that wait for a queue of a deleted topic."""
        for queue in {*self._queues, *self._watching}:
            if queue[0] == topic:
                self.arrived(queue)

    def release(self) -> None:
        """Wake all pulls, and accept no more; the owners of streams end them."""
        self._open = False
        while self._queues:
            self._wake(self._queues.popitem()[1])

    def _wake(self, waiting: set[Wake]) -> None:
        self._count -= len(waiting)
        for wake in waiting:
            wake()
