"""Timing of a push consumer: intervals and time limits."""

from dataclasses import dataclass
from math import inf

from rockoon.bounds import check_bounds
from rockoon.consumer.delivery import CONSUME_TIMEOUT_SECONDS
from rockoon.consumer.queue_reader import PULL_EXPIRED_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals and time limits of a push consumer, in seconds.

    Raises:
        InvalidArgument: a time is less than 0.01 s, or `drain_seconds` less than 0.
    """

    consume_timeout_seconds: float = CONSUME_TIMEOUT_SECONDS
    """Time limit of a handler call, after which it has failed. If its messages are stored
    elsewhere, its result is ignored. Not for orderly consumers."""
    commit_seconds: float = 5.0
    """Time between commits."""
    rebalance_seconds: float = 20.0
    """Time between rebalances without a known change."""
    drain_seconds: float = 10.0
    """Time limit for running handler calls when the consumer is closed or a queue is revoked; the
    hand-over time of the offset service may be shorter."""
    pull_expired_seconds: float = PULL_EXPIRED_SECONDS
    """Time without a reply to pulls after which a queue is resolved again."""

    def __post_init__(self) -> None:
        times = (
            "consume_timeout_seconds",
            "commit_seconds",
            "rebalance_seconds",
            "pull_expired_seconds",
        )
        # Shorter intervals would be a busy loop.
        bounds = dict.fromkeys(times, (0.01, inf)) | {"drain_seconds": (0, inf)}
        check_bounds(self, bounds)
