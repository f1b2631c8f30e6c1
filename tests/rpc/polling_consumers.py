"""Hundreds of consumers that open long polls and cancel many, by gRPC's Python client.

python -m rpc.polling_consumers KIND ADDRESS CONSUMERS CONNECTIONS SECONDS PATIENCE SEED

KIND is `bare` for the service of `rpc.peers.service`, or a group and a topic of a gateway,
"GROUP:TOPIC". Consumers share connections, as those of one process do. Each opens a poll, cancels
it after a random while of PATIENCE seconds on average, and opens the next one. Half of the time the
server answers before. The program prints a `Report` as one line of JSON.
"""

import asyncio
import json
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
from grpc import aio

from gateway.consumers import Consumer
from gateway.wire_client import WireClient

Poll = Callable[[], Any]
"""Begins a long poll; returns gRPC's call."""


@dataclass
class Report:
    """What consumers of one process saw.

    Attributes:
        cancelled, answered: polls that ended so.
        failed: polls that ended in another way, by their status and details; the consumer ends too.
        lost: connections that ended.
    """

    cancelled: int = 0
    answered: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    lost: int = 0


async def consume(poll: Poll, patience: float, chance: random.Random, report: Report) -> None:
    """Polls of one consumer, until one fails."""
    while True:
        try:
            async with asyncio.timeout(chance.uniform(0, 2 * patience)):
                answers = [answer async for answer in poll()]
            report.answered += bool(answers)
        except TimeoutError:
            report.cancelled += 1
        except aio.AioRpcError as failure:
            text = f"{failure.code().name}: {failure.details()}"
            report.failed[text] = report.failed.get(text, 0) + 1
            return


async def watch(channel: aio.Channel, report: Report) -> None:
    """Count each time that a channel's connection ends."""
    await channel.channel_ready()
    while True:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        report.lost += 1
        await channel.channel_ready()


def bare(channel: Any, patience: float, _name: str) -> Poll:
    request = str(round(patience * 1e3)).encode()
    return lambda: channel.unary_stream("/peers.Peers/Poll")(request)


def of_gateway(address: str, group: str, topic: str) -> Callable[[Any, float, str], Poll]:
    def begin(channel: Any, patience: float, name: str) -> Poll:
        client = WireClient(address, f"{name}@1@0@poll", channel=channel)
        request = Consumer(client, group, topic).request(wait=patience)
        return lambda: client.stub.ReceiveMessage(request, metadata=client.metadata)

    return begin


async def run(
    kind: str,
    address: str,
    count: int,
    connections: int,
    seconds: float,
    patience: float,
    seed: int,
) -> Report:
    report = Report()
    group, _, topic = kind.partition(":")
    begin = of_gateway(address, group, topic) if topic else bare
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(aio.insecure_channel(address, options))
            for _ in range(connections)
        ]
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for channel in channels:
                    tasks.create_task(watch(channel, report))
                for number in range(count):
                    poll = begin(channels[number % connections], patience, f"{seed}-{number}")
                    chance = random.Random(f"{seed} {number}")
                    tasks.create_task(consume(poll, patience, chance, report))
        except TimeoutError:
            return report
    raise AssertionError


async def report_of(*words: object, environment: Mapping[str, str]) -> Report:
    """The report of consumers in another process; `words` are the program's."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rpc.polling_consumers", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        env=dict(environment),
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return Report(**json.loads(printed))


def main() -> None:
    kind, address, count, connections, seconds, patience, seed = sys.argv[1:]
    report = asyncio.run(
        run(kind, address, int(count), int(connections), float(seconds), float(patience), int(seed))
    )
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
