"""A cluster in this process, in memory, for tests of clients: nameserver, brokers, offset service,
each on its own port; each can be stopped and restarted.

The services reply as the protocol requires, make no decision that a test could not see, and record
their requests. If a test depends on details of the real services, it belongs to those.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rockoon_proto.v1 import nameserver_pb2 as route_wire
from support.fakes.broker import FakeBroker, FakeQueue
from support.fakes.listener import Listener
from support.fakes.nameserver import FakeNameserver
from support.fakes.offset_service import FakeOffsetService


class FakeCluster:
    """One nameserver, some brokers, one offset service."""

    def __init__(self, brokers: Sequence[str] = ("broker-a",)) -> None:
        self.nameserver = FakeNameserver(self)
        self.brokers = {name: FakeBroker(name) for name in brokers}
        self.offset = FakeOffsetService(self)
        self._exit = AsyncExitStack()

    @property
    def address(self) -> str:
        return self.nameserver.listener.address

    async def __aenter__(self) -> Self:
        await self._start(self.nameserver.listener)
        for broker in self.brokers.values():
            await self._start(broker.listener)
            self.nameserver.put_node(route_wire.BROKER, broker.name, broker.listener.address)
        await self._start(self.offset.listener)
        self.nameserver.put_node(route_wire.OFFSET_SERVICE, "offset", self.offset.listener.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exit.aclose()

    async def _start(self, listener: Listener) -> None:
        await listener.start()
        self._exit.push_async_callback(listener.stop)

    async def add_broker(self, name: str) -> FakeBroker:
        broker = self.brokers[name] = FakeBroker(name)
        await self._start(broker.listener)
        self.nameserver.put_node(route_wire.BROKER, name, broker.listener.address)
        return broker

    def create_topic(self, topic: str, queues: int = 1, brokers: Sequence[str] = ()) -> None:
        revision = self.nameserver.changed()
        self.nameserver.topics[topic] = route_wire.Topic(
            config=route_wire.TopicConfig(name=topic, permissions=6), incarnation=revision
        )
        for broker in brokers or self.brokers:
            self.add_queues(topic, broker, queues)

    def add_queues(self, topic: str, broker: str, queues: int) -> None:
        route = self.nameserver.topics[topic]
        first = sum(block.queues for block in route.blocks if block.broker == broker)
        for number in range(first, first + queues):
            self.brokers[broker].queues[topic, number] = FakeQueue()
        route.blocks.add(
            broker=broker,
            first_queue_id=first,
            queues=queues,
            create_revision=self.nameserver.changed(),
        )

    def delete_topic(self, topic: str) -> None:
        del self.nameserver.topics[topic]
        for broker in self.brokers.values():
            for key in [key for key in broker.queues if key[0] == topic]:
                del broker.queues[key]
            # A waiting pull gets a reply.
            broker.appended.notify()
        for group in [group for group, name in self.nameserver.subscriptions if name == topic]:
            del self.nameserver.subscriptions[group, topic]
        for key in [key for key in self.offset.progress if key[1][0] == topic]:
            del self.offset.progress[key]
        self.nameserver.changed()

    def delete_group(self, group: str) -> None:
        del self.nameserver.groups[group]
        self.nameserver.changed()
        self.offset.changed()

    def append(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        broker: str = "broker-a",
        queue_id: int = 0,
        tags: Sequence[str] = (),
    ) -> None:
        """Store messages as a producer does."""
        chosen = self.brokers[broker]
        queue = chosen.queues[topic, queue_id]
        for index, body in enumerate(bodies):
            queue.append(topic, queue_id, body, tags[index] if tags else "")
        chosen.appended.notify()
