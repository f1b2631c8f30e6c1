"""Consume results, the return values of handlers, and rules of orderly consumers."""

from dataclasses import dataclass
from enum import Enum, unique
from typing import ClassVar, Self

from rockoon.errors import InvalidArgument

# Limits of ConsumeMessageOrderlyService, in its method submitConsumeRequestLater.
SUSPEND_SECONDS = 1.0
SUSPEND_SECONDS_MIN = 0.01
SUSPEND_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay before a redelivery that a handler requests, in seconds or as a level."""

    seconds: float | None = None
    level: int | None = None
    """A delay level of the brokers, from 1; 0: by the number of failures, like without a request;
    negative: no redelivery, the messages become dead letters. Source: ConsumeConcurrentlyContext.
    """


@unique
class Verdict(Enum):
    SUCCESS = "SUCCESS"
    LATER = "LATER"
    SUSPEND = "SUSPEND"


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """Result of a handler: `SUCCESS`, `LATER`, `later(...)`, `SUSPEND` or `suspend(...)`."""

    verdict: Verdict
    delay: Delay | None = None

    SUCCESS: ClassVar[Self]
    LATER: ClassVar[Self]
    """Deliver again after the default delay; an exception has the same effect."""
    SUSPEND: ClassVar[Self]
    """Orderly consumers only: deliver the same message again after the pause of the `Order`."""

    @classmethod
    def later(cls, *, seconds: float | None = None, level: int | None = None) -> "ConsumeResult":
        """Deliver again after a delay; without arguments, the same as `LATER`.

        Args:
            seconds: 0 or more. A retry topic uses the next longer delay that its brokers have.
            level: a delay level of the brokers instead; negative: the message becomes a dead
                letter.

        Raises:
            InvalidArgument: both are given, or `seconds` is negative.
        """
        if seconds is not None and (level is not None or not seconds >= 0):
            raise InvalidArgument(reason="later() needs either seconds, 0 or more, or a level")
        if seconds is None and level is None:
            return cls.LATER
        return cls(Verdict.LATER, Delay(seconds, level))

    @classmethod
    def suspend(cls, seconds: float = SUSPEND_SECONDS) -> "ConsumeResult":
        """Pause the queue, then deliver the same message again, as a further attempt.

        Args:
            seconds: limited to 0.01 to 30 seconds.
        """
        return cls(Verdict.SUSPEND, Delay(seconds))


ConsumeResult.SUCCESS = ConsumeResult(Verdict.SUCCESS)
ConsumeResult.LATER = ConsumeResult(Verdict.LATER)
ConsumeResult.SUSPEND = ConsumeResult(Verdict.SUSPEND)


def suspension_seconds(wanted: Delay | None, usual_seconds: float = SUSPEND_SECONDS) -> float:
    """Return the pause of an orderly queue after a failure, in seconds."""
    seconds = usual_seconds if wanted is None or wanted.seconds is None else wanted.seconds
    return min(max(seconds, SUSPEND_SECONDS_MIN), SUSPEND_SECONDS_MAX)


def read_result(result: object, *, orderly: bool) -> ConsumeResult:
    """Convert the return value of a handler.

    Raises:
        TypeError: the value is not allowed.
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


@dataclass(frozen=True, slots=True)
class Order:
    """Handle the messages of each queue one after the other; rules for failures."""

    suspend_seconds: float = SUSPEND_SECONDS
    """Pause of a queue after a failure, seconds, unless the handler requests another one."""
    attempts_max: int | None = None
    """Deliveries after which a failed message becomes a dead letter, and the queue continues. None:
    no limit, the queue waits."""

    @classmethod
    def of(cls, orderly: "bool | Order") -> "Order | None":
        """Convert the argument `orderly` of a consumer; raises InvalidArgument."""
        if isinstance(orderly, bool):
            return cls() if orderly else None
        if orderly.attempts_max is not None and orderly.attempts_max < 1:
            raise InvalidArgument(reason="attempts_max must be 1 or more")
        return orderly
