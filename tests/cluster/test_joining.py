"""What a node's process does that comes to a cluster it does not fit."""

import shutil
from pathlib import Path

import pytest

from rockoon.local.cluster import LocalCluster
from rockoon.local.process import LocalClusterError
from support.eventually import eventually


async def test_a_broker_that_comes_to_another_cluster_ends_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path) as cluster:
        assert cluster.brokers == ["broker-a"]
    shutil.rmtree(tmp_path / "etcd")
    cluster = LocalCluster(tmp_path)
    with pytest.raises(LocalClusterError) as failed, cluster:
        pytest.fail("it started")
    said = str(failed.value)
    assert "broker-a did not start (exit status 78)" in said
    assert "point nameservers at its own, or start with accept_cluster_id = " in said
    accepted = said.rpartition("accept_cluster_id = ")[2][:16]
    with LocalCluster(tmp_path, settings={"broker": {"accept_cluster_id": accepted}}) as cluster:
        assert all(node.ready for node in cluster.nodes)


async def test_a_broker_with_other_settings_than_the_rest_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.add_broker(delay_levels="1s 2s", flush="async")
        log = (tmp_path / "logs/broker-b.log").read_text
        first = 'flush = "async", and "sync" at \'broker-a\''
        await eventually(lambda: f"not as in the rest of the cluster: {first}" in log(), 30.0)
        assert 'not as in the rest of the cluster: delay_levels = "1s 2s", and "1s 5s' in log()
        assert "reserved_hours" not in log()
