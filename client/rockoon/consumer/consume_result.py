"""Consume results: what a handler can return for its messages."""

from dataclasses import dataclass
from enum import Enum, unique
from typing import ClassVar, Self

from rockoon.errors import InvalidArgument

# As ConsumeMessageOrderlyService has them, in submitConsumeRequestLater.
SUSPEND_SECONDS = 1.0
SUSPEND_SECONDS_MIN = 0.01
SUSPEND_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Delay:
    """When a handler wants its messages again; one of the two."""

    seconds: float | None = None
    level: int | None = None
    """A delay level of the brokers, from 1; 0: by the number of failures, as if nothing had been
    said; negative: not again, they are dead letters. Source: ConsumeConcurrentlyContext."""


@unique
class Verdict(Enum):
    SUCCESS = "SUCCESS"
    LATER = "LATER"
    SUSPEND = "SUSPEND"


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """What a handler returns: `SUCCESS`, `LATER`, `later(...)`, `SUSPEND` or `suspend(...)`."""

    verdict: Verdict
    delay: Delay | None = None

    SUCCESS: ClassVar[Self]
    LATER: ClassVar[Self]
    """Deliver again after a while; raising an exception means the same."""
    SUSPEND: ClassVar[Self]
    """Only in an orderly consumer: the same message again after its usual pause."""

    @classmethod
    def later(cls, *, seconds: float | None = None, level: int | None = None) -> "ConsumeResult":
        """Deliver again after a chosen time; without one, the same as `LATER`.

        Args:
            seconds: 0 or more. A retry topic takes the next longer delay that its brokers have.
            level: a delay level of the brokers instead; negative: not again, a dead letter.

        Raises:
            InvalidArgument: both are given, or `seconds` is negative.
        """
        if seconds is not None and (level is not None or not seconds >= 0):
            raise InvalidArgument(reason="later() takes seconds, 0 or more, or a level")
        if seconds is None and level is None:
            return cls.LATER
        return cls(Verdict.LATER, Delay(seconds, level))

    @classmethod
    def suspend(cls, seconds: float = SUSPEND_SECONDS) -> "ConsumeResult":
        """Leave the queue alone for a while, then the same message again; its failure counts.

        Args:
            seconds: brought into the range from 10 ms to 30 s.
        """
        return cls(Verdict.SUSPEND, Delay(seconds))


ConsumeResult.SUCCESS = ConsumeResult(Verdict.SUCCESS)
ConsumeResult.LATER = ConsumeResult(Verdict.LATER)
ConsumeResult.SUSPEND = ConsumeResult(Verdict.SUSPEND)


def suspension_seconds(wanted: Delay | None, usual_seconds: float = SUSPEND_SECONDS) -> float:
    """Return how long an orderly queue rests after a failure."""
    seconds = usual_seconds if wanted is None or wanted.seconds is None else wanted.seconds
    return min(max(seconds, SUSPEND_SECONDS_MIN), SUSPEND_SECONDS_MAX)


def read_result(result: object, *, orderly: bool) -> ConsumeResult:
    """Return what a handler's return value means.

    Raises:
        TypeError: nothing that a handler may return.
    """
    if result is None or result is True:
        return ConsumeResult.SUCCESS
    if result is False:
        return ConsumeResult.LATER
    if not isinstance(result, ConsumeResult):
        raise TypeError(f"a handler returned {result!r}, not None, True, False or a ConsumeResult")
    if result.verdict is Verdict.SUSPEND and not orderly:
        raise TypeError("a handler returned SUSPEND, and its consumer is not orderly")
    return result
