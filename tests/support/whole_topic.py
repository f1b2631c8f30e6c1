"""Reads a topic to its end: not until it is quiet, which on a busy machine it also is too early."""

from itertools import islice
from typing import TYPE_CHECKING

from support.waiting import DEADLINE_SECONDS

if TYPE_CHECKING:
    from rockoon.message import Message
    from rockoon.sync import Cluster


def messages_of(connection: "Cluster", topic: str) -> "list[Message]":
    """Every message of a topic that has lost none, up to its present end."""
    described = connection.call(connection.admin.describe_topic(topic))
    count = 0
    for queue in described.queues:
        assert queue.state is not None, f"{queue.queue} does not answer"
        assert queue.state.min_offset == 0
        count += queue.state.max_offset
    return list(islice(connection.consume(topic, timeout=DEADLINE_SECONDS), count))
