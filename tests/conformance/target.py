"""Base of the servers of RocketMQ's gRPC protocol that a conformance run uses."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Guard:
    """The access key for a server that requires signatures.

    Attributes:
        access_key: name of a key with all permissions.
        secret_key: its secret.
    """

    access_key: str
    secret_key: str


class Target(abc.ABC):
    """A server with an empty store, on this machine's loopback address.

    Attributes:
        name: title of its columns.
        endpoint: host:port for clients; accepts connections with TLS and without.
        authority: PEM file of the authority that signs the server's certificate.
        tls: whether clients use TLS unless a scenario says otherwise.
        guard: only signed calls are answered; None: all calls are answered.
    """

    name: str
    endpoint: str
    authority: Path
    tls: bool = False
    guard: Guard | None = None

    @abc.abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the server's programs, by name."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the server.

        Raises:
            NotHere: this machine cannot run it.
        """

    @abc.abstractmethod
    def make_topic(self, topic: str, message_type: str) -> None:
        """Create a topic of four queues: NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY."""

    @abc.abstractmethod
    def make_group(
        self, group: str, *, fifo: bool, retries_max: int | None, lite_parent: str = ""
    ) -> None:
        """Create a consumer group that reads from the beginning.

        Args:
            fifo: messages are delivered in order.
            lite_parent: the topic of the lite topics that it reads; empty for other topics.
            retries_max: deliveries after the first, before the message is dead; None: the default.
        """

    @abc.abstractmethod
    def guarded(self) -> "Target":
        """Start another server of the same kind that requires signatures; it ends with this one."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Stop the processes that clients connect to in order, and start them again at the same
        address."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill the server if calls to it can wait without a timeout; from any thread."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the server; can be called again if it was interrupted."""
