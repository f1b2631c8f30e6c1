"""A member of a group in its own process, which a test kills: prints each body after handling it.

python member_process.py NAMESERVERS GROUP TOPIC [clustering|broadcasting]
"""

import asyncio
import sys

import rockoon
from rockoon.message import Message


async def main(nameservers: str, group: str, topic: str, mode: str = "clustering") -> None:
    async def handle(message: Message) -> None:
        sys.stdout.write(message.body.decode() + "\n")
        sys.stdout.flush()

    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.push_consumer(
            group,
            {topic: "*"},
            handle,
            mode=mode,
            consume_from="first",
            timing=rockoon.Timing(commit_seconds=0.1),
        ) as consumer,
    ):
        await consumer.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
