"""Sender, reader and auditor on a real cluster, without Locust around them."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import rockoon
from load import ledger, payload
from load.account import Account
from load.auditor import Auditor
from load.histogram import Histogram
from load.ledger import Kind
from load.options import parser
from load.plan import Plan
from load.reader import RECEIVE, Reader
from load.run import clean_up, plan_of, set_up
from load.sender import SEND, Lane, Sender
from rockoon.testing.disposable import DisposableCluster
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.scripted_nameserver import ScriptedNameserver
from support.tcp_gate import TcpGate

RATE = 500.0
FROZEN_SECONDS = 1.0


def small_plan(cluster: DisposableCluster) -> Plan:
    arguments = ["run", "--scenario", "mixed", "--queues", "2", "--commit", "abc"]
    return plan_of(parser({}).parse_args(arguments), ",".join(cluster.nameservers))


async def lanes_of(cluster: rockoon.Cluster, plan: Plan) -> list[Lane]:
    queues = [q for name in plan.topic_names for q in (await cluster.route(name)).queues]
    return [
        Lane(queue.topic, payload.stream_of(0, number), {"queue": queue})
        for number, queue in enumerate(queues)
    ]


async def send_some(plan: Plan, account: Account, messages: int, *, read: bool) -> bytes:
    """Run a sender, and a reader beside it, until this number of messages is acknowledged and
    received; return their reports."""
    stop = asyncio.Event()
    counts = {SEND: 0, RECEIVE: 0}
    frames = []

    def enough() -> bool:
        deltas = account.take()
        frames.append(deltas.ledger)
        for name, histogram in deltas.latencies.items():
            counts[name] += len(histogram)
        assert not deltas.failures
        return counts[SEND] >= messages and (not read or counts[RECEIVE] >= messages)

    async with rockoon.connect(plan.endpoint) as cluster, asyncio.TaskGroup() as tasks:
        lanes = await lanes_of(cluster, plan)
        sender = Sender(cluster, account, plan.run, lanes, window=500)
        tasks.create_task(sender.run(stop))
        if read:
            group, topics = plan.group_names[0], plan.topic_names
            reader = Reader(cluster, account, plan.run, group, topics, member_id="one")
            tasks.create_task(reader.run(stop))
        await eventually(enough, 60)
        stop.set()
    return b"".join([*frames, account.take().ledger])


def write_ledger(plan: Plan, directory: Path, said: bytes) -> None:
    names = "\n".join([plan.group_names[0], *plan.topic_names])
    raw = ledger.encode(Kind.GROUP, names) + said + ledger.encode(Kind.END)
    (directory / "ledger").write_bytes(raw)


@pytest.mark.parametrize("read", [True, False], ids=["a member", "no member"])
async def test_what_members_leave_unread_the_auditor_reads(
    rockoon_cluster: DisposableCluster, tmp_path: Path, read: bool
) -> None:
    rockoon_cluster.start_stopped()
    plan = small_plan(rockoon_cluster)
    await set_up(plan)
    write_ledger(plan, tmp_path, await send_some(plan, Account(), 2000, read=read))
    verdict = await Auditor(plan, tmp_path).run()
    assert verdict.is_good, verdict.faults
    assert verdict.sent == verdict.acknowledged == verdict.stored > 2000
    assert verdict.groups[plan.group_names[0]].given == verdict.sent
    await clean_up(plan)


async def test_the_ends_of_queues_are_waited_for_while_a_broker_is_away(
    rockoon_cluster: DisposableCluster, tmp_path: Path
) -> None:
    """Otherwise a queue would count as read to its end before any read of it."""
    rockoon_cluster.start_stopped()
    plan = small_plan(rockoon_cluster)
    await set_up(plan)
    await send_some(plan, Account(), 500, read=False)
    broker = rockoon_cluster.brokers[0]
    async with rockoon.connect(plan.endpoint) as cluster, asyncio.TaskGroup() as tasks:
        before = await Auditor(plan, tmp_path).ends(cluster)
        assert sum(before.values()) > 500
        await asyncio.to_thread(rockoon_cluster.kill, broker)
        asked = tasks.create_task(Auditor(plan, tmp_path).ends(cluster))
        await asyncio.to_thread(rockoon_cluster.start, broker)
        assert await asked == before
    await clean_up(plan)


async def test_what_was_acknowledged_and_is_nowhere_is_found(
    rockoon_cluster: DisposableCluster, tmp_path: Path
) -> None:
    rockoon_cluster.start_stopped()
    plan = small_plan(rockoon_cluster)
    await set_up(plan)
    said = await send_some(plan, Account(), 500, read=False)
    claimed = [(payload.stream_of(9, 0), 0, 3)]
    said += ledger.encode(Kind.ACKNOWLEDGED, plan.topic_names[0], claimed)
    async with rockoon.connect(plan.endpoint) as cluster, cluster.producer() as producer:
        stranger = payload.encode(plan.run + 1, 0, 0, np.zeros(1, np.int64), 100)
        await producer.send(plan.topic_names[0], stranger[0])
    write_ledger(plan, tmp_path, said)
    verdict = await Auditor(plan, tmp_path).run()
    assert (verdict.lost, verdict.invented) == (3, 1)
    assert verdict.groups[plan.group_names[0]].missing == 3
    assert not verdict.is_good
    await clean_up(plan)


async def test_a_cluster_that_stands_still_makes_every_message_late_that_was_due(
    tmp_path: Path,
) -> None:
    """Latencies count from the due time of a message: no coordinated omission."""
    account = Account()
    stop = asyncio.Event()
    late, histogram = Histogram(), Histogram()
    loop = asyncio.get_running_loop()

    async with BrokerRoutes() as routes, ScriptedNameserver() as nameserver:
        await routes.create_topic("orders", {"broker-a": 1})
        async with (
            running_broker(tmp_path, [routes.address]) as broker,
            TcpGate(broker.address) as gate,
        ):
            nameserver.put_node("broker-a", gate.address)
            nameserver.put_topic("orders", {"broker-a": 1})
            async with rockoon.connect(nameserver.address) as cluster, asyncio.TaskGroup() as tasks:
                queue = (await cluster.route("orders")).queues[0]
                lanes = [Lane("orders", 0, {"queue": queue})]
                sender = Sender(cluster, account, 1, lanes, rate=RATE, window=50)
                tasks.create_task(sender.run(stop))

                def seen(into: Histogram, count: int) -> bool:
                    into.add_all(account.take().latencies.values())
                    return len(into) >= count

                await eventually(lambda: seen(histogram, 100), 60)
                gate.freeze()
                frozen_at = loop.time()
                await eventually(lambda: loop.time() - frozen_at > FROZEN_SECONDS, 60)
                await gate.open()
                await eventually(lambda: seen(late, int(RATE * FROZEN_SECONDS)), 60)
                stop.set()
    waited = sum(count for ms, count in late.by_ms().items() if ms > FROZEN_SECONDS * 500)
    # Half of the messages of that second waited for half a second or longer.
    assert waited > RATE * FROZEN_SECONDS * 0.4
