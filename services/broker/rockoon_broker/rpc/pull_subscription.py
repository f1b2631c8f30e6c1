"""PullSubscription: a queue of a PullStream, with its query and progress."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from rockoon_broker.cold_reads import Loads
from rockoon_broker.long_poll import PullProgress
from rockoon_broker.pull import PullQuery
from rockoon_broker.store.queues.consume_queue import QueueKey
from rockoon_broker.store.reading.reader import GetResult, GetStatus


@dataclass(slots=True, eq=False)
class PullSubscription:
    """A queue of a stream."""

    number: int
    """Id of the subscription, chosen by the reader."""
    query: PullQuery
    queue: QueueKey = field(init=False)
    bounds: tuple[int, int] = field(init=False)
    """Maximum of messages and bytes of one answer."""
    is_plain: bool = field(init=False)
    """True without a filter."""
    check: Callable[[], None]
    """Raises if the queue may not be read."""
    progress: PullProgress
    """The offset to read next, and the offset that the reader knows."""
    since_seconds: float
    """Monotonic time since which the reader waits for an answer; `since_ns`: in epoch time."""
    since_ns: int
    messages: int = 0
    """Credit, messages. Without it, or without credit in `bytes`, the queue is not read."""
    bytes: int = 0
    is_ready: bool = False
    """The broker has routes at least as new as the reader's."""
    loading: "asyncio.Future[bool] | None" = None
    """Load of pages for the next read; until it is done the subscription is not listed."""
    loads: Loads | None = None
    """Pages that were loaded for the next read."""
    is_over: bool = False
    is_listed: bool = False
    is_answered: bool = False
    """The reader has an answer: the first one, sent immediately, confirms the subscription."""
    is_parked: bool = False
    """The next arrival lists the subscription."""
    is_watching: bool = False
    """`notify` is registered."""
    notify: Callable[[], bool] | None = None
    """Callback for `WaitingPulls`; None until the subscription is parked for the first time."""
    progress_timer: asyncio.TimerHandle | None = None
    """Reports to the reader the offset after messages that its filter did not match."""
    ends: GetResult = field(
        default_factory=lambda: GetResult(GetStatus.NO_MATCHED_MESSAGE, 0, 0, 0)
    )
    """Offsets of the queue's ends at the last read."""

    def __post_init__(self) -> None:
        query = self.query
        self.queue = query.topic, query.queue_id
        self.bounds = query.bounds
        self.is_plain = query.tag_codes is None and query.expression is None
