"""One queue that a PullStream serves: what is asked for, and how far it has come."""

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
    """One queue of a stream."""

    number: int
    """The reader's name for it."""
    query: PullQuery
    queue: QueueKey = field(init=False)
    bounds: tuple[int, int] = field(init=False)
    """Messages and bytes of one answer, at most."""
    is_plain: bool = field(init=False)
    """Whether all messages are wanted."""
    check: Callable[[], None]
    """Raises when the queue may not be read (any more)."""
    progress: PullProgress
    """Where to look next, and how far the reader was told."""
    since_seconds: float
    """From when on the reader has waited for an answer, monotonic; `since_ns` the same, epoch."""
    since_ns: int
    messages: int = 0
    """Credit; nothing is looked at without, nor without `bytes`."""
    bytes: int = 0
    is_ready: bool = False
    """Whether the routes that the reader knows are known here."""
    loading: "asyncio.Future[bool] | None" = None
    """Brings what the next look wants from the disk; it is not listed meanwhile."""
    loads: Loads | None = None
    """What was brought for the next look."""
    is_over: bool = False
    is_listed: bool = False
    is_answered: bool = False
    """Whether the reader was told anything: it hears at once that its subscription stands."""
    is_parked: bool = False
    """Whether the next arrival lists it."""
    is_watching: bool = False
    """Whether `notify` is registered."""
    notify: Callable[[], bool] | None = None
    """What `WaitingPulls` calls with arrivals; None until it is parked for the first time."""
    telling: asyncio.TimerHandle | None = None
    """Tells the reader how far its filter has left out messages."""
    ends: GetResult = field(
        default_factory=lambda: GetResult(GetStatus.NO_MATCHED_MESSAGE, 0, 0, 0)
    )
    """The queue's ends at the last look."""

    def __post_init__(self) -> None:
        query = self.query
        self.queue = query.topic, query.queue_id
        self.bounds = query.bounds
        self.is_plain = query.tag_codes is None and query.expression is None
