"""Client program for `make compare` on nats-py: one JetStream stream per topic, stored in files."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from bench.compare.clients.protocol import (
    ARRIVAL_SECONDS_MAX,
    LIST_MESSAGES,
    LOOK_MESSAGES,
    Arrivals,
    Client,
    Note,
    Work,
    consume,
    main,
)


class NatsClient(Client):
    missing: Mapping[str, str] = {
        "produce_lists": "nats-py publishes a message a call",
        "consume_columns": "it hands out objects",
        "push_lists": "nats-py calls a handler for each message",
    }

    async def connect(self, address: str) -> None:
        self._connection = await nats.connect(address)
        # A long timeout: an overloaded server answers late.
        self._stream = self._connection.jetstream(timeout=ARRIVAL_SECONDS_MAX)

    async def make_topics(self, queues: Mapping[str, int]) -> None:
        for name in queues:
            await self._stream.add_stream(name=name, subjects=[name], storage=StorageType.FILE)

    async def close(self) -> None:
        await self._connection.close()

    async def send(self, topic: str, body: bytes) -> None:
        await self._stream.publish(topic, body)

    async def produce_each(self, topic: str, body: bytes, seconds: float) -> Work:
        publish, sent = self._stream.publish_async, 0
        began = perf_counter()
        while perf_counter() - began < seconds:
            for _ in range(LOOK_MESSAGES):
                await publish(topic, body)
            sent += LOOK_MESSAGES
        await self._stream.publish_async_completed()
        return Work(sent, perf_counter() - began)

    async def consume_lists(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(subscription: Any, left: int) -> int:
            # If it is asked for more messages than are stored, it waits for more.
            messages = await subscription.fetch(min(LIST_MESSAGES, left), timeout=1.0)
            for message in messages:
                assert message.data
            return len(messages)

        async def subscribe() -> Any:
            config = ConsumerConfig(
                ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True
            )
            return await self._stream.pull_subscribe(topic, config=config)

        return await self._consume(stored, seconds, subscribe, poll)

    async def consume_each(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(subscription: Any, _left: int) -> int:
            for _ in range(LOOK_MESSAGES):
                message = await subscription.next_msg(timeout=5.0)
                assert message.data
            return LOOK_MESSAGES

        async def subscribe() -> Any:
            return await self._stream.subscribe(topic, ordered_consumer=True)

        stored = stored // LOOK_MESSAGES * LOOK_MESSAGES
        return await self._consume(stored, seconds, subscribe, poll)

    async def _consume(
        self,
        stored: int,
        seconds: float,
        subscribe: Callable[[], Awaitable[Any]],
        poll: Callable[[Any, int], Awaitable[int]],
    ) -> Work:
        opened: list[Any] = []

        async def rewind() -> None:
            while opened:
                await opened.pop().unsubscribe()
            opened.append(await subscribe())

        done = await consume(stored, seconds, rewind, lambda left: poll(opened[0], left))
        await opened[0].unsubscribe()
        return done

    async def push_each(self, topic: str, stored: int, seconds: float) -> Work:
        arrivals = Arrivals(stored, seconds)

        async def handle(message: Any) -> None:
            assert message.data
            arrivals.add(1)

        # nats-py acknowledges each message when the handler has returned.
        subscription = await self._stream.subscribe(topic, cb=handle)
        try:
            return await arrivals.wait()
        finally:
            await subscription.unsubscribe()

    @asynccontextmanager
    async def listening(self, topic: str, note: Note) -> AsyncIterator[None]:
        async def handle(message: Any) -> None:
            note(message.data)

        subscription = await self._stream.subscribe(topic, cb=handle)
        try:
            yield
        finally:
            # Time to acknowledge messages that are being handled.
            await asyncio.sleep(0.01)
            await subscription.unsubscribe()


if __name__ == "__main__":
    main(NatsClient)
