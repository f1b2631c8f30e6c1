"""Simple consumer for blocking code."""

from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rockoon.receiving.received import ReceivedMessage
from rockoon.receiving.simple_consumer import (
    MESSAGES_DEFAULT,
    VISIBLE_AFTER_SECONDS,
    WAIT_SECONDS,
    SimpleConsumer,
)

Result = TypeVar("Result")


class BlockingConnection(Protocol):
    """Runs coroutines in the thread of a connection's event loop, for blocking callers."""

    def call(self, work: Coroutine[Any, Any, Result]) -> Result: ...

    def call_close(self, work: Coroutine[Any, Any, None]) -> None: ...

    def call_soon(self, function: Callable[[], object]) -> None: ...


class BlockingSimpleConsumer:
    """A `SimpleConsumer` with blocking methods, for any thread.

    Args:
        cluster: the blocking connection.
        consumer: runs in the event loop of the connection.
    """

    def __init__(self, cluster: BlockingConnection, consumer: SimpleConsumer) -> None:
        self._cluster = cluster
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def receive(
        self,
        max_messages: int = MESSAGES_DEFAULT,
        *,
        visible_after: float = VISIBLE_AFTER_SECONDS,
        wait: float = WAIT_SECONDS,
    ) -> list[ReceivedMessage]:
        """See `SimpleConsumer.receive`."""
        return self._cluster.call(
            self._consumer.receive(max_messages, visible_after=visible_after, wait=wait)
        )

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """See `SimpleConsumer.ack`."""
        self._cluster.call(self._consumer.ack(messages))

    def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay: float = 0.0,
        reason: str | BaseException = "",
    ) -> None:
        """See `SimpleConsumer.nack`."""
        self._cluster.call(self._consumer.nack(messages, delay, reason))

    def extend(self, messages: ReceivedMessage | Iterable[ReceivedMessage], seconds: float) -> None:
        """See `SimpleConsumer.extend`."""
        self._cluster.call(self._consumer.extend(messages, seconds))

    def close(self) -> None:
        """See `SimpleConsumer.close`."""
        self._cluster.call_close(self._consumer.close())
