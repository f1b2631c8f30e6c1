"""Client program for `make compare` on confluent-kafka (librdkafka).

The library has no event loop: a polling thread completes the futures of awaited sends.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.compare.clients.protocol import (
    ARRIVAL_SECONDS_MAX,
    LIST_MESSAGES,
    LOOK_MESSAGES,
    Client,
    Note,
    Work,
    main,
)

# As Rockoon's producer has them.
BATCH_BYTES = 512 << 10
LINGER_MS = 5
NO_PUSH = "Kafka's consumers are polled"
NO_CONNECTIONS = "each of its producers has several connections"
POLL_SECONDS = 0.1


class ConfluentClient(Client):
    missing: Mapping[str, str] = {
        "consume_columns": "it hands out objects",
        "push_each": NO_PUSH,
        "push_lists": NO_PUSH,
        "connections": NO_CONNECTIONS,
    }

    async def connect(self, address: str) -> None:
        self._servers = {"bootstrap.servers": address}
        self._queues: dict[str, int] = {}
        settings = {**self._servers, "acks": "all"}
        self._bulk = Producer({**settings, "batch.size": BATCH_BYTES, "linger.ms": LINGER_MS})
        self._single = Producer({**settings, "linger.ms": 0})
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll)
        self._poller.start()

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._single.poll(POLL_SECONDS)

    async def make_topics(self, queues: Mapping[str, int]) -> None:
        admin = AdminClient(self._servers)
        made = admin.create_topics([NewTopic(name, count, 1) for name, count in queues.items()])
        for future in made.values():
            await asyncio.to_thread(future.result)
        self._queues.update(queues)

    async def close(self) -> None:
        self._closing.set()
        self._poller.join()

    async def send(self, topic: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()

        def settle(error: Any) -> None:
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(RuntimeError(str(error)))

        def delivered(error: Any, _message: Any) -> None:
            loop.call_soon_threadsafe(settle, error)

        self._single.produce(topic, body, on_delivery=delivered)
        await stored

    async def produce_each(self, topic: str, body: bytes, seconds: float) -> Work:
        producer, produce = self._bulk, self._bulk.produce

        def each() -> int:
            for count in range(LOOK_MESSAGES):
                try:
                    produce(topic, body)
                except BufferError:
                    producer.poll(POLL_SECONDS)
                    return count
            return LOOK_MESSAGES

        return await asyncio.to_thread(self._produce, each, seconds)

    async def produce_lists(self, topic: str, body: bytes, seconds: float) -> Work:
        producer = self._bulk

        def many() -> int:
            messages: list[dict[str, Any]] = [{"value": body} for _ in range(LIST_MESSAGES)]
            try:
                count: int = producer.produce_batch(topic, messages)
            except BufferError:
                count = 0
            if count < LIST_MESSAGES:
                producer.poll(POLL_SECONDS)
            return count

        return await asyncio.to_thread(self._produce, many, seconds)

    def _produce(self, some: Callable[[], int], seconds: float) -> Work:
        sent = 0
        began = perf_counter()
        while perf_counter() - began < seconds:
            sent += some()
            self._bulk.poll(0)
        left = self._bulk.flush(ARRIVAL_SECONDS_MAX)
        assert not left, f"{left} messages are not answered"
        return Work(sent, perf_counter() - began)

    async def consume_lists(self, topic: str, stored: int, seconds: float) -> Work:
        def poll(consumer: Any) -> int:
            messages = consumer.consume(LIST_MESSAGES, 1.0)
            for message in messages:
                assert message.value()
            return len(messages)

        return await asyncio.to_thread(self._consume, topic, stored, seconds, poll)

    async def consume_each(self, topic: str, stored: int, seconds: float) -> Work:
        def poll(consumer: Any) -> int:
            for _ in range(LOOK_MESSAGES):
                message = consumer.poll(5.0)
                assert message.value()
            return LOOK_MESSAGES

        stored = stored // LOOK_MESSAGES * LOOK_MESSAGES
        return await asyncio.to_thread(self._consume, topic, stored, seconds, poll)

    def _consume(self, topic: str, stored: int, seconds: float, poll: Callable[[Any], int]) -> Work:
        consumer = Consumer(
            {**self._servers, "group.id": f"read-{uuid4().hex}", "enable.auto.commit": False}
        )
        queues = range(self._queues[topic])
        messages = left = 0
        began = perf_counter()
        while perf_counter() - began < seconds:
            if left <= 0:
                consumer.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in queues])
                left = stored
            count = poll(consumer)
            messages += count
            left -= count
        elapsed = perf_counter() - began
        consumer.close()
        return Work(messages, elapsed)

    @asynccontextmanager
    async def listening(self, topic: str, note: Note) -> AsyncIterator[None]:
        settings = {"group.id": f"listen-{uuid4().hex}", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self._servers, **settings})
        consumer.subscribe([topic])
        ended = threading.Event()

        def listen() -> None:
            while not ended.is_set():
                message = consumer.poll(POLL_SECONDS)
                if message is not None and message.error() is None:
                    note(message.value())
            consumer.close()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            await asyncio.to_thread(thread.join)


if __name__ == "__main__":
    main(ConfluentClient)
