"""Redelivery of failed messages: the interface between delivery and retries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rockoon.consumer.consume_result import Delay
from rockoon.message import Message


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A handler call that raised, returned LATER, or exceeded its time limit."""

    messages: Sequence[Message]
    """Messages of the call."""
    attempt: int
    """Number of failed handler calls for these messages in this consumer, 1 or more. Earlier
    redeliveries through the retry topic are not included: `Message.reconsume_times` has them."""
    exception: BaseException | None = None
    """Exception of the handler; None if it returned LATER; a TimeoutError if it still runs."""
    delay: Delay | None = None
    """Delay that the handler requested; None without a request."""
    is_last: bool = False
    """No further attempt: the messages become dead letters, by the rules of an orderly consumer."""


Failure = HandlerFailure  # former name, for programs with a `Redelivery` of their own


class Redelivery(Protocol):
    """Decides how failed messages are delivered again."""

    async def failed(self, failure: HandlerFailure) -> float | None:
        """Handle failed messages. They are neither finished nor delivered during this call.

        Returns:
            Seconds until this consumer delivers them again; None if they are stored elsewhere, for
            example in a retry topic, and count as finished.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalRedelivery:
    """Redelivers in this consumer without limit: after the delay in seconds that the handler
    requested, or after a pause that doubles. Delay levels apply to brokers and are ignored."""

    first_seconds: float = 1.0
    seconds_max: float = 60.0

    async def failed(self, failure: HandlerFailure) -> float:
        if failure.delay is not None and failure.delay.seconds is not None:
            return failure.delay.seconds
        doublings = min(failure.attempt - 1, 30)
        return float(min(self.first_seconds * 2**doublings, self.seconds_max))
