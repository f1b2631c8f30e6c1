"""The producer's settings."""

from dataclasses import dataclass

from rockoon.bounds import check_bounds
from rockoon.compression import LEVEL_DEFAULT, PACKED_BYTES_MIN, Compression
from rockoon.errors import InvalidArgument
from rockoon.producer.outgoing import BODY_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Batching, buffering, timeouts and compression of a producer.

    Raises:
        InvalidArgument: a value is out of its bounds.
    """

    idempotent: bool = False
    """True: brokers store each message once even if it is sent again, except delayed messages. A
    batch whose reply was lost then waits for its broker instead of going to another queue."""
    batch_bytes_max: int = 1 << 20
    """Size at which a batch is closed, bytes, 1 KiB to 8 MiB. The largest batch, with one more
    message and the longest topic names, is below the 16 MiB that brokers accept by default."""
    batch_messages_max: int = 16_384
    """Messages at which a batch is closed, 1 to 65536."""
    linger_ms: float = 5.0
    """Time that a batch may wait for more messages, milliseconds, 0 to 60000. It applies to batches
    that no task awaits, while their broker is busy; an idle broker receives batches immediately.
    A producer with very many queues sends 5,000 batches a second to a broker; then batches wait up
    to 0.2 s and grow."""
    in_flight_max: int = 8
    """Append requests without a reply per broker, 1 to 256; a request may have several batches."""
    buffer_bytes_max: int = 64 << 20
    """Bytes of messages not acknowledged and not awaited by a task, 1 KiB to 1 TiB; above it `send`
    raises BufferFull."""
    drain_bytes: int = 32 << 20
    """Bytes of messages not acknowledged, 1 to 1 TiB: above it, and above half of
    `buffer_bytes_max`, `wait_capacity` and `send_many` wait."""
    delivery_timeout_seconds: float = 30.0
    """Time after which an undelivered message fails with its last error, seconds, 0.001 to
    86400."""
    reply_timeout_seconds: float = 10.0
    """Time without a reply after which the producer breaks the stream to a broker, seconds, 0.001
    to 86400."""
    compression: Compression | str = Compression.NONE
    """Compression of bodies: "none", "zlib", "lz4" or "zstd". Readers, RocketMQ's clients too,
    receive the original bodies. The event loop compresses one batch at a time."""
    compression_bytes_min: int = PACKED_BYTES_MIN
    """Smallest body that is compressed, bytes, 1 to 4 MiB. Bodies that compression would not make
    smaller are sent uncompressed."""
    compression_level: int = LEVEL_DEFAULT
    """1 (fast) to 9 (small); LZ4 ignores it."""

    @property
    def capacity_bytes(self) -> int:
        """Unacknowledged bytes above which `wait_capacity` waits: well before `send` raises."""
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
