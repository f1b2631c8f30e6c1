"""Slots of one broker: what a producer knows about it as a receiver of batches. Pure."""

from collections import OrderedDict

from rockoon.errors import RockoonError
from rockoon.producer.accumulator import BatchQueue, ProducerBatch
from rockoon.producer.shipment import Shipment
from rockoon_core.backoff import Backoff

# A batch costs both sides some fifty microseconds of CPU, however few messages it has. So whoever
# sends to a thousand queues waits until batches are worth it; a queue or two do not notice.
PAUSE_SECONDS_PER_BATCH = 200e-6
PAUSE_SECONDS_MAX = 0.2


class Slots:
    """What is known about one broker as a receiver."""

    __slots__ = (
        "backoff",
        "batches_max",
        "blocked",
        "error",
        "has_failed",
        "in_flight",
        "is_live",
        "lingering",
        "not_before",
        "pause_end",
        "shipment",
        "taken",
    )

    def __init__(self, backoff: Backoff) -> None:
        # Shipments.
        self.in_flight = 0
        # Of one shipment; 1 as long as it has not said that it takes more.
        self.batches_max = 1
        # Which batches can join, while they are handed out, and how many were.
        self.shipment: Shipment | None = None
        self.taken = 0
        # Until then no batch that may wait for more messages begins a shipment.
        self.pause_end = 0.0
        self.is_live = False
        # After a failure: when to try again, and what it was.
        self.not_before = 0.0
        self.error: RockoonError | None = None
        # Whether something failed since the last success.
        self.has_failed = False
        self.backoff = backoff
        # In the order in which they are to be served; one at most once.
        self.blocked: OrderedDict[BatchQueue, None] = OrderedDict()
        self.lingering: dict[BatchQueue, None] = {}

    def next_pause(self) -> float:
        """How long to pause after a failure, seconds."""
        self.has_failed = True
        return self.backoff.next_seconds()

    def forget_failures(self) -> None:
        self.not_before = 0.0
        self.error = None
        self.has_failed = False
        self.backoff.reset()

    def takes(
        self, head: ProducerBatch, now: float, in_flight_max: int, *, is_due: bool, may_wait: bool
    ) -> bool:
        """Whether a batch can go there now.

        An idle broker gets what there is at once; a busy one is worth a batch only when the batch
        is full or has lingered. So batches grow with the load, and nobody lingers without need.

        Args:
            head: the batch.
            now: seconds.
            in_flight_max: shipments that it may have.
            is_due: the batch has lingered, or need not.
            may_wait: nobody awaits it, and it can get more messages.
        """
        shipment = self.shipment
        is_idle = shipment.was_idle if shipment is not None else self.in_flight == 0
        if may_wait and self.pause_end > now:
            return False
        if shipment is not None and shipment.has_room(head.bytes, self.batches_max):
            return is_due or is_idle
        return (is_due or is_idle) and self.in_flight < in_flight_max
