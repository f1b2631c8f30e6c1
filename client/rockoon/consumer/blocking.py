"""A push consumer for blocking code: `rockoon.sync.Cluster.push_consumer` makes it."""

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
    """A `PushConsumer` whose calls block until they are done. Handlers run in threads: they may
    block, and may use the connection.

        with rockoon.sync.connect("127.0.0.1:9876") as cluster:
            cluster.push_consumer("billing", {"orders": "*"}, handle).run()

    Args:
        cluster: the blocking connection.
        consumer: the asyncio consumer that it drives, available as `asyncio`.
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
        """As `PushConsumer.start`."""
        self._cluster.call(self.asyncio.start())

    def run(self) -> None:
        """As `PushConsumer.run`. Signals end it if the main thread calls it."""
        stop = asyncio.Event()
        with thread_signals(lambda: self._cluster.call_soon(stop.set)):
            self._cluster.call(self.asyncio.run_until(stop))

    def wait(self) -> None:
        """As `PushConsumer.wait`."""
        self._cluster.call(self.asyncio.wait())

    def commit(self) -> None:
        """As `PushConsumer.commit`."""
        self._cluster.call(self.asyncio.commit())

    def close(self) -> None:
        """As `PushConsumer.close`."""
        self._cluster.call_close(self.asyncio.close())

    @property
    def assignment(self) -> list[MessageQueue]:
        """As `PushConsumer.assignment`."""
        return self._cluster.call(self._read(lambda: self.asyncio.assignment))

    def queues(self) -> Mapping[MessageQueue, QueueView]:
        """As `PushConsumer.queues`."""
        return self._cluster.call(self._read(self.asyncio.queues))

    @property
    def members(self) -> list[str]:
        """As `PushConsumer.members`."""
        return self._cluster.call(self._read(lambda: self.asyncio.members))

    @property
    def is_paused(self) -> bool:
        """As `PushConsumer.is_paused`."""
        return self.asyncio.is_paused

    @property
    def statistics(self) -> ConsumerStatistics:
        """As `PushConsumer.statistics`: counters that go on changing."""
        return self.asyncio.statistics

    @staticmethod
    async def _read(read: Any) -> Any:
        """Read in the loop's thread, which alone changes the dictionaries."""
        return read()
