"""Client program for `make compare` on aiokafka (Kafka)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.compare.clients.protocol import (
    LIST_MESSAGES,
    LOOK_MESSAGES,
    Client,
    Note,
    Work,
    consume,
    main,
)

# The same as in Rockoon's producer.
BATCH_BYTES = 512 << 10
LINGER_MS = 5
NO_PUSH = "Kafka's consumers are polled"
NO_CONNECTIONS = "each of its producers has several connections"


class AioKafkaClient(Client):
    missing: Mapping[str, str] = {
        "consume_columns": "it hands out objects",
        "push_each": NO_PUSH,
        "push_lists": NO_PUSH,
        "connections": NO_CONNECTIONS,
    }

    async def connect(self, address: str) -> None:
        self._address = address
        self._queues: dict[str, int] = {}
        self._bulk = AIOKafkaProducer(
            bootstrap_servers=address,
            acks="all",
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
        )
        self._single = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=0)
        await self._bulk.start()
        await self._single.start()

    async def make_topics(self, queues: Mapping[str, int]) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, count, 1) for name, count in queues.items()])
        finally:
            await admin.close()
        self._queues.update(queues)

    async def close(self) -> None:
        await self._bulk.stop()
        await self._single.stop()

    async def send(self, topic: str, body: bytes) -> None:
        await self._single.send_and_wait(topic, body)

    async def produce_each(self, topic: str, body: bytes, seconds: float) -> Work:
        send, sent = self._bulk.send, 0
        began = perf_counter()
        while perf_counter() - began < seconds:
            for _ in range(LOOK_MESSAGES):
                await send(topic, body)
            sent += LOOK_MESSAGES
        await self._bulk.flush()
        return Work(sent, perf_counter() - began)

    async def produce_lists(self, topic: str, body: bytes, seconds: float) -> Work:
        producer, sent, turn = self._bulk, 0, 0
        waiting: set[Any] = set()
        began = perf_counter()
        while perf_counter() - began < seconds:
            batch = producer.create_batch()
            for _ in range(LIST_MESSAGES):
                if batch.append(key=None, value=body, timestamp=None) is None:
                    break
            sent += batch.record_count()
            batch.close()
            turn += 1
            partition = turn % self._queues[topic]
            waiting.add(await producer.send_batch(batch, topic, partition=partition))
            if len(waiting) > self._queues[topic]:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await producer.flush()
        return Work(sent, perf_counter() - began)

    async def consume_lists(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(consumer: Any) -> int:
            count = 0
            found = await consumer.getmany(timeout_ms=1000, max_records=LIST_MESSAGES)
            for messages in found.values():
                for message in messages:
                    assert message.value
                count += len(messages)
            return count

        return await self._consume(topic, stored, seconds, poll)

    async def consume_each(self, topic: str, stored: int, seconds: float) -> Work:
        async def poll(consumer: Any) -> int:
            for _ in range(LOOK_MESSAGES):
                message = await consumer.getone()
                assert message.value
            return LOOK_MESSAGES

        return await self._consume(topic, stored // LOOK_MESSAGES * LOOK_MESSAGES, seconds, poll)

    async def _consume(
        self, topic: str, stored: int, seconds: float, poll: Callable[[Any], Awaitable[int]]
    ) -> Work:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, at) for at in range(self._queues[topic])])
            return await consume(
                stored, seconds, consumer.seek_to_beginning, lambda _: poll(consumer)
            )
        finally:
            await consumer.stop()

    @asynccontextmanager
    async def listening(self, topic: str, note: Note) -> AsyncIterator[None]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=self._address,
            group_id=f"listen-{uuid4().hex}",
            auto_offset_reset="earliest",
        )
        await consumer.start()

        async def listen() -> None:
            async for message in consumer:
                note(message.value)

        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(listen())
                yield
                task.cancel()
        finally:
            await consumer.stop()


if __name__ == "__main__":
    main(AioKafkaClient)
