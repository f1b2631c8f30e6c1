"""Order: rules of consumers that handle the messages of a queue one after the other."""

from dataclasses import dataclass

from rockoon.consumer.consume_result import SUSPEND_SECONDS
from rockoon.errors import InvalidArgument


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
