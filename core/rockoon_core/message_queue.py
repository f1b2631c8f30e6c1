"""The message queue: one of the sequences of messages that a topic is split into."""

from typing import NamedTuple

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
        """Parse the result of `str`, for example "orders@broker-a:3".

        Raises:
            InvalidArgument: the text is not of that form.
        """
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
    """Return the queues of a topic from a nameserver, sorted.

    Returns:
        Queue → etcd revision at which it was created: the incarnation of that queue.
    """
    name = topic.config.name
    revisions = {
        MessageQueue(name, block.broker, queue_id): block.create_revision
        for block in topic.blocks
        for queue_id in range(block.first_queue_id, block.first_queue_id + block.queues)
    }
    return dict(sorted(revisions.items()))
