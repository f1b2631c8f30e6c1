"""The message queue, one of the sequences of messages that a topic is split into, and limits of
lists of queues in one call."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from rockoon_core.errors import InvalidArgument
from rockoon_format.names import is_retry_topic
from rockoon_proto.v1.nameserver_pb2 import Topic
from rockoon_proto.v1.offset_pb2 import QueueRef


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts by topic, broker, queue id."""

    topic: str
    broker: str
    queue_id: int
    """Number of the queue on its broker, from 0."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"

    @property
    def is_retry(self) -> bool:
        """True if the queue belongs to a group's retry topic."""
        return is_retry_topic(self.topic)

    @classmethod
    def parse(cls, text: str) -> "MessageQueue":
        """Parse the result of `str`, like "orders@broker-a:3". Raises InvalidArgument."""
        topic, at, rest = text.partition("@")
        broker, colon, queue_id = rest.rpartition(":")
        if not (topic and at and broker and colon and queue_id.isdecimal()):
            raise InvalidArgument(reason=f"{text!r} is not of the form topic@broker:queue")
        return cls(topic, broker, int(queue_id))


def queue_from_wire(queue: QueueRef) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker, queue.queue_id)


def queue_to_wire(queue: MessageQueue) -> QueueRef:
    return QueueRef(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)


def queue_create_revisions(topic: Topic) -> dict[MessageQueue, int]:
    """Return the queues of a topic, sorted, with their create revisions (incarnations)."""
    name = topic.config.name
    revisions = {
        MessageQueue(name, block.broker, queue_id): block.create_revision
        for block in topic.blocks
        for queue_id in range(block.first_queue_id, block.first_queue_id + block.queues)
    }
    return dict(sorted(revisions.items()))


Item = TypeVar("Item")
QUEUES_PER_CALL_MAX = 4096
"""Limit of the queues in a call; brokers and offset services refuse more."""
TOPICS_PER_READ_MAX = 16_384
"""Limit of the topics in a ReadLog call; brokers refuse more."""
ACQUIRES_PER_CALL_MAX = 1024
"""Limit of the entries in an Acquire call; the offset service refuses more."""
REPORTED_FILTER_BYTES_MAX = 1024
"""Limit of a filter that a receiver reports in an Acquire call, bytes; receivers shorten longer
filters."""


def in_calls(items: Iterable[Item], items_max: int = QUEUES_PER_CALL_MAX) -> Iterator[list[Item]]:
    """Split the entries of a bulk call into lists of at most `items_max`, in order."""
    rest = iter(items)
    while some := list(islice(rest, items_max)):
        yield some
