"""Receivers, and an offset service with three copies: replies stay valid under each leader."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import rockoon
from rockoon.admin.logs import ReplicaDescription
from rockoon_core.message_queue import queue_to_wire
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub
from support.broker import running_broker
from support.etcd import EtcdServer
from support.eventually import moves_until
from support.nameserver import running_nameserver
from support.offset_services import LOG, TOPIC, counting, until, world
from support.received_messages import ReceivedMessages
from support.seeds import seeds

GROUP = "billing"
NAMES = ("offset-0", "offset-1", "offset-2")
MESSAGES = 200
KILLS = 3


async def led(client: rockoon.Cluster, after_epoch: int = 0) -> tuple[int, ReplicaDescription]:
    """Return the epoch after another one, and its leader."""
    log = await until(
        client, lambda log: log.epoch > after_epoch and log.confirmed and log.leader is not None
    )
    assert log.leader is not None
    return log.epoch, log.leader


@asynccontextmanager
async def receivers_at(address: str | None) -> AsyncIterator[Any]:
    assert address is not None
    async with aio.insecure_channel(address) as channel:
        yield InFlightServiceStub(channel)


async def sent(client: rockoon.Cluster, chance: random.Random) -> ReceivedMessages:
    async with client.producer() as producer:
        await producer.send_many(TOPIC, [b"%d" % number for number in range(MESSAGES)])
    await client.admin.create_group(GROUP, if_absent=True)
    queues = (await client.admin.describe_topic(TOPIC)).queues
    refs = [queue_to_wire(each.queue) for each in queues]
    return ReceivedMessages(GROUP, refs, MESSAGES, chance)


@pytest.mark.parametrize("seed", seeds(1))
async def test_a_leader_that_follows_knows_what_is_acknowledged_and_who_has_what(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str, seed: int
) -> None:
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        for name in NAMES:
            services.start(name, copies=3)
        await until(client, counting(3))
        epoch, first = await led(client)
        received = await sent(client, random.Random(seed))
        async with receivers_at(first.address) as stub:
            await received.receive(stub, enough=MESSAGES // 2)
        await services.stop(first.name)
        _, second = await led(client, epoch)
        async with receivers_at(second.address) as stub:
            await received.receive(stub, finishes=True)
        (progress,) = await client.admin.progress(GROUP, TOPIC)
        assert progress.offset == MESSAGES


@contextmanager
def offset_process(
    name: str, root: Path, nameserver: str, cluster: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a replica as an operator does; kill it at the end if it still runs."""
    options = {
        "name": LOG,
        "replica": name,
        "copies": 3,
        "nameservers": nameserver,
        "cluster": cluster,
        "listen": "127.0.0.1:0",
        "store-path": root / name,
        "journal-bytes-max": 16384,
    }
    arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    with (root / f"{name}.log").open("ab") as output:
        command = [sys.executable, "-m", "rockoon_offset", *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
async def test_leaders_are_killed_and_nothing_acknowledged_comes_again_and_all_else_does(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str, seed: int
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        await stack.enter_async_context(
            running_broker(tmp_path / "broker", [nameserver.address], cluster=cluster)
        )

        def start(name: str) -> subprocess.Popen[bytes]:
            starting = offset_process(name, tmp_path, nameserver.address, cluster)
            return stack.enter_context(starting)

        running = {name: start(name) for name in NAMES}
        client = await stack.enter_async_context(
            rockoon.connect(nameserver.address, cluster=cluster)
        )
        await client.admin.create_topic(TOPIC, queues_per_broker=1)
        received = await sent(client, random.Random(seed))
        epoch = 0
        for kill in range(1, KILLS + 1):
            epoch, first = await led(client, epoch)
            # Without the killed copy a quorum remains.
            await until(client, counting(3))
            wanted = kill * MESSAGES // (KILLS + 1)
            async with receivers_at(first.address) as stub, asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(received.receive_until_it_dies(stub))
                await moves_until(lambda: len(received.done), wanted.__lt__)
                running[first.name].kill()
                running[first.name].wait()
            running[first.name] = start(first.name)
        _, last = await led(client, epoch)
        async with receivers_at(last.address) as stub:
            await received.receive(stub, finishes=True)
        (progress,) = await client.admin.progress(GROUP, TOPIC)
        assert progress.offset == MESSAGES
