"""Forwarded batches: records of messages that already have all their properties and ids."""

from rockoon.producer.outgoing import BatchEncoder, Extras
from rockoon.producer.settings import ProducerSettings
from rockoon_format.batch_encoding import Envelope, encode_batch


class ForwardingSettings(ProducerSettings):
    """Settings of a producer that forwards messages; `idempotent` must be False."""


class ForwardingEncoder(BatchEncoder):
    """Encoder of messages whose last entry in `extras` has all their properties."""

    def next_ids(self, count: int) -> bytes:
        """Return placeholders: a batch without ids would count as not encoded."""
        return bytes(count)

    def encode(
        self,
        topic: bytes,
        queue_id: int,
        bodies: list[bytes],
        extras: dict[int, Extras],
        ids: bytes,  # noqa: ARG002 - the properties have the ids
        born_timestamp_ms: int,
        sequence: tuple[int, int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the records of a batch, and their sizes; see `BatchEncoder.encode`."""
        assert sequence is None, "a forwarding producer is not idempotent"
        frames, lengths = encode_batch(
            topic,
            queue_id,
            bodies,
            [extras[index][1] for index in range(len(bodies))],
            born_timestamp_ms,
            self.born_host,
            room=True,
        )
        sizes = lengths.astype("<u4").tobytes()
        return (envelope.around(frames, sizes) if envelope else frames), sizes
