"""A sender in its own process, which a test kills: prints the id of each stored half message, and
never ends the transactions.

python transaction_process.py NAMESERVERS GROUP TOPIC COUNT
"""

import asyncio
import sys

import rockoon
from rockoon import Message, Resolution


def check(message: Message) -> Resolution:
    return Resolution.UNKNOWN


async def main(nameservers: str, group: str, topic: str, count: str) -> None:
    async with (
        rockoon.connect(nameservers) as cluster,
        cluster.transactional_producer(group, check=check) as producer,
    ):
        for number in range(int(count)):
            transaction = await producer.begin(topic, b"%d" % number)
            sys.stdout.write(transaction.message_id + "\n")
            sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
