"""Topics are deleted and created again while a log has copies: no acknowledged message is hidden,
and no message of the former topic is shown."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from grpc import aio

import rockoon
from replica.test_broker_copies import created, leader_of, led_log
from rockoon_broker.server import serve
from rockoon_core.errors import RockoonError
from rockoon_runtime.process import Stop
from support.broker import RunningBroker, settings_of
from support.etcd import EtcdServer
from support.eventually import answered
from support.nameserver import running_nameserver
from support.waiting import DEADLINE_SECONDS


async def test_what_a_topic_that_was_created_again_was_given_is_there_under_each_next_leader(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running: dict[str, tuple[Stop, asyncio.Task[None]]] = {}

        def start(name: str) -> None:
            stop = Stop()
            settings = settings_of(
                tmp_path / name, [nameserver.address], cluster=cluster, copies=3, replica=name
            )
            running[name] = stop, tasks.create_task(serve(settings, stop), name=name)

        async def restart_leader() -> None:
            leader = leader_of(await led_log(nameserver))
            stop, task = running[leader]
            stop.request("a rolling restart")
            await task
            start(leader)

        for number in range(3):
            start(f"broker-a-{number}")
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                await producer.send("orders", b"of the first")
                await client.admin.delete_topic("orders")
                await answered(lambda: created(client), bool)
                sent: list[bytes] = []
                for number in range(3):
                    sent.append(b"%d" % number)
                    await producer.send("orders", sent[-1])
                    # Each replica leads in turn, also the one that led first.
                    await restart_leader()
                address = next(
                    node.address
                    for log in [await led_log(nameserver)]
                    for node in log.nodes
                    if node.store_id == log.state.leader
                )
                async with aio.insecure_channel(address) as channel:
                    reader = RunningBroker(address, channel, Stop())
                    # It leads a moment before it replies as the leader.
                    await answered(lambda: answers(reader), bool)
                    stored = await reader.bodies("orders")
                assert list(dict.fromkeys(stored)) == sent
        finally:
            for stop, _ in running.values():
                stop.request("the test is over")


async def answers(reader: RunningBroker) -> bool:
    try:
        await reader.pull("orders")
    except RockoonError:
        return False
    return True
