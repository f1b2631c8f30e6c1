"""An orderly member of a group in its own process, which a test stops and kills.

python ordered_member.py NAMESERVERS GROUP TOPIC MEMBER LOG

Each call appends two lines to the log that all members share: "MEMBER begins QUEUE OFFSET" and
"MEMBER ends QUEUE OFFSET". A line is one write to a file in append mode, so the lines have the
order of the events of all members.
"""

import asyncio
import os
import sys

import rockoon
from rockoon.message import Message

HANDLING_SECONDS = 0.005


async def main(nameservers: str, group: str, topic: str, member: str, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(message: Message) -> None:
        queue = f"{message.queue.broker}/{message.queue.queue_id}"
        os.write(file, f"{member} begins {queue} {message.queue_offset}\n".encode())
        await asyncio.sleep(HANDLING_SECONDS)
        os.write(file, f"{member} ends {queue} {message.queue_offset}\n".encode())

    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.push_consumer(
            group,
            {topic: "*"},
            handle,
            orderly=True,
            member_id=member,
            consume_from="first",
            timing=rockoon.Timing(commit_seconds=0.2),
        ) as consumer,
    ):
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(15, stopping.set)
        async with asyncio.TaskGroup() as tasks:
            consuming = tasks.create_task(consumer.wait())
            await stopping.wait()
            consuming.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
