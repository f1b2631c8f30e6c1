"""Every service is restarted in turn, as in an upgrade, and no call of a client fails.

Rules while each process gets its SIGTERM, ends, and is replaced at the same address:

- no call of any client raises, and every acknowledged message reaches its readers, once;
- messages of one key are handled in order;
- a call that any broker can serve never waits for the broker that is away; a call that needs this
  broker waits for it, and not much longer.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import rockoon
from rockoon.admin.logs import LogStatus
from rockoon.local import LocalCluster
from support.eventually import answered
from support.everyday_clients import LATER, TOPICS, EverydayClients
from support.seeds import seeds

SECONDS_MAX = 90
LOOK_SECONDS = 0.02
ROUND = ("nameserver-a", "broker-a", "offset", "nameserver-b", "broker-b")
CALLS_BETWEEN = 5
# Allowance beyond the absence of a process: pauses between attempts, and a busy machine.
LATE_SECONDS_MAX = 20.0


class Replaced(NamedTuple):
    """A process that was restarted."""

    name: str
    ended_seconds: float
    away_seconds: float


async def until(holds: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while not holds():
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise AssertionError(f"gave up waiting for {what}") from None


async def replace(local: LocalCluster, name: str) -> Replaced:
    """Stop a process as Kubernetes does, and start another one instead."""
    began = time.monotonic()
    await asyncio.to_thread(local.stop, name)
    ended = time.monotonic()
    assert local.node(name).wait_ended(0) == 0, f"{name} did not end cleanly"
    await asyncio.to_thread(local.start, name, wait=False)
    await local.wait_ready(name)
    return Replaced(name, ended - began, time.monotonic() - began)


async def restart_everything(
    local: LocalCluster,
    clients: EverydayClients,
    order: Sequence[str],
    ready: Callable[[], Awaitable[None]],
) -> list[Replaced]:
    """Restart one after another, the next when all are `ready` and every client has made
    progress."""
    replaced = []
    for name in order:
        done = {client.name: client.done for client in clients.clients}

        def all_go_on(done: dict[str, int] = done) -> bool:
            return all(each.done > done[each.name] + CALLS_BETWEEN for each in clients.clients)

        replaced.append(await replace(local, name))
        await ready()
        await until(all_go_on, f"every client to go on after {name}: {clients.clients}")
    return replaced


def report(clients: EverydayClients, replaced: list[Replaced]) -> None:
    for each in replaced:
        print(f"{each.name:<16}ended in {each.ended_seconds:.2f} s, away {each.away_seconds:.2f} s")
    for client in clients.clients:
        print(client)
    for topic in TOPICS:
        got = clients.reader_of(topic)
        print(
            f"{topic:<16}{len(clients.acknowledged[topic])} acknowledged, {got.repeated(topic)} "
            f"delivered again, longest gap {got.longest_gap_seconds[topic]:.2f} s"
        )


def check(
    clients: EverydayClients, replaced: list[Replaced], *, others: bool, changes_leader: bool
) -> None:
    assert clients.failures == []
    # Delayed messages: at least once. The next leader repeats the former one's newest deliveries.
    for topic in set(TOPICS) - ({LATER} if changes_leader else set()):
        assert clients.reader_of(topic).twice(topic) == [], topic
    for key, numbers in clients.in_order.order.items():
        assert numbers == sorted(numbers), f"key {key!r} is out of order"
    longest = max(each.away_seconds for each in replaced)
    brokers = [each.away_seconds for each in replaced if each.name.startswith("broker")]
    for client in clients.clients:
        assert client.longest_seconds < longest + LATE_SECONDS_MAX, client
        if client.any_broker and others and brokers:
            waited = client.longest_seconds
            assert waited < min(brokers), f"it waited for a broker to return: {client}"


async def all_copies_ready(cluster: rockoon.Cluster) -> None:
    """Wait as the next pod of a StatefulSet does: until every copy leads, or is level."""

    async def logs() -> list[LogStatus]:
        return list((await cluster.admin.status()).logs)

    await answered(logs, lambda found: found and all(log.is_well for log in found))


async def scenario(
    folder: Path, nameservers: int, brokers: int, order: Sequence[str], replicas: int = 1
) -> None:
    async with (
        LocalCluster(folder, nameservers=nameservers, brokers=brokers, replicas=replicas) as local,
        rockoon.connect(local.nameservers, retry_seconds=SECONDS_MAX) as cluster,
    ):
        clients = EverydayClients(cluster, SECONDS_MAX)

        async def ready() -> None:
            if replicas > 1:
                await all_copies_ready(cluster)

        await ready()
        await clients.make_topics("broker-a")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.run())
            await until(lambda: clients.pulled.bodies and clients.in_order.bodies, "the start")
            replaced = await restart_everything(local, clients, order, ready)
            clients.stopping = True
            await until(lambda: not clients.missing(), "readers to catch up")
    report(clients, replaced)
    check(clients, replaced, others=brokers > 1, changes_leader=replicas > 1)


async def test_a_rolling_restart_of_every_service_fails_no_call(tmp_path: Path) -> None:
    await scenario(tmp_path / "cluster", nameservers=2, brokers=2, order=ROUND)


@pytest.mark.soak
async def test_where_there_is_one_of_each_clients_wait_and_fail_no_call(tmp_path: Path) -> None:
    order = ("nameserver-a", "broker-a", "offset")
    await scenario(tmp_path / "cluster", nameservers=1, brokers=1, order=order)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_rolling_restart_of_three_copies_hands_over_first_and_fails_no_call(
    tmp_path: Path,
) -> None:
    brokers, offsets = (
        [f"{log}-{number}" for number in range(3)] for log in ("broker-a", "offset")
    )
    order = ("nameserver-a", *brokers, *offsets, "nameserver-b", *brokers)
    await scenario(tmp_path / "cluster", nameservers=2, brokers=1, order=order, replicas=3)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", seeds(3))
async def test_restarts_in_any_order_again_and_again(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed).choices(ROUND, k=15)
    await scenario(tmp_path / "cluster", nameservers=2, brokers=2, order=order)
