"""Logs with copies in a cluster with mutual TLS and access keys: replicas know each other, and lead
in turn.
"""

import asyncio
from pathlib import Path

import pytest

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.errors import NotPermitted
from rockoon.local import LocalCluster
from rockoon.local.authority import Authority
from support.eventually import answered, eventually
from support.waiting import DEADLINE_SECONDS

TOPIC, GROUP = "orders", "billing"


def led_by_three(log: LogDescription) -> bool:
    return log.confirmed and len(log.in_sync) == 3


async def level(cluster: rockoon.Cluster, log: str) -> LogDescription:
    """Return a log once all its copies report that they are ready; each was called with its
    certificate."""

    async def ready() -> int:
        found = await cluster.admin.logs.ask_replicas(await cluster.admin.logs.describe(log))
        return sum(each.ready for each in found.values())

    described: LogDescription = await answered(
        lambda: cluster.admin.logs.describe(log), led_by_three
    )
    await answered(ready, lambda count: count == 3)
    return described


async def test_copies_with_certificates_and_keys_lead_in_turn_and_let_no_stranger_in(
    tmp_path: Path,
) -> None:
    local = LocalCluster(tmp_path, replicas=3, tls="mutual", access=True)
    seen: list[bytes] = []

    async def take(message: rockoon.Message) -> None:
        seen.append(message.body)

    async with (
        local,
        rockoon.connect(local.nameservers, tls=local.tls, access=local.access) as cluster,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        logs = [await level(cluster, name) for name in (*local.logs, "offset")]
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        async with (
            cluster.producer(idempotent=True) as producer,
            cluster.push_consumer(GROUP, {TOPIC: "*"}, take, consume_from="first"),
        ):
            await producer.send(TOPIC, b"before")
            await eventually(lambda: seen == [b"before"])
            for log in logs:
                assert log.leader is not None
                local.kill(log.leader.name)
            await producer.send(TOPIC, b"after")
            await eventually(lambda: seen == [b"before", b"after"])
        # A certificate of the cluster's authority, and of another log.
        assert logs[0].leader is not None
        lost = logs[0].leader.name
        Authority(tmp_path / "tls").issue("broker-b", file_name=lost)
        local.start(lost, wait=False)
        await eventually(lambda: not local.node(lost).running)
        assert "the certificate shown is that of broker-b" in local.node(lost).log_path.read_text()
        # Callers with and without the permission to query copies.
        key = await cluster.admin.access_keys.create("shop")
        async with rockoon.connect(local.nameservers, tls=local.tls, access=key) as stranger:
            with pytest.raises(NotPermitted):
                await stranger.admin.logs.list()
            with pytest.raises(NotPermitted):
                await stranger.admin.logs.set_copies("offset", 1)
