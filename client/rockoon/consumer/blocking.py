"""Push and simple consumers for blocking code; created by `rockoon.sync.Cluster`."""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.statistics import ConsumerStatistics, QueueView
from rockoon.consumer.stop_signals import thread_signals
from rockoon.net.blocking import BlockingConnection
from rockoon.receiving.received import ReceivedMessage
from rockoon.receiving.simple_consumer import (
    MESSAGES_DEFAULT,
    VISIBLE_AFTER_SECONDS,
    WAIT_SECONDS,
    SimpleConsumer,
)
from rockoon_core.message_queue import MessageQueue


class BlockingSimpleConsumer:
    """A `SimpleConsumer` with blocking methods, for any thread.

    Args:
        consumer: runs in the event loop of the connection.
    """

    def __init__(self, cluster: BlockingConnection[Any], consumer: SimpleConsumer) -> None:
        self._cluster = cluster
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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


class BlockingPushConsumer:
    """A `PushConsumer` with blocking methods. Handlers run in threads and may block or use the
    connection.

        with rockoon.sync.connect("127.0.0.1:9876") as cluster:
            cluster.push_consumer("billing", {"orders": "*"}, handle).run()

    Args:
        consumer: the asyncio consumer, available as `asyncio`.
    """

    def __init__(self, cluster: BlockingConnection[Any], consumer: PushConsumer) -> None:
        self._cluster = cluster
        self.asyncio = consumer

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.call_close(self.asyncio.__aexit__(kind, failure, trace))

    def start(self) -> None:
        """See `PushConsumer.start`."""
        self._cluster.call(self.asyncio.start())

    def run(self) -> None:
        """See `PushConsumer.run`. Signals end it if the main thread calls it."""
        stop = asyncio.Event()
        with thread_signals(lambda: self._cluster.call_soon(stop.set)):
            self._cluster.call(self.asyncio.run_until(stop))

    def wait(self) -> None:
        """See `PushConsumer.wait`."""
        self._cluster.call(self.asyncio.wait())

    def commit(self) -> None:
        """See `PushConsumer.commit`."""
        self._cluster.call(self.asyncio.commit())

    def close(self) -> None:
        """See `PushConsumer.close`."""
        self._cluster.call_close(self.asyncio.close())

    @property
    def assignment(self) -> list[MessageQueue]:
        """See `PushConsumer.assignment`."""
        return self._cluster.call(self._read(lambda: self.asyncio.assignment))

    def queues(self) -> Mapping[MessageQueue, QueueView]:
        """See `PushConsumer.queues`."""
        return self._cluster.call(self._read(self.asyncio.queues))

    @property
    def members(self) -> list[str]:
        """See `PushConsumer.members`."""
        return self._cluster.call(self._read(lambda: self.asyncio.members))

    @property
    def is_paused(self) -> bool:
        """See `PushConsumer.is_paused`."""
        return self.asyncio.is_paused

    @property
    def statistics(self) -> ConsumerStatistics:
        """See `PushConsumer.statistics`. The counters continue to change."""
        return self.asyncio.statistics

    @staticmethod
    async def _read(read: Any) -> Any:
        """Read in the thread of the event loop, which changes the dictionaries."""
        return read()
