"""Division of a task's rows into batches that a repeated task forms again, by the rows alone.

Rows are collected into segments. The messages of a segment that go to one queue are one batch, for
`Producer.send_once`. No clock, reply or boundary of Spark's Arrow batches has an effect. Two
attempts with the same rows in the same order therefore send the same batches, and a broker that
remembers a batch does not append it again. A batch with other rows is another batch: it is
appended, never mistaken for the earlier one.

A row with a `key` goes to the queue that the SDK's producers choose for this ordering key. The rows
of a segment without a key go to one queue of their topic, chosen by the segment's scope: a queue
that is added or removed changes the choice of few segments.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.producer.once import OnceMessage
from rockoon.producer.queue_selectors import crc32_key_hash
from rockoon_core.message_queue import MessageQueue

# Below the limits of `send_once`, with room for a message that is larger than estimated.
QUEUE_BYTES_MAX = 4 << 20
QUEUE_MESSAGES_MAX = 1 << 14
SEGMENT_BYTES_MAX = 32 << 20

_MESSAGE_BYTES = 160


class TopicQueues(NamedTuple):
    """Queues of a topic, in the order of its route."""

    for_keys: Sequence[MessageQueue]
    """Queues for rows with a key: its hash selects the queue."""
    accepting: Sequence[MessageQueue]
    """Queues for rows without a key."""


class Segment(NamedTuple):
    """Rows of a task, as one batch per queue."""

    scope: bytes
    """Distinguishes the segment from all segments of all tasks and writes."""
    batches: Mapping[MessageQueue, list[OnceMessage]]


class RowDivider:
    """Collects rows into segments.

    Args:
        scope: identity of the task: of its write or of its stream's batch, and its partition.
        topic: topic of every row; empty if rows have a column `topic`.
        queues: the queues of each topic; the caller adds a topic before its first row.
    """

    def __init__(self, scope: str, topic: str, queues: Mapping[str, TopicQueues]) -> None:
        self._scope = scope
        self._topic = topic
        self._queues = queues
        self._segments = 0
        self._start_segment()

    def _start_segment(self) -> None:
        self._batches: dict[MessageQueue, list[OnceMessage]] = {}
        self._bytes: dict[MessageQueue, int] = {}
        self._total = 0
        # The queue of the segment's rows without a key, by topic.
        self._keyless: dict[str, MessageQueue] = {}

    def add(self, row: Mapping[str, Any]) -> Segment | None:
        """Add a row; return the segment that it does not fit into, if there is one.

        Raises:
            InvalidArgument: the row has no body or no topic.
        """
        message = message_of(row)
        topic, key = topic_of(row, self._topic), row.get("key")
        size = _size(row, message)
        queue = self._queue(topic, key)
        complete = None
        if self._batches and (
            self._total + size > SEGMENT_BYTES_MAX
            or self._bytes.get(queue, 0) + size > QUEUE_BYTES_MAX
            or len(self._batches.get(queue, ())) >= QUEUE_MESSAGES_MAX
        ):
            complete = self.rest()
            queue = self._queue(topic, key)
        self._batches.setdefault(queue, []).append(message)
        self._bytes[queue] = self._bytes.get(queue, 0) + size
        self._total += size
        return complete

    def rest(self) -> Segment:
        """Return the rows since the last segment as one segment; the next row begins a new one."""
        segment = Segment(self._segment_scope(), self._batches)
        self._segments += 1
        self._start_segment()
        return segment

    def _segment_scope(self) -> bytes:
        return f"{self._scope} {self._segments}".encode()

    def _queue(self, topic: str, key: str | None) -> MessageQueue:
        queues = self._queues[topic]
        if key is not None:
            return queues.for_keys[crc32_key_hash(key) % len(queues.for_keys)]
        queue = self._keyless.get(topic)
        if queue is None:
            scope = self._segment_scope()
            queue = max(queues.accepting, key=lambda each: _weight(scope, each))
            self._keyless[topic] = queue
        return queue


def message_of(row: Mapping[str, Any]) -> OnceMessage:
    """Return the message of a row; raises InvalidArgument if it has no body."""
    body = row["body"]
    if body is None:
        raise InvalidArgument(reason="a row has no body")
    return OnceMessage(
        body.encode() if isinstance(body, str) else body,
        row.get("keys"),
        row.get("tags"),
        dict(row.get("properties") or ()),
    )


def topic_of(row: Mapping[str, Any], topic: str) -> str:
    """Return the topic of a row.

    Args:
        row: of the task.
        topic: of every row; empty if rows have a column `topic`.

    Raises:
        InvalidArgument: the column has no topic.
    """
    found: str | None = topic or row["topic"]
    if not found:
        raise InvalidArgument(reason="a row has no topic")
    return found


def _weight(scope: bytes, queue: MessageQueue) -> bytes:
    # The queue with the greatest hash is chosen: another queue changes only the choices it wins.
    return hashlib.blake2b(b"%b %b" % (scope, str(queue).encode()), digest_size=8).digest()


def _size(row: Mapping[str, Any], message: OnceMessage) -> int:
    """Return the estimated size of a row's message in bytes."""
    texts: list[str | None] = [row.get("keys"), row.get("tags")]
    for each in row.get("properties") or ():
        texts += each
    # The encoded text has at most four bytes per character.
    sizes = [len(text) if text.isascii() else 4 * len(text) for text in texts if text]
    return _MESSAGE_BYTES + len(message.body) + sum(sizes)
