"""A broker is drained under load and removed: no call fails, no message is lost."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from deploy.page_runs import REPOSITORY, Ran, run_page

import rockoon
from rockoon.admin.drains import DrainAdmin, DrainReport
from rockoon.consumer.consume_result import ConsumeResult
from rockoon.consumer.redelivery import LocalRedelivery
from rockoon.consumer.retry import RetryPolicy
from rockoon.errors import (
    BrokerNotFound,
    BrokerUnavailable,
    InvalidArgument,
    RockoonError,
    StoreNotWritable,
)
from rockoon.local.cluster import LocalCluster
from rockoon.message import Message
from rockoon.transactions.transaction import Resolution
from rockoon_core.message_queue import MessageQueue
from support.consumer_settings import grouped
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

TOPIC, GROUP = "orders", "billing"
DRAINED, OTHER = "broker-b", "broker-a"
SETTINGS = {"broker": {"commit_log_file_bytes": 16 << 20, "delay_levels": "1s 1s 1s 1s"}}
QUICK = RetryPolicy(delay_levels=(1,), local=LocalRedelivery(0.1, 0.5))
# Messages of each kind after a point in time; enough for some batches on each broker.
MORE = 60


class Load:
    """Producers of all kinds, which send without a pause until `stop`.

    Attributes:
        sent: bodies of acknowledged messages.
        brokers: broker of each acknowledged message, by kind.
    """

    def __init__(self, cluster: rockoon.Cluster) -> None:
        self._cluster = cluster
        self._stopped = asyncio.Event()
        self.sent: set[bytes] = set()
        self.brokers: dict[str, list[str]] = {}

    async def run(self) -> None:
        producer = self._cluster.producer()
        numbered = self._cluster.producer(idempotent=True)
        payer = self._cluster.transactional_producer("payers", check=lambda _: Resolution.COMMIT)
        async with producer, numbered, payer, asyncio.TaskGroup() as tasks:

            async def plain(body: bytes, _number: int) -> MessageQueue:
                return (await producer.send(TOPIC, body)).queue

            async def by_key(body: bytes, number: int) -> MessageQueue:
                return (await numbered.send(TOPIC, body, ordering_key=f"k{number % 9}")).queue

            async def delayed(body: bytes, _number: int) -> MessageQueue:
                return (await producer.send(TOPIC, body, delay_seconds=1)).queue

            async def in_transactions(body: bytes, _number: int) -> MessageQueue:
                async with payer.transaction(TOPIC, body) as transaction:
                    return transaction.queue

            for send in (plain, by_key, delayed, in_transactions):
                tasks.create_task(self._send(send.__name__, send))

    async def _send(self, kind: str, send: object) -> None:
        brokers = self.brokers.setdefault(kind, [])
        while not self._stopped.is_set():
            body = f"{kind}-{len(brokers)}".encode()
            queue = await send(body, len(brokers))  # type: ignore[operator]
            brokers.append(queue.broker)
            self.sent.add(body)

    async def more(self) -> dict[str, list[str]]:
        """Wait for more messages of each kind, and return their brokers."""
        before = {kind: len(brokers) for kind, brokers in self.brokers.items()}
        await eventually(
            lambda: all(len(self.brokers[kind]) >= count + MORE for kind, count in before.items())
        )
        return {kind: self.brokers[kind][count:] for kind, count in before.items()}

    def stop(self) -> None:
        self._stopped.set()


@asynccontextmanager
async def consuming(cluster: rockoon.Cluster) -> AsyncIterator[set[bytes]]:
    """Consume in a group whose handler fails at first on each tenth message."""
    handled: set[bytes] = set()

    async def handle(message: Message) -> ConsumeResult:
        if message.body.endswith(b"0") and message.attempt == 1:
            return ConsumeResult.LATER
        handled.add(message.body)
        return ConsumeResult.SUCCESS

    chosen = {"consume_from": "first", "commit_seconds": 0.1, "redelivery": QUICK}
    async with cluster.push_consumer(GROUP, {TOPIC: "*"}, handle, **grouped(chosen)):
        yield handled


def run_commands_of_page(local: LocalCluster) -> list[Ran]:
    environment = {
        "ROCKOON_NAMESERVERS": local.nameservers[0],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return run_page(REPOSITORY / "docs/operate/drain.md", "false", environment)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_under_load_no_call_fails_and_no_message_is_lost(
    tmp_path: Path, replicas: int
) -> None:
    with LocalCluster(tmp_path, brokers=2, replicas=replicas, settings=SETTINGS) as local:
        async with (
            asyncio.timeout(3 * DEADLINE_SECONDS),
            rockoon.connect(local.nameservers) as cluster,
            rockoon.connect(local.nameservers) as reader,
        ):
            await cluster.admin.create_topic(TOPIC, queues_per_broker=2)
            load = Load(cluster)
            async with consuming(reader) as handled, asyncio.TaskGroup() as tasks:
                loading = tasks.create_task(load.run())
                await eventually(lambda: len(load.brokers) == 4)
                before = await load.more()
                assert all(DRAINED in brokers for brokers in before.values())

                report = await cluster.admin.drains.drain(DRAINED)
                assert report.drained
                assert not report.is_removable
                for kind, brokers in (await load.more()).items():
                    assert DRAINED not in brokers[MORE // 2 :], kind
                report = await cluster.admin.drains.wait(DRAINED)
                assert report.is_removable, report
                await load.more()
                assert (await cluster.admin.drains.report(DRAINED)).is_removable

                removed = await cluster.admin.drains.remove(DRAINED)
                # TOPIC, and the retry topic of the group.
                assert (removed.topics, removed.live) == (2, True)
                nodes = local.replicas_of(DRAINED) if replicas > 1 else [DRAINED]
                for node in nodes:
                    local.stop(node)
                await cluster.admin.drains.remove(DRAINED)
                await load.more()
                load.stop()
                await loading
                await eventually(lambda: load.sent <= handled)
                status = await cluster.admin.status()
                assert status.healthy
                assert [each.log.name for each in status.logs if DRAINED in each.log.name] == []


async def test_a_drain_survives_a_restart_and_is_refused_where_producers_have_no_other_broker(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, brokers=2, settings=SETTINGS) as local:
        async with rockoon.connect(local.nameservers) as cluster, cluster.producer() as producer:
            drains = cluster.admin.drains
            drained, undrained = await asyncio.to_thread(run_commands_of_page, local)
            assert "drained and empty: it can be removed" in drained.output
            assert "not drained: it accepts messages" in undrained.output
            await cluster.admin.create_topic("alone", placements={DRAINED: 1})
            with pytest.raises(InvalidArgument, match="alone: these topics have queues on no"):
                await drains.drain(DRAINED)
            await producer.send("alone", b"x")
            report = await drains.drain(DRAINED, force=True)
            with pytest.raises(InvalidArgument, match="no other broker accepts messages"):
                await drains.drain(OTHER)
            report = await drains.wait(DRAINED)
            assert report.is_finished
            assert not report.is_removable
            assert report.without_readers == {"alone": 1}

            local.stop(DRAINED)
            async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(drains.wait(DRAINED))
                with pytest.raises((BrokerNotFound, BrokerUnavailable)):
                    await drains.report(DRAINED)
                await asyncio.to_thread(local.start, DRAINED)
            assert waiting.result().drained
            await eventually(lambda: cluster.routes.drained == {DRAINED})
            await cluster.admin.create_topic("new")
            assert {each.broker for each in (await cluster.route("new")).queues} == {OTHER}
            async with cluster.producer(delivery_timeout_seconds=1) as impatient:
                with pytest.raises(StoreNotWritable, match="the broker is drained"):
                    await impatient.send("alone", b"x")
            await drains.undrain(DRAINED)
            await producer.send("alone", b"x")
            await cluster.admin.create_topic("newer")
            assert len({each.broker for each in (await cluster.route("newer")).queues}) == 2


async def test_a_wait_ends_with_the_reason_if_the_broker_is_undrained_or_removed_meanwhile(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, brokers=2, settings=SETTINGS) as local:
        async with (
            asyncio.timeout(2 * DEADLINE_SECONDS),
            rockoon.connect(local.nameservers) as cluster,
            cluster.producer() as producer,
        ):
            drains = cluster.admin.drains
            await cluster.admin.create_topic(TOPIC, placements={DRAINED: 1, OTHER: 1})
            queue = MessageQueue(TOPIC, DRAINED, 0)
            await producer.send(TOPIC, b"x", queue=queue, delay_seconds=3600)
            await drains.drain(DRAINED)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(failure_of(drains.wait(DRAINED)))
                await drains.undrain(DRAINED)
            assert "broker 'broker-b' is not drained any more" in waiting.result()
            await drains.drain(DRAINED)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(failure_of(drains.wait(DRAINED)))
                await drains.remove(DRAINED, force=True)
                await asyncio.to_thread(local.stop, DRAINED)
                await drains.remove(DRAINED, force=True)
            assert "broker 'broker-b' was removed from the cluster" in waiting.result()


class Scripted(DrainAdmin):
    """Drains of one broker, whose reports are those of a script.

    Args:
        script: a reply of the broker, or its error, for each report.
    """

    def __init__(self, *script: DrainReport | RockoonError) -> None:
        super().__init__(cast(rockoon.Cluster, None))
        self._script = iter(script)

    async def report(self, broker: str) -> DrainReport:
        assert broker == DRAINED
        found = next(self._script)
        if isinstance(found, RockoonError):
            raise found
        return found


async def test_a_wait_expects_the_drain_only_from_a_broker_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SETTING_SECONDS_MAX", "POLL_SECONDS"):
        monkeypatch.setattr(f"rockoon.admin.drains.{name}", 0.0)
    busy = DrainReport(DRAINED, True, True, True, 1, (), "", 0, 0, {}, {}, {})
    # Of a broker that has just started, and has not received its live settings.
    started = replace(busy, drained=False, closed=False)
    empty, away = replace(busy, unread_messages=0), BrokerUnavailable(broker=DRAINED)
    script = (busy, away, started, away, started, busy, started, empty)
    assert await Scripted(*script).wait(DRAINED) == empty
    with pytest.raises(InvalidArgument, match="not drained any more"):
        await Scripted(busy, started, started, empty).wait(DRAINED)


async def failure_of(call: Awaitable[object]) -> str:
    with pytest.raises((BrokerNotFound, InvalidArgument)) as failed:
        await call
    return str(failed.value)
