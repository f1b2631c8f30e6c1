"""Forwarded batches: records of messages that come with all their properties, ids among them."""

from rockoon.producer.outgoing import BatchEncoder, Extras
from rockoon.producer.settings import ProducerSettings
from rockoon_format.batch_encoding import encode_batch
from rockoon_format.message_encoding import Envelope


class ForwardingSettings(ProducerSettings):
    """Settings of a producer whose messages bring their properties; not of an idempotent one."""


class ForwardingEncoder(BatchEncoder):
    """Makes records of messages that have all their properties: `extras` holds them, in front."""

    def take_ids(self, count: int) -> bytes:
        """As many bytes: a batch knows by them that it was encoded."""
        return bytes(count)

    def encode(
        self,
        topic: bytes,
        queue_id: int,
        bodies: list[bytes],
        extras: dict[int, Extras],
        ids: bytes,  # noqa: ARG002 - each message has its own
        born_timestamp_ms: int,
        sequence: tuple[int, int] | None = None,
        envelope: Envelope | None = None,
    ) -> tuple[bytes, bytes]:
        """See `BatchEncoder.encode`."""
        assert sequence is None, "a forwarding producer is not idempotent"
        frames, lengths = encode_batch(
            topic,
            queue_id,
            bodies,
            [extras[index][0] for index in range(len(bodies))],
            born_timestamp_ms,
            self.born_host,
            room=True,
        )
        sizes = lengths.astype("<u4").tobytes()
        return (envelope.around(frames, sizes) if envelope else frames), sizes
