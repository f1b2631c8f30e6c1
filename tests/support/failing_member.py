"""A process that is a member of a group and fails on every message; tests kill it.

    python failing_member.py NAMESERVERS GROUP TOPIC

It commits nothing before it is closed, and prints a line when a message was sent back.
"""

import asyncio
import sys

import rockoon

LOOK_SECONDS = 0.01


async def main(nameservers: str, group: str, topic: str) -> None:
    async def fail(message: rockoon.Message) -> None:
        raise RuntimeError(f"no use for {message.body!r}")

    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.push_consumer(
            group,
            {topic: "*"},
            fail,
            consume_from="first",
            timing=rockoon.Timing(commit_seconds=3600),
        ) as consumer,
    ):
        while not consumer.statistics.retries.sent_back:
            await asyncio.sleep(LOOK_SECONDS)
        print("sent back", flush=True)
        await consumer.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
