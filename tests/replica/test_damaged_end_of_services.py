"""Real services whose killed copy has lost the last record of its log: it reports this before it
copies, and has the record again."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from replica.test_damaged_copies import LOG, NAMES, Brokers
from replica.test_offset_copies import Reading, led_by_three, world
from rockoon_core.disk import Disk
from rockoon_format.scan import scan
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_replica.replica_file import AcknowledgedEnd
from support.etcd import EtcdServer
from support.eventually import answered, eventually
from support.nameserver import running_nameserver
from support.store_directory import crashed_copy
from support.waiting import DEADLINE_SECONDS


def is_sound(file: Path) -> bool:
    """Return the content of a replica's file."""
    return bool(json.loads(file.read_bytes().splitlines()[0])["sound"])


async def test_a_broker(tmp_path: Path, shared_etcd: EtcdServer, cluster: str) -> None:
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
                for number in range(5):
                    await producer.send("orders", b"message %d" % number)
                await brokers.level()
                # The state after a kill; then its disk changes a byte.
                after = crashed_copy(tmp_path / name, tmp_path / "after")
                for each in (name, other, leader):
                    await brokers.stop(each)
                content = bytearray((after / LOG).read_bytes())
                last = int(scan(bytes(content), 0, len(content)).offsets[-1])
                assert AcknowledgedEnd(after / "config", Disk()).end > last
                content[last + 4] ^= 1
                (after / LOG).write_bytes(content)
                file = after / "config" / "replica"
                assert is_sound(file)
                brokers.start(name, after)
                await eventually(lambda: not is_sound(file))
                for each in (leader, other):
                    brokers.start(each, tmp_path / each)
                await producer.send("orders", b"one more")
                await eventually(lambda: is_sound(file))
                await brokers.level()
        finally:
            brokers.stop_all()


async def test_an_offset_service(tmp_path: Path, shared_etcd: EtcdServer, cluster: str) -> None:
    names = ("offset-0", "offset-1", "offset-2")
    async with world(tmp_path, shared_etcd, cluster) as (services, client):
        for name in names:
            services.start(name, copies=3)
        log = await led_by_three(client)
        reading = Reading(client)
        assert await reading.read(10) == 10
        assert log.leader is not None
        leader = log.leader.name
        name, other = (each for each in names if each != leader)
        for replica in log.replicas:
            await answered(partial(is_serving, str(replica.address)), bool)
        after = crashed_copy(tmp_path / name, tmp_path / "after")
        for each in (name, other, leader):
            await services.stop(each)
        path = journal_path(after / "journal", generations(after / "journal", "journal")[-1])
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        file = after / "replica"
        assert is_sound(file)
        (tmp_path / name).rename(tmp_path / "before")
        after.rename(tmp_path / name)
        file = tmp_path / name / "replica"
        services.start(name, copies=3)
        await eventually(lambda: not is_sound(file))
        for each in (leader, other):
            services.start(each, copies=3)
        assert await reading.read(10) == 20
        await eventually(lambda: is_sound(file))
