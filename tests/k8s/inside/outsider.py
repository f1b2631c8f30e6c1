"""The SDK outside of the cluster: sends to every queue of a topic, and reads all messages back.

Usage: outsider.py NAMESERVERS TOPIC COUNT.
"""

import asyncio
import sys

import rockoon

SECONDS_MAX = 60.0


async def main() -> None:
    nameservers, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    bodies = {f"outside {number}".encode() for number in range(count)}
    received: set[bytes] = set()
    complete = asyncio.Event()

    async def on_message(message: rockoon.Message) -> None:
        received.add(bytes(message.body))
        if bodies <= received:
            complete.set()

    async with asyncio.timeout(SECONDS_MAX), rockoon.connect(nameservers) as cluster:
        await cluster.admin.create_topic(topic, queues_per_broker=2)
        async with (
            cluster.push_consumer(f"group-{topic}", {topic: "*"}, on_message, consume_from="first"),
            cluster.producer() as producer,
        ):
            for body in bodies:
                await producer.send(topic, body)
            await complete.wait()


if __name__ == "__main__":
    asyncio.run(main())
