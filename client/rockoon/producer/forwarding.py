"""Forwarding: sending messages that somebody else has made, with the properties they came with.

For gateways, whose clients give their messages ids of their own: an id that a gateway made would be
none that its client can look for. What a message bears is not looked at here.
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
    """A producer that takes messages by `forward`, and by nothing else.

    Args:
        cluster, settings: as of `Producer`.
    """

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
        """Take a message for sending; its id is what its UNIQ_KEY says, not the result's.

        Args:
            topic: where to.
            body: at most 4 MiB.
            properties: all of them, encoded, UNIQ_KEY among them, TAGS first.
            ordering_key, queue: as of `Producer.send`.
            delayed: they hold a delay.

        Raises:
            InvalidTopicName, BodyTooLarge, PropertiesTooLarge, KeyMissing: it cannot be sent.
            QueueNotFound: the topic has no such queue.
            BufferFull, Closed: too much is buffered that nobody awaits; the producer is closed.
        """
        if len(body) > BODY_BYTES_MAX:
            raise body_too_large(len(body))
        if topic in self._compacted and _KEYS_MARK not in properties:
            check_keys(topic, None)
        extras = (properties, b"")
        check_extras(extras, PROPERTY_CRC_BYTES)
        if self._accumulator.unclaimed_bytes > self._buffer_bytes_max:
            raise BufferFull(limit=self._buffer_bytes_max)
        batch_queue = self._router.batch_queue(topic, queue, ordering_key)
        if batch_queue is None:
            return self._hold(topic, body, extras, ordering_key, delayed=delayed)
        if delayed:
            batch_queue = self._accumulator.delayed_batch_queue(topic, batch_queue.queue)
        receipt = Receipt()
        self._append(receipt, batch_queue, body, extras)
        return receipt
