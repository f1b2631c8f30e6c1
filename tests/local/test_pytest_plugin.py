"""The pytest plugin, as a user's test suite uses it."""

import subprocess
import sys
from pathlib import Path

SUITE = """
import asyncio
import rockoon
import pytest


def send_and_read(rockoon_cluster, topic, body):
    async def work():
        async with rockoon_cluster.connect() as cluster:
            async with cluster.producer() as producer:
                await producer.send(topic, body)
            async with cluster.pull_consumer() as consumer:
                await consumer.assign_all(topic)
                return [message.body for message in await consumer.poll(timeout=10)]

    return asyncio.run(work())


def test_plain(rockoon_cluster, rockoon_topic):
    with rockoon_cluster.connect() as cluster:
        assert cluster.send(rockoon_topic, b"order 1").queue_offset == 0


async def test_async(rockoon_cluster, rockoon_topic):
    async with rockoon_cluster.connect() as cluster, cluster.producer() as producer:
        assert (await producer.send(rockoon_topic, b"order 1")).queue_offset == 0


@pytest.mark.parametrize("how", ["a/b", "ä b"])
def test_every_test_has_a_topic_of_its_own(rockoon_cluster, rockoon_topic, how):
    assert send_and_read(rockoon_cluster, rockoon_topic, how.encode()) == [how.encode()]


def test_that_kills_a_broker(rockoon_cluster):
    assert rockoon_cluster.brokers == ["broker-a", "broker-b"]
    rockoon_cluster.kill("broker-a")


def test_that_comes_after_it(rockoon_cluster, rockoon_topic):
    assert rockoon_cluster.node("broker-a").ready
    assert send_and_read(rockoon_cluster, rockoon_topic, b"again") == [b"again"]
"""

SETTINGS = """
[pytest]
asyncio_mode = auto
rockoon_brokers = 2
"""


def test_a_suite_of_plain_and_async_tests_gets_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "6 passed" in ended.stdout


SINGLE = """
def test_first(rockoon_cluster, rockoon_topic):
    with rockoon_cluster.connect() as cluster:
        assert cluster.send(rockoon_topic, b"order 1").queue_offset == 0
    assert [node.name for node in rockoon_cluster.nodes] == ["single"]
    rockoon_cluster.kill("single")


def test_that_comes_after_it(rockoon_cluster, rockoon_topic):
    with rockoon_cluster.connect() as cluster:
        assert cluster.send(rockoon_topic, b"order 2").queue_offset == 0
"""


def test_a_suite_has_its_cluster_in_one_process_if_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SINGLE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrockoon_single = true\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=250,
        check=False,
    )
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_loading_the_plugin_loads_nothing_else() -> None:
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import rockoon.testing.plugin\n"
        "added = {name for name in set(sys.modules) - before if not name.startswith('rockoon')}\n"
        "assert not added, added\n"
        "assert {'rockoon.local', 'rockoon.net.connection'}.isdisjoint(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
