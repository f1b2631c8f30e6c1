"""Order: that a consumer handles the messages of a queue one after the other."""

from dataclasses import dataclass

from rockoon.consumer.consume_result import SUSPEND_SECONDS
from rockoon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Order:
    """That each queue's messages are handled one after the other, and what a failure does then."""

    suspend_seconds: float = SUSPEND_SECONDS
    """How long a queue rests after a failure, unless the handler says."""
    attempts_max: int | None = None
    """Deliveries until the message is given to `Redelivery` as a dead letter, and the queue goes
    on. None: it waits for as long as it takes."""

    @classmethod
    def of(cls, orderly: "bool | Order") -> "Order | None":
        """Return what a consumer's `orderly` means; raises InvalidArgument."""
        if isinstance(orderly, bool):
            return cls() if orderly else None
        if orderly.attempts_max is not None and orderly.attempts_max < 1:
            raise InvalidArgument(reason="attempts_max must be 1 or more")
        return orderly
