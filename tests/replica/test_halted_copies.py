"""A former leader that should cut committed records halts, reports why, and changes nothing."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import rockoon
from replica.test_broker_copies import created, is_serving, leader_of, led_log
from replica.test_damaged_copies import LOG, NAMES, Brokers
from rockoon.admin.logs import LogDescription
from rockoon.cli.logs import role, troubles
from rockoon_core.disk import Disk
from rockoon_format.scan import scan
from rockoon_replica.replica_file import HALTED, read_halt, write_halt
from rockoon_runtime.process import ExitStatus
from support.etcd import EtcdServer
from support.eventually import answered
from support.log_watch import WatchingLog
from support.nameserver import running_nameserver
from support.store_directory import crashed_copy
from support.waiting import DEADLINE_SECONDS


def test_the_file_of_a_halt_is_one_line_for_people(tmp_path: Path) -> None:
    assert read_halt(tmp_path) == ""
    write_halt(tmp_path, Disk(), "told to cut at 7,\nbelow 9")
    assert (tmp_path / HALTED).read_text() == "told to cut at 7, below 9\n"
    assert read_halt(tmp_path) == "told to cut at 7, below 9"
    (tmp_path / HALTED).write_bytes(b"\xff")
    assert read_halt(tmp_path)
    (tmp_path / HALTED).write_bytes(b"")
    assert read_halt(tmp_path) == "no reason was written"


async def test_it_says_so_after_each_start_and_another_copy_takes_its_place(
    tmp_path: Path, shared_etcd: EtcdServer, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(
            running_nameserver(cluster=cluster, etcd=(shared_etcd.endpoint,))
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        brokers = Brokers(tasks, nameserver, cluster)
        for name in NAMES[:3]:
            brokers.start(name, tmp_path / name, record_committed_seconds=3600.0)
        try:
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                rockoon.connect(nameserver.address, cluster=cluster) as client,
                client.producer() as producer,
            ):
                await answered(lambda: created(client), bool)
                leader = leader_of(await led_log(nameserver))
                others = [each for each in NAMES[:3] if each != leader]
                await brokers.level()
                older = [
                    crashed_copy(tmp_path / each, tmp_path / f"{each}-older") for each in others
                ]
                for number in range(20):
                    await producer.send("orders", b"message %03d" % number)
                for each in (leader, *others):
                    await brokers.stop(each)
                # Two disks are restored at the same time, within one run of their processes.
                for each, root in zip(others, older, strict=True):
                    brokers.start(each, root)
                await producer.send("orders", b"one more")
                before = (tmp_path / leader / LOG).read_bytes()
                with caplog.at_level(logging.ERROR):
                    for _ in range(2):
                        brokers.start(leader, tmp_path / leader)
                        log = await halted(client, leader, is_up=True)
                        copy = log.replica(leader)
                        assert copy.halted.startswith("its leader asks it to cut its log at ")
                        assert role(copy) == "halted"
                        assert not await is_serving(str(copy.address))
                        said = list(troubles(log, await client.admin.logs.ask_replicas(log)))
                        assert f"{leader}: HALTED: {copy.halted}; rescue its records" in said[0]
                        fatal = await brokers.stop(leader)
                        assert fatal is not None
                        assert fatal.status is ExitStatus.STORE
                        # Its process is away; the reason remains.
                        await halted(client, leader, is_up=False)
                lines = [each for each in caplog.messages if "is halted, and its store" in each]
                assert len(lines) == 2
                assert (tmp_path / leader / "config" / HALTED).exists()
                assert (tmp_path / leader / LOG).read_bytes() == before

                # Its records are unchanged.
                (tmp_path / leader).rename(tmp_path / "rescued")
                found = scan(before, 0, len(before))
                assert len(found.offsets) >= 20
                brokers.start(leader, tmp_path / leader)
                async with WatchingLog(nameserver) as watching:
                    await watching.until(
                        lambda log: any(
                            each.name == leader
                            and each.replica_id in log.state.in_sync
                            and not each.halted
                            for each in log.state.replicas
                        )
                    )
                await producer.send("orders", b"and one more")
                await brokers.level()
        finally:
            brokers.stop_all()


async def halted(client: rockoon.Cluster, name: str, *, is_up: bool) -> LogDescription:
    """Return the log after nameservers know that a copy is halted, while its process runs or
    not."""

    async def found() -> LogDescription:
        return await client.admin.logs.describe("broker-a")

    def holds(log: LogDescription) -> bool:
        return any(
            each.name == name and each.halted and is_up == bool(each.address)
            for each in log.replicas
        )

    return await answered(found, holds)
