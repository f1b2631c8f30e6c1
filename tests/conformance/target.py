"""What a conformance run asks of a server that speaks RocketMQ's gRPC protocol."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Guard:
    """The access key that a server with a guard wants.

    Attributes:
        access_key: name of a key that may do everything.
        secret_key: what it signs with.
    """

    access_key: str
    secret_key: str


class Target(abc.ABC):
    """A server with an empty store, on this machine's loopback address.

    Attributes:
        name: heads its columns.
        endpoint: host:port for clients; accepts connections with TLS and without.
        authority: PEM file of the authority that signs the server's certificate.
        tls: whether clients use TLS unless a scenario says otherwise.
        guard: only signed calls are answered; None: everybody's are.
    """

    name: str
    endpoint: str
    authority: Path
    tls: bool = False
    guard: Guard | None = None

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
        """Make a topic of four queues: NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY."""

    @abc.abstractmethod
    def make_group(
        self, group: str, *, fifo: bool, retries_max: int | None, lite_parent: str = ""
    ) -> None:
        """Make a consumer group that reads from the beginning.

        Args:
            fifo: whether messages are handed out in order.
            lite_parent: the topic whose lite topics it reads; empty for other topics.
            retries_max: deliveries after the first, before it is dead; None: the default.
        """

    @abc.abstractmethod
    def guarded(self) -> "Target":
        """Another server of the same kind with a guard; it ends with this one."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Stop in order what clients speak to, and start it again at the same address."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill the server if calls to it can wait without a timeout; from any thread."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it; again, if that was interrupted."""
