"""Redelivery of failed messages: the interface between delivery and retries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rockoon.consumer.consume_result import Delay
from rockoon.message import Message


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler call that raised, returned LATER, or took longer than it may."""

    messages: Sequence[Message]
    """What the handler got."""
    attempt: int
    """How often this consumer has delivered them in vain, 1 or more. What other deliveries there
    were by way of a retry topic, the messages say."""
    exception: BaseException | None = None
    """What it raised, None when it returned LATER; a TimeoutError when it still runs."""
    delay: Delay | None = None
    """What it asked for, None when it said nothing."""
    is_last: bool = False
    """No further attempt is wanted: they are dead letters, by an orderly consumer's rules."""


class Redelivery(Protocol):
    """What becomes of messages that a handler failed on."""

    async def failed(self, failure: Failure) -> float | None:
        """Decide, or see to it. The messages are neither finished nor delivered meanwhile.

        Returns:
            Seconds until they are delivered again here; None when they are safe elsewhere (in a
            retry topic, say) and count as finished.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalRedelivery:
    """Delivers again here: after what the handler asked for in seconds, else after a pause that
    doubles. Nothing is ever given up; a delay level, which is the brokers' affair, is not heard."""

    first_seconds: float = 1.0
    seconds_max: float = 60.0

    async def failed(self, failure: Failure) -> float:
        if failure.delay is not None and failure.delay.seconds is not None:
            return failure.delay.seconds
        doublings = min(failure.attempt - 1, 30)
        return float(min(self.first_seconds * 2**doublings, self.seconds_max))
