"""Timing of a push consumer: how often it does what it does by the clock, and how long it waits."""

from dataclasses import dataclass
from math import inf

from rockoon.bounds import check_bounds
from rockoon.consumer.delivery import CONSUME_TIMEOUT_SECONDS
from rockoon.consumer.queue_reader import PULL_EXPIRED_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often a push consumer does what it does by the clock, and how long it waits.

    Raises:
        InvalidArgument: a time is less than 0.01 s, or `drain_seconds` less than 0.
    """

    consume_timeout_seconds: float = CONSUME_TIMEOUT_SECONDS
    """Not orderly only: a handler call that takes longer has failed; its result is not heard any
    more once its messages are safe elsewhere."""
    commit_seconds: float = 5.0
    """Time between commits."""
    rebalance_seconds: float = 20.0
    """Allocation is looked at so often even when nothing seems to change."""
    drain_seconds: float = 10.0
    """How long closing waits for handler calls that run; giving a queue up as well, but no longer
    than the offset service lets it."""
    pull_expired_seconds: float = PULL_EXPIRED_SECONDS
    """A queue whose broker has answered no pull for so long is resolved again."""

    def __post_init__(self) -> None:
        times = (
            "consume_timeout_seconds",
            "commit_seconds",
            "rebalance_seconds",
            "pull_expired_seconds",
        )
        # More often than a hundred times a second would be a loop that does nothing else.
        bounds = dict.fromkeys(times, (0.01, inf)) | {"drain_seconds": (0, inf)}
        check_bounds(self, bounds)
