"""Real services whose store is restored from an older snapshot of itself, under its own id."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from replica.test_damaged_copies import NAMES, Brokers, is_sound
from replica.test_offset_copies import Reading, led_by_three
from rockoon.admin.logs import LogDescription
from rockoon.cli.logs import state
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.log_watch import WatchingLog
from support.nameserver import running_nameserver
from support.offset_services import until, world
from support.store_directory import crashed_copy
from support.waiting import DEADLINE_SECONDS


def starts_of(file: Path) -> int:
    """Return the number of starts that a store has counted."""
    return int(json.loads(file.read_bytes().splitlines()[0])["starts"])


async def test_a_broker_that_was_started_since_the_snapshot_elects_nobody_and_copies_again(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Brokers(tasks, nameserver, cluster)
        for name in NAMES[:3]:
            brokers.start(name, tmp_path / name)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                leader = leader_of(await led_log(nameserver))
                name, other = (each for each in NAMES[:3] if each != leader)
                await brokers.level()
                snapshot = crashed_copy(tmp_path / name, tmp_path / "snapshot")
                await brokers.stop(name)
                brokers.start(name, tmp_path / name)
                await brokers.level()
                await brokers.stop(other)
                for number in range(20):
                    await producer.send("orders", b"message %03d" % number)
                for each in (name, leader):
                    await brokers.stop(each)
                assert starts_of(snapshot / "config" / "replica") == 1
                assert starts_of(tmp_path / name / "config" / "replica") == 2
                # Two of three, both without a message.
                brokers.start(name, snapshot)
                brokers.start(other, tmp_path / other)
                async with WatchingLog(nameserver) as watching:
                    log = await watching.until(lambda log: len(log.state.reports) == 2)
                assert not log.state.leader
                assert not is_sound(snapshot)
                assert starts_of(snapshot / "config" / "replica") == 3
                brokers.start(leader, tmp_path / leader)
                await producer.send("orders", b"one more")
                await brokers.level()
                await eventually(lambda: is_sound(snapshot))
        finally:
            brokers.stop_all()


async def test_an_offset_service_of_the_present_run_makes_the_election_wait_for_an_operator(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str
) -> None:
    names = ("offset-0", "offset-1", "offset-2")
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        for name in names:
            services.start(name, copies=3, record_committed_seconds=0.1)
        log = await led_by_three(client)
        reading = Reading(client)
        assert await reading.read(10) == 10
        assert log.leader is not None
        leader = log.leader.name
        name, other = (each for each in names if each != leader)
        for replica in log.replicas:
            await answered(partial(is_serving, str(replica.address)), bool)
        snapshot = crashed_copy(tmp_path / name, tmp_path / "snapshot")
        await services.stop(other)
        assert await reading.read(10) == 20
        for each in (name, leader):
            await services.stop(each)
        (tmp_path / name).rename(tmp_path / "before")
        snapshot.rename(tmp_path / name)
        for each in (name, other):
            services.start(each, copies=3)
        log = await until(client, is_held)
        assert log.leader is None
        assert state(log) == f"HELD: the election waits for an operator: {log.held}"
        assert "acknowledged records are missing" in log.held
        log = await client.admin.logs.elect("offset", accept_loss=True)
        assert (log.held, log.losses) == ("", 1)
        assert log.leader is not None
        # The group begins again at the progress that those two have.
        again = Reading(client)
        async with client.push_consumer(
            "billing", {"orders": "*"}, again.take, consume_from="first"
        ):
            await eventually(lambda: len(again.seen) >= 10)


def is_held(log: LogDescription) -> bool:
    return bool(log.held)
