"""Some members of groups in one process: every handler call writes a line at its start and its end.

python -m torture.member NAMESERVERS TOPIC LOG GROUP:MEMBER ...

A line is `begin|end group member queue epoch offset nanoseconds`, in one write: a kill tears none.
The clock is the machine's monotonic one, the same for all processes. Groups named "orderly…" are
orderly. SIGTERM closes all members cleanly.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack

import rockoon
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.message import Message

HANDLING_SECONDS = 0.002
COMMIT_SECONDS = 0.5


class Listener:
    """The handler of one member."""

    def __init__(self, group: str, member_id: str, topic: str, log: int) -> None:
        self.consumer: PushConsumer | None = None
        self._head = f"{group} {member_id}"
        self._topic = topic
        self._log = log

    async def __call__(self, message: Message) -> None:
        if message.queue.topic != self._topic:
            return
        assert self.consumer is not None
        epoch = self.consumer.starts[message.queue].epoch
        what = f"{self._head} {message.queue} {epoch} {message.queue_offset}"
        self._write("begin", what)
        await asyncio.sleep(HANDLING_SECONDS)
        self._write("end", what)

    def _write(self, word: str, what: str) -> None:
        os.write(self._log, f"{word} {what} {time.monotonic_ns()}\n".encode())


async def main(nameservers: str, topic: str, log: str, *members: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with AsyncExitStack() as stack:
        for name in members:
            group, _, member_id = name.partition(":")
            cluster = await stack.enter_async_context(rockoon.connect(nameservers))
            listener = Listener(group, member_id, topic, descriptor)
            listener.consumer = cluster.push_consumer(
                group,
                {topic: "*"},
                listener,
                member_id=member_id,
                consume_from="first",
                timing=rockoon.Timing(commit_seconds=COMMIT_SECONDS),
                orderly=group.startswith("orderly"),
                concurrency=4,
            )
            await stack.enter_async_context(listener.consumer)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
