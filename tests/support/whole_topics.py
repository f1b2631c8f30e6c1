"""All messages of a topic without producers."""

from itertools import islice

from rockoon.message import Message
from rockoon.sync import Cluster


def every_message(connection: Cluster, topic: str) -> list[Message]:
    """Read as many messages as the topic has. To read until no message arrives would end too early
    on a machine that stalls."""
    ends = connection.call(connection.admin.describe_topic(topic)).queues
    states = [each.state for each in ends]
    count = sum(state.max_offset - state.min_offset for state in states if state is not None)
    return list(islice(connection.consume(topic), count))
