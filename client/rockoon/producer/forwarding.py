"""Forwarding: sends messages that another client has created, with their original properties.

Used by gateways: their clients create the message ids, and look for messages by them. Properties
are not checked here.
"""

from typing import TYPE_CHECKING

from rockoon.errors import BufferFull
from rockoon.producer.forwarded_batches import ForwardingSettings
from rockoon.producer.outgoing import BODY_BYTES_MAX, body_too_large, check_extras, check_keys
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import PROPERTY_KEYS
from rockoon_format.record import PROPERTY_CRC_BYTES

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

_KEYS_MARK = f"{PROPERTY_KEYS}\x01".encode()


class ForwardingProducer(Producer):
    """Producer whose messages are sent by `forward` only. `cluster`, `settings`: as for
    `Producer`."""

    def __init__(self, cluster: "Connection", settings: ForwardingSettings) -> None:
        super().__init__(cluster, settings)

    def forward(
        self,
        topic: str,
        body: bytes,
        properties: bytes,
        *,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        delayed: bool = False,
    ) -> Receipt:
        """Accept a message for sending; its id is its UNIQ_KEY, not the one in the result.

        Args:
            topic: the destination.
            body: at most 4 MiB.
            properties: all properties, encoded, TAGS first, with UNIQ_KEY.
            ordering_key, queue: as for `Producer.send`.
            delayed: the properties contain a delay.

        Raises:
            InvalidTopicName, BodyTooLarge, PropertiesTooLarge, KeyMissing: it cannot be sent.
            QueueNotFound: the topic does not have the queue.
            BufferFull: too many bytes of messages that no task awaits.
            Closed: the producer is closed.
        """
        if len(body) > BODY_BYTES_MAX:
            raise body_too_large(len(body))
        if topic in self._compacted and _KEYS_MARK not in properties:
            check_keys(topic, None)
        extras = (b"", properties)
        check_extras(extras, PROPERTY_CRC_BYTES)
        if self._accumulator.unawaited_bytes > self._buffer_bytes_max:
            raise BufferFull(limit=self._buffer_bytes_max)
        batch_queue = self._router.batch_queue(topic, queue, ordering_key)
        if batch_queue is None:
            return self._hold(topic, body, extras, ordering_key, delayed=delayed)
        if delayed:
            batch_queue = self._accumulator.delayed_batch_queue(topic, batch_queue.queue)
        receipt = Receipt()
        self._append(receipt, batch_queue, body, extras)
        return receipt if self._hooks is None else self._record_sent(receipt)

    def _record_sent(self, receipt: Receipt) -> Receipt:
        # Also outside spans: the properties may have a trace context.
        if self._hooks is not None:
            self._hooks.on_send(receipt)
        return receipt
