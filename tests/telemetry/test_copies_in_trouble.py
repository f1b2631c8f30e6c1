"""Alerts about copies of progress fire for real metrics of services, and the status has the
reason."""

import asyncio
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dashboards.evaluation import Series, firing
from prometheus_client.parser import text_string_to_metric_families

import rockoon
from rockoon.cli.logs import state, troubles
from rockoon.local.directory import choose_port
from rockoon_core.disk import Disk
from rockoon_replica.replica_file import ReplicaFile
from support.etcd import EtcdServer
from support.eventually import answered
from support.offset_services import LOG, counting, until, world
from support.waiting import DEADLINE_SECONDS

NAMES = ("offset-0", "offset-1", "offset-2")
RULES = Path(__file__).parents[2] / "deploy/prometheus/rockoon-alerts.yml"
# Longer than any rule waits.
LASTING_SECONDS = 20 * 60


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


class Prometheus:
    """Reads the pages of services that answer, and returns the alerts that fire if nothing
    changes."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        groups = yaml.safe_load(RULES.read_text())["groups"]
        self._rules = [
            rule for group in groups for rule in group["rules"] if "Spark" not in rule["alert"]
        ]

    def listens(self, name: str) -> str:
        if name not in self.ports:
            self.ports[name] = choose_port(set(self.ports.values()))
        return f"127.0.0.1:{self.ports[name]}"

    async def fires(self) -> Mapping[str, list[dict[str, str]]]:
        """Return labels of firing alerts, by alert."""
        series = await asyncio.to_thread(lambda: [*self._series()])
        found = {
            rule["alert"]: [dict(each) for each in firing(rule, series, LASTING_SECONDS)]
            for rule in self._rules
            # Expressions about the past need more than one read.
            if "[" not in rule["expr"] and "time()" not in rule["expr"]
        }
        return {alert: labels for alert, labels in found.items() if labels}

    async def until(self, holds: Callable[[Mapping[str, list[dict[str, str]]]], object]) -> None:
        await answered(self.fires, holds)

    def _series(self) -> Iterator[Series]:
        seconds = np.arange(0, LASTING_SECONDS + 1, 60.0)
        for port in self.ports.values():
            try:
                url = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
                    text = answer.read().decode()
            except OSError:
                # The service is away.
                continue
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = frozenset(sample.labels.items())
                    yield Series(sample.name, labels, seconds, np.full(len(seconds), sample.value))


async def said(client: rockoon.Cluster) -> str:
    """Return the status of the log in `rockoon status`."""
    log = await client.admin.logs.describe(LOG)
    return "\n".join([state(log), *troubles(log, await client.admin.logs.ask_replicas(log))])


async def test_copies_that_are_away_or_damaged_are_told_and_nothing_else_is(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    prometheus, cluster = Prometheus(), "copies-in-trouble"
    listen = prometheus.listens("nameserver")
    async with world(tmp_path, etcd, cluster, metrics_listen=listen) as (services, client):

        def start(name: str) -> None:
            services.start(name, copies=3, metrics_listen=prometheus.listens(name))

        for name in NAMES:
            start(name)
        log = await until(client, counting(3))
        await prometheus.until(lambda fires: not fires)
        assert log.leader is not None
        leader = log.leader.name
        first, second = [name for name in NAMES if name != leader]
        await services.stop(first)
        missing: Any = {"cluster": cluster, "log": LOG}
        await prometheus.until(lambda fires: fires == {"RockoonReplicasMissing": [missing]})
        await services.stop(second)
        await prometheus.until(lambda fires: fires.get("RockoonLogWithoutQuorum") == [missing])
        await answered(
            lambda: said(client), lambda text: f"{leader}: it leads, and accepts no appends" in text
        )
        # No other copy runs, so no leader follows.
        await services.stop(leader)
        ReplicaFile(tmp_path / first, Disk()).doubt()
        start(first)
        unsound = missing | {"node_id": first}
        await prometheus.until(
            lambda fires: (
                fires.get("RockoonReplicaUnsound") == [unsound]
                and fires.get("RockoonLogWithoutLeader") == [{"cluster": cluster}]
                and fires.get("RockoonNotReady") == [{"cluster": cluster, "node_id": first}]
            )
        )
        text = await answered(lambda: said(client), lambda text: "it may have lost" in text)
        assert f"WITHOUT LEADER: {leader} is away, and too few other copies" in text
        assert f"{first}: not connected to the leader; it may have lost records" in text
        for name in (leader, second):
            start(name)
        await prometheus.until(lambda fires: not fires)
        await answered(lambda: said(client), lambda text: text == "led")
