"""Push and simple consumers for blocking code; created by `rockoon.sync.Cluster`."""

import asyncio
from collections.abc import Iterable, Mapping
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
    """A `SimpleConsumer` with blocking methods, for any thread. `consumer`: runs in the event loop
    of the connection."""

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
        """Receive messages; see `SimpleConsumer.receive`."""
        return self._cluster.call(
            self._consumer.receive(max_messages, visible_after=visible_after, wait=wait)
        )

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages; see `SimpleConsumer.ack`."""
        self._cluster.call(self._consumer.ack(messages))

    def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay: float = 0.0,
        reason: str | BaseException = "",
    ) -> None:
        """Reject messages; see `SimpleConsumer.nack`."""
        self._cluster.call(self._consumer.nack(messages, delay, reason))

    def extend(self, messages: ReceivedMessage | Iterable[ReceivedMessage], seconds: float) -> None:
        """Extend the invisible time of messages; see `SimpleConsumer.extend`."""
        self._cluster.call(self._consumer.extend(messages, seconds))

    def close(self) -> None:
        """End waiting calls of `receive`; see `SimpleConsumer.close`."""
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

    def __exit__(self, *failure: Any) -> None:
        self._cluster.call_close(self.asyncio.__aexit__(*failure))

    def start(self) -> None:
        """Join the group and start to consume; see `PushConsumer.start`."""
        self._cluster.call(self.asyncio.start())

    def run(self) -> None:
        """Consume until a signal or a failure; see `PushConsumer.run`. Signals end the call only if
        the main thread made it."""
        stop = asyncio.Event()
        with thread_signals(lambda: self._cluster.call_soon(stop.set)):
            self._cluster.call(self.asyncio.run_until(stop))

    def wait(self) -> None:
        """Wait until the consumer is closed; see `PushConsumer.wait`."""
        self._cluster.call(self.asyncio.wait())

    def commit(self) -> None:
        """Store the progress of all queues now; see `PushConsumer.commit`."""
        self._cluster.call(self.asyncio.commit())

    def close(self) -> None:
        """Stop consuming and leave the group; see `PushConsumer.close`."""
        self._cluster.call_close(self.asyncio.close())

    @property
    def assignment(self) -> list[MessageQueue]:
        """Queues that this member owns; see `PushConsumer.assignment`."""
        return self._cluster.call(self._read(lambda: self.asyncio.assignment))

    def queues(self) -> Mapping[MessageQueue, QueueView]:
        """Return the state of each queue of this member; see `PushConsumer.queues`."""
        return self._cluster.call(self._read(self.asyncio.queues))

    @property
    def members(self) -> list[str]:
        """Ids of the group's members; see `PushConsumer.members`."""
        return self._cluster.call(self._read(lambda: self.asyncio.members))

    @property
    def is_paused(self) -> bool:
        """True if the group is paused; see `PushConsumer.is_paused`."""
        return self.asyncio.is_paused

    @property
    def statistics(self) -> ConsumerStatistics:
        """Counters of the consumer; see `PushConsumer.statistics`. They continue to change."""
        return self.asyncio.statistics

    @staticmethod
    async def _read(read: Any) -> Any:
        """Read in the thread of the event loop, which changes the dictionaries."""
        return read()
