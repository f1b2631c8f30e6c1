"""CPU cost per message of a push consumer, without the pull.

Run: `.venv/bin/python -m bench.push`; it needs no cluster. An async handler reads the body and does
not wait. Unit: microseconds of CPU.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from rockoon.consumer.delivery import HandlerDelivery
from rockoon.consumer.process_queue import ProcessQueue
from rockoon.consumer.queue_reader import QueueReader
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.message import Batch, Message
from rockoon.offsets.start import Start
from rockoon.subscription import Subscription
from rockoon_core.message_queue import MessageQueue
from rockoon_format.batch_encoding import encode_batch
from rockoon_format.properties import PROPERTY_UNIQ_KEY, encode

MESSAGES = 300_000
PULLED = 1024
QUEUE = MessageQueue("bench", "broker-a", 0)


def pulled() -> tuple[bytes, bytes]:
    """Return encoded records and their sizes, as in a pull reply."""
    properties = [encode({PROPERTY_UNIQ_KEY: f"{number:032X}"}) for number in range(PULLED)]
    frames, sizes = encode_batch(b"bench", 0, [bytes(100)] * PULLED, properties, 0, bytes(8))
    return frames, sizes.astype("<u4").tobytes()


async def working(work: Callable[[], Awaitable[None]]) -> None:
    """Convert an awaitable to a coroutine, which a task needs."""
    await work()


async def microseconds(batch_max: int) -> float:
    """Return the CPU time per message, with `batch_max` messages per call of the handler."""
    frames, sizes = pulled()
    handled = 0

    async def one(message: Message) -> None:
        nonlocal handled
        handled += len(message.body) > 0

    async def many(messages: list[Message]) -> None:
        nonlocal handled
        handled += sum(len(message.body) > 0 for message in messages)

    delivery = HandlerDelivery(
        one if batch_max == 1 else many,
        concurrency=20,
        batch_max=batch_max,
        redelivery=LocalRedelivery(),
    )
    held: ProcessQueue[Batch] = ProcessQueue(0)
    start = Start(QUEUE, 0, "ASSIGNED", "")
    source = QueueReader(QUEUE, Subscription.parse("bench", "*"), start, 0, held)
    loop = asyncio.get_running_loop()
    delivery.start(lambda work: loop.create_task(working(work)))
    began, seen, end = time.process_time(), source.finished.count, 0
    while held.commit_offset < MESSAGES:
        while end < MESSAGES and held.blocked_by() is None:
            held.put(
                Batch(QUEUE, frames, sizes),
                range(end, end + PULLED),
                next_offset=end + PULLED,
                size_bytes=len(frames),
            )
            end += PULLED
            delivery.offer(source)
        seen = await source.finished.wait(seen)
    spent = time.process_time() - began
    await delivery.drain(1.0)
    return spent / handled * 1e6


def main() -> None:
    for batch_max in (1, 64):
        print(f"{batch_max:3} a call: {asyncio.run(microseconds(batch_max)):5.2f} us a message")


if __name__ == "__main__":
    main()
