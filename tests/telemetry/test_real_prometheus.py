"""Each query of each dashboard and each alert rule, by a real Prometheus that reads a cluster."""

import asyncio
import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from operator import not_
from pathlib import Path
from typing import Any

import pytest
from broker.test_generations import LateClock, latest, send
from telemetry.real_prometheus import RULES, Prometheus, program, prometheus

import rockoon
from bench.compare.programs import ROOT, NotHere
from gateway.consumers import Consumer, handle
from gateway.wire_client import WireClient, consumer_settings, message
from rockoon.consumer.retry import RetryPolicy
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.transactions.transaction import Resolution
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.v1.nameserver_pb2 import GroupConfig
from support.broker import RunningBroker, running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import answered, eventually
from support.everyday_clients import PACE_SECONDS
from support.generations import compact_over_the_wire

pytestmark = pytest.mark.collector

DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
SECONDS_MAX = 90.0
RUNBOOK = "https://docs.example.com/alerts.html#rockooncompactionlate"
MEMORY = Path("/dev/shm")
# Queries without data in this cluster, by a part of the query, and why.
KNOWN_EMPTY = {
    "rockoon_spark_job_": "no Spark job runs",
    "rockoon_consumer_time_to_loss_seconds": "no message can be lost: retention deletes nothing",
    'result="failure"': "etcd answers",
    "rockoon_commits_refused_total": "no commit is refused",
    "rockoon_log_changes_total": "it counts once",
    'response_code!="success"': "no call of a broker fails",
    "rockoon_gateway_parked_receivers": "each receive finds messages",
    'is_long_polling="false"': "each reader waits for messages",
    "rockoon_compaction_records": "no topic has a generation",
    "rockoon_compaction_generation": "no topic has a generation",
}


def queries() -> Iterator[tuple[str, str]]:
    """Panel and query of all dashboards, with any value for each variable."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "20s")
                query = re.sub(r"\$\w+", ".*", query)
                yield f"{path.stem}: {panel['title']}", query


@asynccontextmanager
async def busy(local: LocalCluster) -> AsyncIterator[None]:
    """Clients of all kinds, until the end of the block."""
    failed: set[str] = set()

    async def deliver(got: rockoon.Message) -> None:
        if got.queue_offset % 5 == 0 and got.message_id not in failed:
            failed.add(got.message_id)
            raise ValueError("no such address")
        if got.queue_offset % 7 == 0:
            raise ValueError("given up")

    async def work() -> None:
        number = 0
        while True:
            number += 1
            await producer.send_many("orders", [b"o"] * 20)
            await producer.send("orders", b"later", delay_seconds=5)
            for resolution in (Resolution.COMMIT, Resolution.ROLLBACK):
                async with till.transaction("orders", b"paid") as sale:
                    if resolution is Resolution.ROLLBACK:
                        await sale.rollback()
            await client.send(message("by-gateway", b"g", f"m{number}"))
            await client.send(message("by-gateway", b"g" * (5 << 20), f"large{number}"))
            found = await receiver.receive(wait=0.5)
            await receiver.acknowledge(*map(handle, found[1:]))
            for each in found[:1]:
                await receiver.change(handle(each), 0.1)
            await asyncio.sleep(PACE_SECONDS)

    assert local.gateway is not None
    async with AsyncExitStack() as opened:
        cluster = await opened.enter_async_context(rockoon.connect(local.nameservers))
        await cluster.admin.create_topic("orders", queues_per_broker=1)
        await cluster.admin.create_topic("by-gateway", queues_per_broker=1)
        await cluster.admin.create_topic(
            "latest", queues_per_broker=1, attributes={"cleanup.policy": "COMPACTION"}
        )
        await cluster.admin.create_group(GroupConfig(name="couriers"))
        producer = await opened.enter_async_context(cluster.producer())
        till = await opened.enter_async_context(
            cluster.transactional_producer("tills", check=lambda _: Resolution.UNKNOWN)
        )
        client = await opened.enter_async_context(WireClient(local.gateway))
        stream = client.telemetry()
        await stream.tell(consumer_settings("couriers", "by-gateway"))
        opened.push_async_callback(stream.close)
        await client.heartbeat(d.PUSH_CONSUMER, "couriers")
        receiver = Consumer(client, "couriers", "by-gateway")
        policy = RetryPolicy(delay_levels=(1,), attempts_max=2)
        await opened.enter_async_context(
            cluster.push_consumer(
                "delivery", {"orders": "*"}, deliver, consume_from="first", redelivery=policy
            )
        )
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        working = tasks.create_task(work())
        try:
            yield
        finally:
            working.cancel()


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Prometheus]:
    try:
        program("prometheus")
    except NotHere as absent:
        pytest.skip(str(absent))
    # A port for each process: the copies of a log have settings of their own.
    names = ["nameserver-a", "gateway"]
    names += [f"{log}-{number}" for log in ("broker-a", "offset") for number in range(3)]
    ports: dict[str, int] = {}
    for name in names:
        ports[name] = choose_port(set(ports.values()))
    settings: dict[str, dict[str, object]] = {
        name: {"metrics_listen": f"127.0.0.1:{port}"} for name, port in ports.items()
    }
    settings["gateway"] |= {"create_groups": True}
    pages = {"rockoon": [f"127.0.0.1:{port}" for port in ports.values()]}
    async with LocalCluster(
        tmp_path / "cluster", replicas=3, settings=settings, durable=False, gateway=0
    ) as local:
        with prometheus(tmp_path, pages) as running:
            async with busy(local):
                yield running


@pytest.mark.timeout(300)
async def test_each_query_of_each_dashboard_has_data_and_each_rule_is_evaluated(
    asked: Prometheus,
) -> None:
    wanted = {
        query: panel for panel, query in queries() if not any(part in query for part in KNOWN_EMPTY)
    }
    assert len(wanted) > 100

    def has_all() -> bool:
        # Some queries have data only while clients make the measured calls.
        for query in [query for query in wanted if asked.query(query)]:
            del wanted[query]
        return not wanted

    with suppress(TimeoutError):
        await eventually(has_all, SECONDS_MAX)
    assert wanted == {}
    # Queries without data are valid too: `query` raises an error for an invalid one.
    for _, query in queries():
        asked.query(query)
    rules = asked.rules()
    assert len(rules) == RULES.read_text().count("- alert:")
    unwell = {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
    assert unwell == {}


async def test_a_late_compaction_fires_from_a_scrape_and_a_generation_ends_the_alert(
    tmp_path: Path,
) -> None:
    try:
        program("prometheus")
    except NotHere as absent:
        pytest.skip(str(absent))
    # The rule waits for two hours, a run of the CronJob for one.
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.read_text().replace("for: 2h", "for: 1s"))
    page = f"127.0.0.1:{choose_port()}"
    store = tmp_path / "store"

    def running(nameserver: BrokerRoutes, hours: int) -> AbstractAsyncContextManager[RunningBroker]:
        clock = LateClock(hours)
        return running_broker(store, [nameserver.address], clock=clock, metrics_listen=page)

    async with BrokerRoutes() as nameserver:
        await latest(nameserver)
        async with running(nameserver, 0) as broker:
            await send(broker, "a=1")
        async with running(nameserver, 27) as broker:
            with prometheus(tmp_path, {"rockoon": [page]}, rules) as asked:

                async def firing() -> list[dict[str, Any]]:
                    alerts = await asyncio.to_thread(asked.alerts)
                    return [
                        alert
                        for alert in alerts
                        if alert["labels"]["alertname"] == "RockoonCompactionLate"
                        and alert["state"] == "firing"
                    ]

                [alert] = await answered(firing, len)
                assert alert["labels"]["node_id"] == "broker-a"
                told = alert["annotations"]
                assert told["runbook_url"] == RUNBOOK
                assert re.fullmatch(
                    "No compaction has succeeded at broker-a: a message waits for 1d 3h .*",
                    told["summary"],
                )
                await compact_over_the_wire(broker, store, tmp_path / "copy", "job-1")
                await answered(firing, not_)


@pytest.mark.timeout(1200)
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    try:
        promtool = program("promtool")
    except NotHere as absent:
        pytest.skip(str(absent))
    tests = sorted(map(str, RULES.parent.glob("*-test.yml")))
    # promtool makes and syncs a database for each test: minutes on a busy disk, and 45 s of CPU.
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for command in (["check", "rules", str(RULES)], ["test", "rules", *tests]):
            done = subprocess.run(
                [promtool, *command],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "TMPDIR": folder},
            )
            assert done.returncode == 0, done.stdout + done.stderr
