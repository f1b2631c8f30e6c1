"""Hundreds of push consumers, each on its own connection, in a process that may be killed or
stopped.

python -m gateway.many_clients ADDRESS GROUP TOPIC PREFIX COUNT

Each opens its Telemetry stream, receives one message and holds it. Then the program prints
`holding` and obeys the lines of its input:

    park    each waits for further messages, acknowledges them, and prints `got BODY ATTEMPT`
    rest    none waits any more; the reply is `resting`
    settle  each acknowledges its held message; the reply is `settled COUNT`, the number of
    successes
"""

import asyncio
import sys
from collections.abc import Sequence

from gateway.consumers import Consumer, handle
from gateway.wire_client import WireClient, consumer_settings
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d

BEAT_SECONDS = 10.0
WAIT_SECONDS = 6.0
STARTING_MAX = 50


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class One:
    """A push consumer on its own connection.

    Args:
        address: address of the gateway.
        name: its client id.
        parking: set while it should wait for further messages.
    """

    def __init__(
        self, address: str, group: str, topic: str, name: str, parking: asyncio.Event
    ) -> None:
        self._client = WireClient(address, name)
        self._consumer = Consumer(self._client, group, topic)
        self._stream = self._client.telemetry()
        self._parking = parking
        self._held: list[d.Message] = []
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    async def hold(self) -> None:
        """Receive one message."""
        settings = consumer_settings(self._consumer.group, self._consumer.topic)
        await self._stream.tell(settings)
        self._held = await self._consumer.receive_all(1, batch_size=1, renewed=True)

    async def beat(self) -> None:
        while True:
            await self._client.heartbeat(d.PUSH_CONSUMER, self._consumer.group)
            await asyncio.sleep(BEAT_SECONDS)

    async def work(self) -> None:
        while True:
            self.is_idle.set()
            await self._parking.wait()
            self.is_idle.clear()
            got = await self._consumer.receive(batch_size=1, renewed=True, wait=WAIT_SECONDS)
            for message in got:
                say("got", message.body.decode(), message.system_properties.delivery_attempt)
                await self._consumer.acknowledge(handle(message))

    async def settle(self) -> int:
        answer = await self._consumer.acknowledge(*map(handle, self._held))
        return sum(entry.status.code == d.OK for entry in answer.entries)


async def main(words: Sequence[str]) -> None:
    address, group, topic, prefix, count = words
    parking = asyncio.Event()
    ones = [One(address, group, topic, f"{prefix}-{n}", parking) for n in range(int(count))]
    gate = asyncio.Semaphore(STARTING_MAX)

    async def start(one: One) -> None:
        async with gate:
            await one.hold()

    async with asyncio.TaskGroup() as starts:
        for one in ones:
            starts.create_task(start(one))
    async with asyncio.TaskGroup() as tasks:
        lives = [tasks.create_task(do()) for one in ones for do in (one.beat, one.work)]
        say("holding")
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "park\n":
                parking.set()
            elif line == "rest\n":
                parking.clear()
                for one in ones:
                    await one.is_idle.wait()
                say("resting")
            else:
                say("settled", sum([await one.settle() for one in ones]))
        for life in lives:
            life.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
