"""Encoding of batches as append requests."""

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rockoon.compression import Compression
from rockoon.errors import MalformedBatch
from rockoon.hooks import ProducerHooks
from rockoon.net.addresses import LOOPBACK, born_host
from rockoon.producer.accumulator import ProducerBatch
from rockoon.producer.forwarded_batches import ForwardingEncoder, ForwardingSettings
from rockoon.producer.outgoing import BatchEncoder, Packing
from rockoon.producer.settings import ProducerSettings
from rockoon_core.clock import Clock
from rockoon_core.wire_fields import bytes_tag, number_tag, varint
from rockoon_format.batch_encoding import Envelope
from rockoon_proto.v1.broker_pb2 import DELAYED, AppendRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# Entries of the cache of `_request_prefix`, one per queue and route revision.
_PREFIXES_MAX = 16384

_FRAMES_TAG = bytes_tag(AppendRequest.FRAMES_FIELD_NUMBER)
_LENGTHS_TAG = bytes_tag(AppendRequest.RECORD_LENGTHS_FIELD_NUMBER)
_MORE_TAG = bytes_tag(AppendRequest.MORE_FIELD_NUMBER)
_REQUEST_ID_TAG = number_tag(AppendRequest.REQUEST_ID_FIELD_NUMBER)


class AppendRequests:
    """Encoder of batches as append requests.

    Args:
        clock: epoch milliseconds.
        hooks: called before a batch is encoded, and before its request is sent.

    Attributes:
        last_id: id of the request that was encoded last.
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
        """Find the address of this host, which records and message ids contain.

        Must finish before the first batch is encoded.
        """
        self._encoder = self._encoder_for(await born_host(self._cluster.nameservers[0]))

    def _encoder_for(self, host: bytes) -> BatchEncoder:
        make = ForwardingEncoder if isinstance(self._settings, ForwardingSettings) else BatchEncoder
        return make(host, self._instance_hash, self._clock, self._packing)

    def encode(self, batch: ProducerBatch, now: float) -> bytes:
        """Return the serialised request of a batch.

        The fields are concatenated here, because protobuf would copy the records three times.

        Args:
            batch: has messages and a queue; numbered if its producer is idempotent.
            now: seconds on the event loop's clock.

        Raises:
            MalformedBatch: the batch cannot be encoded.
        """
        sequence, queue = batch.sequence, batch.queue
        assert queue is not None
        if not batch.ids:
            # Only once: a batch that is sent again keeps its message ids.
            batch.ids = self._encoder.next_ids(len(batch.bodies))
            if self._hooks is not None:
                self._hooks.on_encode(batch)
        self.last_id += 1
        # A broker whose routes are older waits for this revision instead of refusing a new topic.
        revision = self._cluster.routes.needed_revision(queue.topic)
        rest = _request_prefix(queue.topic, queue.queue_id, revision) + varint(self.last_id)
        if sequence is not None or batch.batch_queue.delayed or self._hooks is not None:
            rest += self._optional_fields(batch, now).SerializeToString()
        try:
            message, batch.lengths = self._encoder.encode(
                queue.topic.encode(),
                queue.queue_id,
                batch.bodies,
                batch.extras,
                batch.ids,
                batch.born_timestamp_ms,
                (sequence.producer_id, sequence.first) if sequence is not None else None,
                # `Envelope(...)` would be another Python call.
                tuple.__new__(Envelope, (_FRAMES_TAG, _LENGTHS_TAG, rest)),
            )
        except ValueError as failure:
            raise MalformedBatch(index=0, reason=str(failure)) from failure
        return message

    def _optional_fields(self, batch: ProducerBatch, now: float) -> AppendRequest:
        """Return the fields that most requests do not have."""
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


@lru_cache(_PREFIXES_MAX)
def _request_prefix(topic: str, queue_id: int, route_revision: int) -> bytes:
    """Return the fields that all requests of a queue share, and the tag of the request id."""
    request = AppendRequest(topic=topic, queue_id=queue_id, route_revision=route_revision)
    return request.SerializeToString() + _REQUEST_ID_TAG


def combined(requests: Sequence[bytes]) -> bytes:
    """Return one message: the first request, with the remaining requests in its field `more`."""
    first, *more = requests
    if not more:
        return first
    parts = [first]
    for message in more:
        parts += _MORE_TAG, varint(len(message)), message
    return b"".join(parts)
