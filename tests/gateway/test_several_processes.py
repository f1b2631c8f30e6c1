"""Several gateways on one port: a client connects to one of them, and each of them may end."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from grpc import aio

import rockoon
from gateway.consumers import Consumer, handle, topic_with
from gateway.gateways import START_SECONDS_MAX, gateway_program
from gateway.reading import read
from gateway.wire_client import WireClient, message, producer_settings
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.local.process import Node, end
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS, pauses

# The kernel chooses at random: all on one of two gateways in one of two billion runs.
CLIENTS = 32


@asynccontextmanager
async def on_one_port(cluster: LocalCluster, folder: Path) -> AsyncIterator[Sequence[Node]]:
    """Two gateways, each a process."""
    port = choose_port()
    nodes = [gateway_program(cluster, f"gateway-{n}", port, folder) for n in range(2)]
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            await asyncio.to_thread(node.wait_ready, time.monotonic() + START_SECONDS_MAX)
        yield nodes
    finally:
        for node in nodes:
            node.signal(signal.SIGTERM)
        await asyncio.to_thread(end, nodes)


async def sent(client: WireClient, topic: str, body: bytes) -> int:
    """Return the number of attempts of a send, by a client that repeats it if its gateway is
    gone."""
    tries = 0
    async with asyncio.timeout(DEADLINE_SECONDS):
        for pause in pauses():
            tries += 1
            try:
                answer = await client.send(message(topic, body))
            except aio.AioRpcError:
                await asyncio.sleep(pause)
                continue
            assert answer.status.code == d.OK
            break
    return tries


async def test_one_of_two_is_killed_and_clients_of_both_go_on(
    local_cluster: LocalCluster, cluster: rockoon.Cluster, tmp_path: Path
) -> None:
    topic = await topic_with(cluster, "shared-port", [b"before"] * CLIENTS)
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(on_one_port(local_cluster, tmp_path))
        address = nodes[0].address
        clients, streams = [], []
        for number in range(CLIENTS):
            client = WireClient(address, f"host@{number}@0@x")
            clients.append(await stack.enter_async_context(client))
            stream = client.telemetry()
            await stream.tell(producer_settings(topic))
            streams.append(stream)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        consumers = [Consumer(client, "shared", topic) for client in clients]
        received = [(await each.receive(batch_size=1))[0] for each in consumers]
        ended = [tasks.create_task(stream.has_ended(), name="stream") for stream in streams]

        nodes[0].signal(signal.SIGKILL)
        tries = [await sent(client, topic, b"behind") for client in clients]
        await eventually(lambda: any(each.done() for each in ended))
        stayed = [not each.done() for each in ended]
        # A connection stays with its gateway: clients of the other one noticed nothing.
        assert 0 < sum(stayed) < CLIENTS
        assert all(count == 1 for count, is_same in zip(tries, stayed, strict=True) if is_same)
        # One gateway issues handles, and the other settles their messages.
        for number, each in enumerate(received):
            answer = await consumers[number - 1].acknowledge(handle(each))
            assert answer.status.code == d.OK
        for task in ended:
            task.cancel()
    stored = await read(cluster, topic, 2 * CLIENTS)
    assert [each.body for each in stored] == [b"before"] * CLIENTS + [b"behind"] * CLIENTS
