"""A local cluster of real processes: started, damaged, repaired, stopped, and started again."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rockoon
from rockoon.local import LocalCluster, LocalClusterError
from rockoon.local.directory import BLOCK_PORTS, PortBlock
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS, gone, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

NODES = ["etcd", "nameserver-a", "broker-a", "offset"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One cluster for the tests of this file; each restores it."""
    with LocalCluster() as cluster:
        yield cluster


async def topics(cluster: LocalCluster) -> list[str]:
    async with rockoon.connect(cluster.nameservers) as connection:
        return [route.name for route in await connection.admin.list_topics()]


async def test_all_of_a_cluster_answers_as_soon_as_it_is_ready() -> None:
    async with LocalCluster(nameservers=2, brokers=2) as cluster:
        assert [node.name for node in cluster.nodes] == [
            "etcd",
            "nameserver-a",
            "nameserver-b",
            "broker-a",
            "broker-b",
            "offset",
        ]
        async with rockoon.connect(cluster.nameservers) as connection:
            status = await connection.admin.status()
        assert status.healthy
        assert [node.name for node in status.brokers] == cluster.brokers
        directory, pids = cluster.directory, [node.pid for node in cluster.nodes]
    assert not directory.exists(), "a temporary directory goes with its cluster"
    assert all(gone(pid) for pid in pids if pid is not None)


@pytest.mark.parametrize("name", NODES)
async def test_a_killed_node_comes_back_on_its_address(cluster: LocalCluster, name: str) -> None:
    node = cluster.node(name)
    address, pid = node.address, node.pid
    cluster.kill(name)
    assert not node.running
    cluster.start(name, wait=False)
    await cluster.wait_ready(name)
    assert node.address == address
    assert node.pid != pid
    assert cluster.wait_node_ended(0) is None, "a kill that was asked for is no surprise"
    assert isinstance(await topics(cluster), list)


def test_nobody_else_chooses_the_port_of_a_node_that_is_down(cluster: LocalCluster) -> None:
    port = cluster.node("broker-a").port
    cluster.kill("broker-a")
    with PortBlock(around=port) as other:
        others = {other.choose() for _ in range(BLOCK_PORTS)}
    assert not others & {node.port for node in cluster.nodes}
    cluster.start("broker-a")


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_restarted_cleanly(cluster: LocalCluster, name: str) -> None:
    pid = cluster.node(name).pid
    cluster.restart(name)
    assert cluster.node(name).ready
    assert cluster.node(name).pid != pid


async def test_a_stopped_broker_leaves_the_routes_and_comes_back(cluster: LocalCluster) -> None:
    async with rockoon.connect(cluster.nameservers) as connection:
        await asyncio.to_thread(cluster.stop, "broker-a")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while connection.routes.broker("broker-a") is not None:
                await connection.routes_changed.wait(connection.routes_changed.count)
        await asyncio.to_thread(cluster.start, "broker-a")
        await connection.wait_broker("broker-a", DEADLINE_SECONDS)


async def test_a_broker_added_later_takes_queues(cluster: LocalCluster) -> None:
    name = await asyncio.to_thread(cluster.add_broker, flush="async")
    assert name == "broker-b"
    assert cluster.brokers == ["broker-a", "broker-b"]
    async with rockoon.connect(cluster.nameservers) as connection:
        await connection.admin.create_topic("added", placements={"broker-b": 2})
        described = await connection.admin.describe_topic("added")
        status = await connection.admin.status()
    assert [(each.queue.broker, each.error) for each in described.queues] == [
        ("broker-b", None)
    ] * 2
    flush = {node.name: node.broker.flush for node in status.brokers if node.broker is not None}
    assert flush["broker-b"] == "async", "settings of one node reach it alone"
    assert flush["broker-a"] == "sync"
    with pytest.raises(LocalClusterError, match="there is a node 'broker-b' already"):
        cluster.add_broker("broker-b")


def test_a_node_that_dies_by_itself_is_reported_once(cluster: LocalCluster) -> None:
    pid = cluster.node("broker-a").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended = cluster.wait_node_ended(DEADLINE_SECONDS)
    assert ended is not None
    assert ended.name == "broker-a"
    assert "broker-a ended unexpectedly (killed by SIGKILL)" in str(ended)
    assert cluster.wait_node_ended(0) is None
    cluster.start("broker-a")


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    cluster = LocalCluster()

    async def begin() -> None:
        async with cluster:
            pytest.fail("cancelled while it starts")

    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(begin())
        await eventually(lambda: bool(cluster.nodes) and cluster.nodes[-1].pid is not None)
        pids = [node.pid for node in cluster.nodes]
        starting.cancel()
    assert starting.cancelled()
    assert not cluster.directory.exists()
    assert all(gone(pid) for pid in pids if pid is not None)


def test_a_node_that_does_not_exist_is_named_with_those_that_do(cluster: LocalCluster) -> None:
    with pytest.raises(LocalClusterError, match=r"no node 'broker-z' .*nameserver-a"):
        cluster.kill("broker-z")


def test_a_wrong_setting_fails_the_start_with_the_service_s_own_words() -> None:
    cluster = LocalCluster(settings={"broker-a": {"flush": "sometimes"}})
    with pytest.raises(LocalClusterError) as failure:
        cluster.start()
    assert "broker-a did not start (exit status 78)" in str(failure.value)
    assert "must be one of sync, async" in str(failure.value)
    assert cluster.nodes == (), "what had started is stopped again"


async def test_data_and_addresses_survive_a_stop_of_everything(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=2) as first:
        addresses = {node.name: node.address for node in first.nodes}
        async with rockoon.connect(first.nameservers) as connection:
            await connection.admin.create_topic("kept")
    async with LocalCluster(tmp_path) as second:
        assert {node.name: node.address for node in second.nodes} == addresses
        assert await topics(second) == ["kept"]
        with pytest.raises(
            LocalClusterError, match=f"runs on {tmp_path} already .process {os.getpid()}"
        ):
            LocalCluster(tmp_path).start()
    with pytest.raises(LocalClusterError, match="has data of 2 brokers"):
        LocalCluster(tmp_path, brokers=1).start()


def test_a_port_in_use_is_one_sentence_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalClusterError, match=f"port {port} is in use .for nameserver-a"):
            LocalCluster(tmp_path, port=port).start()
    assert not (tmp_path / "etcd").exists()


def test_a_whole_cluster_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = f"""
import json, os, signal
from rockoon.local import LocalCluster
cluster = LocalCluster({str(tmp_path)!r})
cluster.start()
print(json.dumps([node.pid for node in cluster.nodes]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    pids = json.loads(ended.stdout)
    assert len(pids) == len(NODES)
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid), f"process {pid} to end")
    with LocalCluster(tmp_path) as again:
        assert all(node.ready for node in again.nodes), "what it leaves behind is no obstacle"


def test_a_cluster_without_a_directory_says_so_before_its_start() -> None:
    with pytest.raises(LocalClusterError, match="no directory before it is started"):
        _ = LocalCluster().directory
