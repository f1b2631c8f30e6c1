"""Push consumer for blocking code; created by `rockoon.sync.Cluster.push_consumer`."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rockoon.consumer.push_consumer import PushConsumer
from rockoon.consumer.statistics import ConsumerStatistics, QueueView
from rockoon.consumer.stop_signals import thread_signals
from rockoon.receiving.blocking import BlockingConnection
from rockoon_core.message_queue import MessageQueue


class BlockingPushConsumer:
    """A `PushConsumer` with blocking methods. Handlers run in threads and may block or use the
    connection.

        with rockoon.sync.connect("127.0.0.1:9876") as cluster:
            cluster.push_consumer("billing", {"orders": "*"}, handle).run()

    Args:
        cluster: the blocking connection.
        consumer: the asyncio consumer, available as `asyncio`.
    """

    def __init__(self, cluster: BlockingConnection, consumer: PushConsumer) -> None:
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
