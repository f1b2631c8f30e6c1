"""Reads of a topic by the SDK."""

import asyncio

import rockoon
from rockoon.message import Message

READ_SECONDS_MAX = 60.0


async def read(cluster: rockoon.Cluster, topic: str, count: int) -> list[Message]:
    """Return the first messages of a topic, this many, in the order of their arrival here."""
    found: list[Message] = []
    async with cluster.pull_consumer(consume_from="first") as consumer:
        await consumer.assign((await cluster.route(topic)).queues)
        async with asyncio.timeout(READ_SECONDS_MAX):
            while len(found) < count:
                found += await consumer.poll()
    return found
