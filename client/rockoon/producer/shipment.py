"""Shipments: batches of several queues that go to a broker in one message."""

# A broker's loop is at one message all the time: so much takes it about a millisecond.
SHIPMENT_BYTES_MAX = 1 << 20


class Shipment:
    """Batches that go to one broker together, and take one of its slots.

    Attributes:
        was_idle: the broker had nothing else when it was begun: it takes batches that could linger.
        count: how many batches it has been given.
        bytes: what these count for.
        left: how many of them the broker has not answered for.
    """

    __slots__ = ("bytes", "count", "left", "was_idle")

    def __init__(self, *, was_idle: bool) -> None:
        self.was_idle = was_idle
        self.count = 0
        self.bytes = 0
        self.left = 0

    def has_room(self, batch_bytes: int, batches_max: int) -> bool:
        """Whether a batch of so many bytes may join."""
        return self.count < batches_max and self.bytes + batch_bytes <= SHIPMENT_BYTES_MAX
