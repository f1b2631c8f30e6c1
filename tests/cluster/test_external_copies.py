"""Clients from another network of logs with copies: each copy has an external address.

client ──▶ nameserver's external listener
       ──▶ a gate in front of each of the three brokers and three offset services
services ──▶ one another, without gates

Calls are signed for the external addresses, and certificates have their host.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.cluster import Cluster
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.message import Message
from support.eventually import answered, eventually
from support.own_connections import own_connections
from support.tcp_gate import TcpGate

# Certificates of a local cluster have this host. The ports of the two networks differ.
OUTSIDE = "127.0.0.1"
TOPIC, GROUP = "orders", "billing"
LOGS = ("broker-a", "offset")


async def led(cluster: Cluster, log: str, *, but: str = "") -> LogDescription:
    """A log once a leader other than the named copy has committed in its epoch."""

    def holds(found: LogDescription) -> bool:
        return found.confirmed and found.leader is not None and found.leader.name != but

    return await answered(lambda: cluster.admin.logs.describe(log), holds)


async def test_a_client_outside_sends_and_consumes_over_changes_of_leader(
    tmp_path: Path,
) -> None:
    ports: dict[str, int] = {}
    for name in ("nameserver", *(f"{log}-{number}" for log in LOGS for number in range(3))):
        ports[name] = choose_port(set(ports.values()))
    outer = {name: f"{OUTSIDE}:{port}" for name, port in ports.items()}
    settings = {name: {"advertise_external": address} for name, address in outer.items()}
    settings["nameserver"] = {"external_listen": outer["nameserver"]}
    async with AsyncExitStack() as stack:
        made = LocalCluster(
            tmp_path, replicas=3, settings=settings, durable=False, tls="mutual", access=True
        )
        local = await stack.enter_async_context(made)
        gates = [
            await stack.enter_async_context(TcpGate(local.node(name).address, OUTSIDE, port))
            for name, port in ports.items()
            if name != "nameserver"
        ]
        cluster = await stack.enter_async_context(
            rockoon.connect(outer["nameserver"], tls=local.tls, access=local.access)
        )
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        got: list[bytes] = []

        def take(message: Message) -> None:
            got.append(bytes(message.body))

        producer = await stack.enter_async_context(cluster.producer(idempotent=True))
        consumer = cluster.push_consumer(GROUP, {TOPIC: "*"}, take, consume_from="first")
        await stack.enter_async_context(consumer)
        sent = [b"%d" % number for number in range(30)]
        await producer.send_many(TOPIC, sent[:10], ordering_key="k")
        for log, bodies in zip(LOGS, (sent[10:20], sent[20:]), strict=True):
            before = await led(cluster, log)
            found = {each.name: each.address for each in before.replicas}
            assert found == {name: outer[name] for name in local.replicas_of(log)}
            assert before.leader is not None
            # The address of the leader leads to the leader, and the others to followers.
            standings = await cluster.admin.logs.ask_replicas(before)
            assert len(standings) == 3
            assert [who for who, each in standings.items() if each.leads] == [before.leader.id]
            await asyncio.to_thread(local.kill, before.leader.name)
            await producer.send_many(TOPIC, bodies, ordering_key="k")
            after = await led(cluster, log, but=before.leader.name)
            assert after.leader is not None
            status = await cluster.admin.status()
            nodes = {each.name: each for each in (*status.brokers, *status.offset_services)}
            assert nodes[log].address == outer[after.leader.name]
            assert nodes[log].error is None
        await eventually(lambda: len(got) >= len(sent))
        assert got == sent

        async def lag() -> int | None:
            return (await cluster.admin.lag(GROUP)).total_lag

        # The next leader of the offset service has the commits.
        assert await answered(lag, lambda found: found == 0) == 0
        dialled = own_connections()
        for gate in gates:
            dialled[gate.target] -= gate.connections
        assert not {each.address for each in local.nodes} & (+dialled).keys()
