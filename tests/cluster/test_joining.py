"""Behaviour of a node's process that joins a cluster with other settings."""

import shutil
from pathlib import Path

import pytest

from rockoon.local.cluster import LocalCluster
from rockoon.local.process import LocalClusterError
from support.eventually import eventually


def refusal(folder: Path, settings: dict[str, dict[str, object]]) -> str:
    """Return the output of the node that does not start."""
    cluster = LocalCluster(folder, settings=settings)
    with pytest.raises(LocalClusterError) as failed, cluster:
        pytest.fail("it started")
    return str(failed.value)


async def test_nodes_that_come_to_another_cluster_end_and_say_what_to_do(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        assert cluster.brokers == ["broker-a"]
    shutil.rmtree(tmp_path / "etcd")
    refusals = {
        "broker-a": ("broker", "accept_cluster_id"),
        "offset": ("offset", "accept_etcd_cluster_id"),
    }
    settings: dict[str, dict[str, object]] = {}
    # The nodes start at the same time, so either can be the first that is refused.
    while refusals:
        said = refusal(tmp_path, settings)
        node = said.partition(" did not start (exit status 78)")[0]
        kind, setting = refusals.pop(node)
        assert "point " in said
        assert f"with {setting} = " in said
        settings[kind] = {setting: said.rpartition(f"{setting} = ")[2][:16]}
    with LocalCluster(tmp_path, settings=settings) as cluster:
        assert all(node.ready for node in cluster.nodes)


async def test_a_broker_with_other_settings_than_the_rest_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.add_broker(delay_levels="1s 2s", flush="async")
        log = (tmp_path / "logs/broker-b.log").read_text
        first = 'flush = "async", and "sync" at \'broker-a\''
        second = 'delay_levels = "1s 2s", and "1s 5s'
        said = [f"setting differs from the rest of the cluster: {each}" for each in (first, second)]
        await eventually(lambda: all(each in log() for each in said))
        assert "reserved_hours" not in log()
