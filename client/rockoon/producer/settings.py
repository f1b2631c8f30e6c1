"""The producer's settings."""

from dataclasses import dataclass

from rockoon.bounds import check_bounds
from rockoon.compression import LEVEL_DEFAULT, PACKED_BYTES_MIN, Compression
from rockoon.errors import InvalidArgument
from rockoon.producer.outgoing import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer batches, waits and gives up.

    Raises:
        InvalidArgument: a value is out of its bounds.
    """

    idempotent: bool = False
    """Have the brokers store every message once, whatever is sent again; delayed messages excepted.
    A batch whose answer was lost then waits for its broker instead of going to another queue."""
    batch_bytes_max: int = 1 << 20
    """A batch is closed when it is this large; 1 KiB to 8 MiB: with one message more, and topics
    as long as they may be, that stays below the 16 MiB that brokers take by default."""
    batch_messages_max: int = 16_384
    """Or has this many messages; 1 to 65536."""
    linger_ms: float = 5.0
    """How long a batch that nobody awaits may wait for more messages while the broker is busy with
    others. A broker that is idle is sent what there is at once. With very many queues batches wait
    up to 0.2 s: a producer sends a broker 5,000 of them a second, so that they grow instead."""
    in_flight_max: int = 8
    """Messages with batches sent to one broker and not answered; 1 to 256."""
    buffer_bytes_max: int = 64 << 20
    """Messages not acknowledged and not awaited; beyond it `send` raises BufferFull."""
    drain_bytes: int = 32 << 20
    """`wait_capacity` and `send_many` wait while more than this is not acknowledged, or more than
    half of `buffer_bytes_max`."""
    delivery_timeout_seconds: float = 30.0
    """After this a message that could not be delivered fails with the last error."""
    reply_timeout_seconds: float = 10.0
    """A broker that has not answered for this long is taken to hang: the stream is broken."""
    compression: Compression | str = Compression.NONE
    """How bodies are compressed: "none", "zlib", "lz4" or "zstd". Readers get them as they were
    sent, RocketMQ's clients too. It is done on the event loop, a batch at a time."""
    compression_bytes_min: int = PACKED_BYTES_MIN
    """Smaller bodies are sent as they are, and so are those that would not get smaller."""
    compression_level: int = LEVEL_DEFAULT
    """1 (quick) to 9 (small); LZ4 has none."""

    @property
    def capacity_bytes(self) -> int:
        """Messages not acknowledged, beyond which is waited: well before `send` raises."""
        return min(self.drain_bytes, self.buffer_bytes_max // 2)

    def __post_init__(self) -> None:
        bounds = {
            "batch_bytes_max": (1 << 10, 8 << 20),
            "batch_messages_max": (1, 65_536),
            "linger_ms": (0, 60_000),
            "in_flight_max": (1, 256),
            "buffer_bytes_max": (1 << 10, 1 << 40),
            "drain_bytes": (1, 1 << 40),
            "delivery_timeout_seconds": (0.001, 86_400),
            "reply_timeout_seconds": (0.001, 86_400),
            "compression_bytes_min": (1, BODY_BYTES_MAX),
            "compression_level": (1, 9),
        }
        check_bounds(self, bounds)
        if self.compression not in set(Compression):
            kinds = ", ".join(Compression)
            raise InvalidArgument(reason=f"compression is {self.compression!r}, not one of {kinds}")
