"""Settings of running services, changed by the command and by the page, with three copies."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from deploy.page_runs import REPOSITORY, run_page

import rockoon
from rockoon.admin.access_keys import Permission
from rockoon.admin.live_settings import ProcessSettings, SettingValue
from rockoon.cli.up import environment_of
from rockoon.errors import BodyTooLarge, BrokerNotFound, InvalidArgument, NotPermitted
from rockoon.local.cluster import LocalCluster
from support.eventually import eventually

REPLICAS = ["broker-a-0", "broker-a-1", "broker-a-2"]
LOADED = 3 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"broker": {"commit_log_file_bytes": 16 << 20, "body_bytes_max": LOADED}}
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, replicas=3, access=True, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def root(cluster: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(cluster.nameservers, access=cluster.access) as connection:
        yield connection


async def connection_of(root: rockoon.Cluster, key: str, permission: str) -> rockoon.Cluster:
    """A connection, not open yet, with a new key that the brokers know."""
    made = await root.admin.access_keys.create(key, [Permission.parse(permission)])
    return rockoon.connect(root.nameservers, access=made)


def value_of(process: ProcessSettings, name: str) -> SettingValue:
    return next(each for each in process.settings if each.name == name)


async def test_all_replicas_use_a_new_value_when_the_change_returns(
    cluster: LocalCluster, root: rockoon.Cluster
) -> None:
    """It waits for two seconds at most. The limit applies to messages, the origin is shown, one
    line of one log names the key, and a replica that starts uses the value before it serves."""
    await root.admin.create_topic("sizes", queues_per_broker=1)
    producer = root.producer()
    async with await connection_of(root, "ops", "cluster=admin") as operator:
        found = await operator.admin.settings.set("broker", "body_bytes_max", "1KiB")
        assert [each.process for each in found] == REPLICAS
        for each in found:
            value = value_of(each, "body_bytes_max")
            assert (value.value, value.unit, value.origin) == ("1024", "bytes", "live setting")
            assert value.live is not None
            assert value.live.access_key == "ops"
        with pytest.raises(BodyTooLarge):
            await producer.send("sizes", bytes(2000))
        lines = [
            line
            for name in REPLICAS
            for line in (cluster.directory / f"logs/{name}.log").read_text().splitlines()
            if "audit: " in line
        ]
        assert len(lines) == 1
        assert "access key 'ops' set body_bytes_max to '1KiB' for every broker" in lines[0]
        cluster.restart("broker-a-1")
        [_, restarted, _] = await operator.admin.settings.describe("broker")
        assert value_of(restarted, "body_bytes_max").value == "1024"
        found = await operator.admin.settings.unset("broker", "body_bytes_max")
        for each in found:
            value = value_of(each, "body_bytes_max")
            assert (value.value, value.live) == (str(LOADED), None)
            assert "default" not in value.origin
        await producer.send("sizes", bytes(2000))


@pytest.mark.parametrize(
    ("name", "value", "node", "reason"),
    [
        ("body_byte_max", "1", "", "did you mean 'body_bytes_max'"),
        ("body_bytes_max", "much", "", "is not a valid int"),
        ("body_bytes_max", "1TiB", "", "must be between 1 and 67108864"),
        ("disk_full_percent", "50", "broker-a", "disk_forced_percent"),
        ("store_path", "/tmp", "", "store_path cannot change while the service runs"),
    ],
)
async def test_a_change_that_a_replica_cannot_use_is_refused(
    root: rockoon.Cluster, name: str, value: str, node: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        await root.admin.settings.set("broker", name, value, node)
    found = await root.admin.settings.describe("broker", node)
    assert all(setting.live is None for each in found for setting in each.settings)


async def test_only_a_key_that_may_change_the_cluster_sees_and_changes_settings(
    root: rockoon.Cluster,
) -> None:
    async with await connection_of(root, "watcher", "cluster=read") as watcher:
        with pytest.raises(NotPermitted, match="admin"):
            await watcher.admin.settings.describe("broker")
        with pytest.raises(NotPermitted, match="admin"):
            await watcher.admin.settings.set("broker", "log_level", "debug")
    with pytest.raises(BrokerNotFound, match="broker-z"):
        await root.admin.settings.set("broker", "log_level", "debug", "broker-z")
    with pytest.raises(InvalidArgument, match="log_level has no live setting"):
        await root.admin.settings.unset("broker", "log_level")


@pytest.mark.parametrize("service", ["broker", "offset", "nameserver"])
async def test_a_log_level_selects_lines_and_audit_lines_are_written_always(
    cluster: LocalCluster, root: rockoon.Cluster, service: str
) -> None:
    settings = root.admin.settings
    found = await settings.set(service, "log_level", "error")
    logs = [cluster.directory / f"logs/{each.process}.log" for each in found]

    def lines(text: str) -> list[str]:
        return [line for log in logs for line in log.read_text().splitlines() if text in line]

    await settings.set(service, "calm_seconds", "4")
    assert len(lines("audit: access key 'rockoon' set calm_seconds to '4'")) == 1
    assert not lines("setting calm_seconds is 4")
    await settings.unset(service, "log_level")
    await settings.unset(service, "calm_seconds")
    await eventually(lambda: len(lines("setting calm_seconds is 5.0")) == len(logs))


def test_the_page_runs_as_written(cluster: LocalCluster) -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"ROCKOON_NAMESERVERS": cluster.nameservers[0], "PATH": programs}
    ran = run_page(REPOSITORY / "docs/operate/settings.md", "false", own | environment_of(cluster))
    shown, changed, of_node, removed = (each.output for each in ran)
    assert "listen" in shown
    assert "live setting for every broker" in changed
    assert "live setting for broker-a" in of_node
    assert "live setting" not in removed
