"""Cost of client liveness: CPU and bytes while clients of the gateway only send heartbeats.

python -m bench.gateway.liveness --clients 10000 --gateways 10 --seconds 30

Each client holds a message, and sends a heartbeat every ten seconds. One gateway is a process with
its share of the clients; the reports of the other gateways are made here. Prints the CPU of that
gateway and of the offset service, with heartbeats and without, and the bytes of the reports.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpc import aio

import rockoon
from bench.usage import cpu_seconds
from rockoon.errors import OffsetServiceUnavailable
from rockoon.local.cluster import LocalCluster
from rockoon_core.message_queue import queue_to_wire
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as v2
from rockoon_proto.apache.rocketmq.v2.service_pb2 import HeartbeatRequest
from rockoon_proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from rockoon_proto.v1 import in_flight_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

TOPIC, GROUP = "liveness", "listeners"
BEAT_SECONDS = 10.0
CHANNELS = 20
# Maximum number of clients in one Acquire call.
SHARES = 64
HELD_MS = 3 * 3_600_000


def client_id(number: int) -> str:
    return f"host.example.org@{number}@0@4jh2k9"


async def hold(cluster: rockoon.Cluster, clients: int) -> None:
    """Let each client receive one message without acknowledging it."""
    await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
    policy = StartPolicy(consume_from=CONSUME_FROM_FIRST)
    await cluster.admin.create_group(GroupConfig(name=GROUP, start_policy=policy))
    async with cluster.producer() as producer:
        await producer.send_many(TOPIC, [b"held"] * clients)
    (queue,) = (await cluster.route(TOPIC)).queues
    reach = pb.QueueReach(queue=queue_to_wire(queue), end_offset=clients)
    for first in range(0, clients, SHARES):
        numbers = range(first, min(first + SHARES, clients))
        shares = [pb.Share(receiver=client_id(each), messages_max=1) for each in numbers]
        wanted = pb.Wanted(
            group=GROUP,
            receiver=client_id(first),
            queues=[reach],
            messages_max=len(shares),
            visible_after_ms=60_000,
            held_ms_max=HELD_MS,
            policy=policy,
            shares=shares,
        )
        request = pb.AcquireRequest(wanted=[wanted])
        method = cluster.in_flight_service().Acquire
        reply = await cluster.call(method, request, unavailable=OffsetServiceUnavailable)
        assert sum(len(each.acquired) for each in reply.granted) == len(shares), reply


async def heartbeats(address: str, numbers: Sequence[int]) -> None:
    """Send the heartbeats of some clients to a gateway, evenly over time, until cancelled."""
    channels = [
        aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CHANNELS)
    ]
    stubs = [MessagingServiceStub(channel) for channel in channels]
    request = HeartbeatRequest(
        group=v2.Resource(name=GROUP), client_type=v2.ClientType.PUSH_CONSUMER
    )

    async def beat(number: int) -> None:
        headers = (("x-mq-client-id", client_id(number)), ("x-mq-language", "JAVA"))
        answer = await stubs[number % CHANNELS].Heartbeat(request, metadata=headers)
        assert answer.status.code == v2.Code.OK, answer

    await evenly(numbers, beat)


async def reports(cluster: rockoon.Cluster, name: str, numbers: Sequence[int]) -> None:
    """Report clients to the cluster once a second, like a gateway, until cancelled."""
    each_second = [numbers[at :: round(BEAT_SECONDS)] for at in range(round(BEAT_SECONDS))]
    details = pb.ClientDetails(
        client_type="push_consumer", language="JAVA", version="5.2.0", address="ipv4:10.0.0.1:4711"
    )

    async def report(at: int) -> None:
        request = pb.ReportClientsRequest(gateway=name, gateway_id=name)
        for number in each_second[at]:
            client = pb.ClientName(group=GROUP, client_id=client_id(number))
            request.clients.add(name=client, heard_ms_ago=500, details=details)
        method = cluster.in_flight_service().ReportClients
        reply = await cluster.call(method, request, unavailable=OffsetServiceUnavailable)
        SENT.append(request.ByteSize() + reply.ByteSize())

    await evenly(range(len(each_second)), report)


SENT: list[int] = []


async def evenly(numbers: Sequence[int], do) -> None:  # type: ignore[no-untyped-def]
    """Call `do` for each number once in BEAT_SECONDS, until cancelled."""
    began = time.monotonic()
    turn = 0
    while True:
        for at, number in enumerate(numbers):
            due = began + BEAT_SECONDS * (turn + at / len(numbers))
            if (pause := due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            await do(number)
        turn += 1


@asynccontextmanager
async def beating(
    cluster: rockoon.Cluster, address: str, clients: int, gateways: int
) -> AsyncIterator[None]:
    shares = [range(at, clients, gateways) for at in range(gateways)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(heartbeats(address, shares[0]))]
        running += [
            tasks.create_task(reports(cluster, f"gateway-{at}", shares[at]))
            for at in range(1, gateways)
        ]
        yield
        for task in running:
            task.cancel()


async def measure(local: LocalCluster, clients: int, gateways: int, seconds: float) -> None:
    names = ("gateway", "offset")

    async def used() -> list[float]:
        before = [cpu_seconds([local.node(name).pid or 0]) for name in names]
        await asyncio.sleep(seconds)
        after = [cpu_seconds([local.node(name).pid or 0]) for name in names]
        return [100 * (y - x) / seconds for x, y in zip(before, after, strict=True)]

    async with rockoon.connect(local.nameservers) as cluster:
        assert local.gateway is not None
        idle = await used()
        await hold(cluster, clients)
        async with beating(cluster, local.gateway, clients, gateways):
            await asyncio.sleep(2 * BEAT_SECONDS)
            SENT.clear()
            busy = await used()
        held = await cluster.admin.in_flight(GROUP)
        known = await cluster.admin.clients(GROUP)
    calls = len(SENT)
    print(f"{clients} clients at {gateways} gateways, {seconds:.0f} s")
    for name, before, after in zip(names, idle, busy, strict=True):
        print(f"{name}: {after:.1f} % of a core, {before:.1f} % without clients")
    print(
        f"a report: {sum(SENT) / max(calls, 1):.0f} bytes with its answer, "
        f"{sum(SENT) / seconds * gateways / max(gateways - 1, 1) / 1000:.0f} kB/s of all gateways"
    )
    print(
        f"{sum(each.in_flight for each in held.queues)} messages held, {len(known.clients)} known"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.liveness", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--gateways", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    # Each service is a process, so its CPU can be measured.
    with LocalCluster(gateway=0) as local:
        asyncio.run(measure(local, given.clients, given.gateways, given.seconds))


if __name__ == "__main__":
    main()
