"""A cluster in one process: its stored state, and directories that are used both ways."""

import asyncio
import re
from pathlib import Path

import pytest

import rockoon
from rockoon.cli.status import show_status
from rockoon.local import LocalCluster, LocalClusterError
from rockoon.testing.disposable import DisposableCluster

SETTINGS = {"broker": {"commit_log_file_bytes": 1 << 20}}


def in_directory(directory: Path, *, single: bool) -> LocalCluster:
    return LocalCluster(directory, single=single, settings=SETTINGS)


async def send(local: LocalCluster, topic: str, *bodies: bytes) -> None:
    async with rockoon.connect(local.nameservers) as cluster, cluster.producer() as producer:
        for body in bodies:
            await producer.send(topic, body)


async def read_in_group(local: LocalCluster, topic: str, count: int) -> list[bytes]:
    """Read this number of messages as the group, and commit its progress."""
    async with (
        rockoon.connect(local.nameservers) as cluster,
        cluster.pull_consumer("readers", consume_from="first") as consumer,
    ):
        await consumer.assign_all(topic)
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(1)]
        await consumer.commit()
    return bodies


async def route(local: LocalCluster, topic: str) -> rockoon.TopicRoute:
    async with rockoon.connect(local.nameservers) as cluster:
        return await cluster.route(topic)


def resident_bytes(pid: int | None) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


async def test_a_kill_takes_back_nothing_that_was_acknowledged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with DisposableCluster(single=True) as local:
        assert [node.name for node in local.nodes] == ["single"]
        async with local.connect() as cluster:
            made = await cluster.admin.create_topic("kept", queues_per_broker=1)
        await send(local, "kept", b"1", b"2", b"3")
        assert await read_in_group(local, "kept", 2) == [b"1", b"2"]
        assert resident_bytes(local.node("single").pid) < 90 << 20
        await asyncio.to_thread(local.kill, "single")
        await asyncio.to_thread(local.start, "single")
        assert await route(local, "kept") == made
        await send(local, "kept", b"4")
        assert await read_in_group(local, "kept", 2) == [b"3", b"4"]
        async with local.connect() as cluster:
            status = await cluster.admin.status()
            assert status.healthy
            show_status(status)
            assert "routes: in a file of the nameserver" in capsys.readouterr().out
            assert [node.name for node in status.brokers] == ["broker-a"]


async def test_a_directory_is_used_by_five_processes_and_by_one_in_turn(tmp_path: Path) -> None:
    routes: dict[str, rockoon.TopicRoute] = {}
    for turn, single in enumerate((False, True, False, True)):
        async with in_directory(tmp_path, single=single) as local:
            for topic, known in routes.items():
                assert await route(local, topic) == known
            topic = f"topic-{turn}"
            async with rockoon.connect(local.nameservers) as cluster:
                routes[topic] = await cluster.admin.create_topic(topic, queues_per_broker=1)
            await send(local, topic, b"1", b"2")
            assert await read_in_group(local, topic, 1) == [b"1"]
            if turn:
                assert await read_in_group(local, f"topic-{turn - 1}", 1) == [b"2"]
        there = (tmp_path / "routes.db").exists(), (tmp_path / "etcd").exists()
        assert there == (single, not single)


def test_more_than_a_process_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LocalClusterError, match=r"has one broker, but this cluster has 2 \(broker-a,"
    ):
        LocalCluster(tmp_path, brokers=2, single=True).start()
    with pytest.raises(LocalClusterError, match="start it without --single"):
        LocalCluster(tmp_path, replicas=3, single=True).start()
    assert not (tmp_path / "routes.db").exists()
