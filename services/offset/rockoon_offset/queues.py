"""Queue keys of this package."""

from typing import NamedTuple

from rockoon_format.names import is_retry_topic


class Queue(NamedTuple):
    """A message queue of the cluster. Sorts by topic, broker name, queue id."""

    topic: str
    broker: str
    # From 0 on each broker.
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    @property
    def is_retry(self) -> bool:
        return is_retry_topic(self.topic)
