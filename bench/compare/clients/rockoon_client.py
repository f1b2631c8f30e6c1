"""Client program for `make compare` on Rockoon's SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import repeat
from time import perf_counter
from typing import Any
from uuid import uuid4

import rockoon
from bench.compare.clients.protocol import (
    HANDLED_LIST_MESSAGES,
    LIST_MESSAGES,
    LOOK_MESSAGES,
    Arrivals,
    Client,
    Note,
    Work,
    consume,
    main,
)


class RockoonClient(Client):
    def __init__(self) -> None:
        self._open = AsyncExitStack()

    async def connect(self, address: str) -> None:
        self._cluster = await self._open.enter_async_context(rockoon.connect(address))
        self._producer = self._cluster.producer()

    async def make_topics(self, queues: Mapping[str, int]) -> None:
        for name, count in queues.items():
            made = await self._cluster.admin.create_topic(name, queues_per_broker=count)
            await self._cluster.route(name, min_revision=made.modified_revision)

    async def close(self) -> None:
        await self._open.aclose()

    async def send(self, topic: str, body: bytes) -> None:
        await self._producer.send(topic, body)

    async def produce_each(self, topic: str, body: bytes, seconds: float) -> Work:
        producer, send, sent = self._producer, self._producer.send, 0
        began = perf_counter()
        while perf_counter() - began < seconds:
            for _ in range(LOOK_MESSAGES):
                send(topic, body)
            sent += LOOK_MESSAGES
            await producer.wait_capacity()
        await producer.flush()
        return Work(sent, perf_counter() - began)

    async def produce_lists(self, topic: str, body: bytes, seconds: float) -> Work:
        began = perf_counter()

        def bodies() -> Iterator[bytes]:
            while perf_counter() - began < seconds:
                yield from repeat(body, LIST_MESSAGES)

        results = await self._producer.send_many(topic, bodies())
        return Work(len(results), perf_counter() - began)

    async def consume_columns(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(consumer: Any) -> int:
            batch = await consumer.poll_batch(timeout=1.0)
            if batch is None:
                return 0
            assert len(batch.bodies) == len(batch.offsets)
            return len(batch)

        return await self._consume(topic, stored, seconds, poll)

    async def consume_lists(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(consumer: Any) -> int:
            messages = await consumer.poll(max_messages=LIST_MESSAGES, timeout=1.0)
            for message in messages:
                assert message.body
            return len(messages)

        return await self._consume(topic, stored, seconds, poll)

    async def consume_each(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(consumer: Any) -> int:
            count = 0
            async for message in consumer:
                assert message.body
                count += 1
                if count == LOOK_MESSAGES:
                    break
            return count

        return await self._consume(topic, stored // LOOK_MESSAGES * LOOK_MESSAGES, seconds, poll)

    async def _consume(
        self, topic: str, stored: int, seconds: float, poll: Callable[[Any], Awaitable[int]]
    ) -> Work:
        async with self._cluster.pull_consumer() as consumer:
            await consumer.assign_all(topic)
            return await consume(
                stored, seconds, consumer.seek_to_beginning, lambda _: poll(consumer)
            )

    async def push_each(self, topic: str, stored: int, seconds: float) -> Work:
        arrivals = Arrivals(stored, seconds)

        async def one(message: rockoon.Message) -> None:
            assert message.body
            arrivals.add(1)

        return await self._push(topic, one, arrivals)

    async def push_lists(self, topic: str, stored: int, seconds: float) -> Work:
        arrivals = Arrivals(stored, seconds)

        async def many(messages: list[rockoon.Message]) -> None:
            for message in messages:
                assert message.body
            arrivals.add(len(messages))

        return await self._push(topic, many, arrivals, batch_max=HANDLED_LIST_MESSAGES)

    async def _push(self, topic: str, handler: Any, arrivals: Arrivals, **more: Any) -> Work:
        group = f"push-{uuid4().hex}"
        async with self._cluster.push_consumer(
            group, {topic: "*"}, handler, consume_from="first", **more
        ):
            return await arrivals.wait()

    @asynccontextmanager
    async def listening(self, topic: str, note: Note) -> AsyncIterator[None]:
        async def handle(message: rockoon.Message) -> None:
            note(message.body)

        group = f"listen-{uuid4().hex}"
        async with self._cluster.push_consumer(group, {topic: "*"}, handle, consume_from="first"):
            yield


if __name__ == "__main__":
    main(RockoonClient)
