"""What a conformance run asks of a server that speaks RocketMQ's gRPC protocol."""

import abc
from collections.abc import Mapping


class Target(abc.ABC):
    """A server with an empty store, on this machine's loopback address.

    Attributes:
        name: heads its columns.
        endpoint: host:port that clients are told.
    """

    name: str
    endpoint: str

    @abc.abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Versions by name, of what answers."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it.

        Raises:
            NotHere: this machine cannot run it.
        """

    @abc.abstractmethod
    def make_topic(self, topic: str, message_type: str) -> None:
        """Make a topic of four queues: NORMAL, FIFO, DELAY or TRANSACTION."""

    @abc.abstractmethod
    def make_group(self, group: str, *, fifo: bool, retries_max: int | None) -> None:
        """Make a consumer group that reads from the beginning.

        Args:
            fifo: whether messages are handed out in order.
            retries_max: deliveries after the first, before it is dead; None: the default.
        """

    @abc.abstractmethod
    def restart(self) -> None:
        """Stop in order what clients speak to, and start it again at the same address."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it; again, if that was interrupted."""
