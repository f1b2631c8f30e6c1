"""Requests of a producer's batches, as its brokers' streams take them."""

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rockoon.compression import Compression
from rockoon.errors import MalformedBatch
from rockoon.hooks import ProducerHooks
from rockoon.net.host import LOOPBACK, born_host
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.forwarded_batches import ForwardingEncoder, ForwardingSettings
from rockoon.producer.outgoing import BatchEncoder, Packing
from rockoon.producer.settings import ProducerSettings
from rockoon_core.clock import Clock
from rockoon_core.wire_fields import bytes_tag, number_tag, varint
from rockoon_format.message_encoding import Envelope
from rockoon_proto.v1.broker_pb2 import DELAYED, AppendRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


_FRAMES_TAG = bytes_tag(AppendRequest.FRAMES_FIELD_NUMBER)
_LENGTHS_TAG = bytes_tag(AppendRequest.RECORD_LENGTHS_FIELD_NUMBER)
_MORE_TAG = bytes_tag(AppendRequest.MORE_FIELD_NUMBER)
_REQUEST_ID_TAG = number_tag(AppendRequest.REQUEST_ID_FIELD_NUMBER)
# Queues whose requests begin alike, see `_front`.
_FRONTS_MAX = 16384


def joined(requests: Sequence[bytes]) -> bytes:
    """One message with the first request and, as its `more`, the others."""
    first, *more = requests
    if not more:
        return first
    pieces = [first]
    for message in more:
        pieces += _MORE_TAG, varint(len(message)), message
    return b"".join(pieces)


class AppendRequests:
    """Encodes batches.

    Args:
        cluster: the connection.
        settings: the producer's.
        clock: epoch milliseconds.
        hooks: told of every batch before it is encoded, and before it goes out.

    Attributes:
        last_id: of the request that was made last.
    """

    def __init__(
        self,
        cluster: "Connection",
        settings: ProducerSettings,
        clock: Clock,
        hooks: ProducerHooks | None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self.last_id = 0
        self._instance_hash = secrets.randbits(32)
        self._packing = Packing(
            Compression(settings.compression),
            settings.compression_bytes_min,
            settings.compression_level,
        )
        self._encoder = self._encoder_for(LOOPBACK)

    async def find_host(self) -> None:
        """Learn this host's address, for records and message ids; before the first batch."""
        self._encoder = self._encoder_for(await born_host(self._cluster.nameservers[0]))

    def _encoder_for(self, host: bytes) -> BatchEncoder:
        make = ForwardingEncoder if isinstance(self._settings, ForwardingSettings) else BatchEncoder
        return make(host, self._instance_hash, self._clock, self._packing)

    def of(self, batch: ProducerBatch, now: float) -> bytes:
        """Return the request of a batch, numbered if its producer is idempotent; serialised:
        protobuf would copy its records three times.

        Args:
            batch: with messages, and its queue.
            now: seconds, of the event loop's clock.

        Raises:
            MalformedBatch: it cannot be encoded.
        """
        sequence, queue = batch.sequence, batch.queue
        assert queue is not None
        if not batch.ids:
            # Made once: a batch that is sent again has the same ids.
            batch.ids = self._encoder.take_ids(len(batch.bodies))
            if self._hooks is not None:
                self._hooks.on_encode(batch)
        self.last_id += 1
        # A broker whose routes are older waits for this revision instead of refusing a new topic.
        revision = self._cluster.routes.topic_revision(queue.topic)
        rest = _front(queue.topic, queue.queue_id, revision) + varint(self.last_id)
        if sequence is not None or batch.batch_queue.delayed or self._hooks is not None:
            rest += self._special(batch, now).SerializeToString()
        try:
            message, batch.lengths = self._encoder.encode(
                queue.topic.encode(),
                queue.queue_id,
                batch.bodies,
                batch.extras,
                batch.ids,
                batch.born_timestamp_ms,
                (sequence.producer_id, sequence.first) if sequence is not None else None,
                Envelope(_FRAMES_TAG, _LENGTHS_TAG, rest),
            )
        except ValueError as failure:
            raise MalformedBatch(index=0, reason=str(failure)) from failure
        return message

    def _special(self, batch: ProducerBatch, now: float) -> AppendRequest:
        """Fields that most requests do not have."""
        request, sequence = AppendRequest(), batch.sequence
        if batch.batch_queue.delayed:
            request.handling = DELAYED
        if sequence is not None:
            request.producer_id = sequence.producer_id
            request.first_sequence = sequence.first
            request.first_sent_ms_ago = sequence.sent(now)
        if self._hooks is not None:
            self._hooks.on_batch_sent(batch, request)
        return request


@lru_cache(_FRONTS_MAX)
def _front(topic: str, queue_id: int, route_revision: int) -> bytes:
    """What the requests of a queue have in common, and the tag of their id."""
    request = AppendRequest(topic=topic, queue_id=queue_id, route_revision=route_revision)
    return request.SerializeToString() + _REQUEST_ID_TAG
