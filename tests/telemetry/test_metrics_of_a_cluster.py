"""A cluster of real processes does a known amount of work; its metrics pages have these numbers."""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from prometheus_client.parser import text_string_to_metric_families

import rockoon
from rockoon import Message
from rockoon.consumer.retry import RetryPolicy
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.transactions.transaction import Resolution
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_proto.v1.offset_pb2 import CommitEntry, CommitRequest, QueueRef
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from support.eventually import answered
from support.waiting import DEADLINE_SECONDS

TOPIC, GROUP = "orders", "billing"
SENT, READ = 40, 25
BODY = b"x" * 100


@dataclass(frozen=True)
class Page:
    """A metrics page at one moment."""

    samples: dict[str, list[tuple[dict[str, str], float]]]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's values with these labels; fails if there is none."""
        found = [
            value for own, value in self.samples.get(name, []) if labels.items() <= own.items()
        ]
        assert found, f"no {name} with {labels}: {self.samples.get(name)}"
        return sum(found)


@dataclass(frozen=True)
class Measured:
    """A cluster whose services have metrics pages, by the node's name."""

    cluster: LocalCluster
    ports: dict[str, int]

    def read(self, node: str) -> Page:
        url = f"http://127.0.0.1:{self.ports[node]}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as answer:
            text = answer.read().decode()
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return Page(samples)

    async def until(self, node: str, condition: Callable[[Page], bool]) -> Page:
        """Read a page until a condition is true; commits appear there a moment later."""
        return await answered(lambda: asyncio.to_thread(self.read, node), condition)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    ports: dict[str, int] = {}
    for node in ("nameserver-a", "broker-a", "offset"):
        ports[node] = choose_port(set(ports.values()))
    settings: dict[str, dict[str, object]] = {
        node: {"metrics_listen": f"127.0.0.1:{port}", "log_format": "json"}
        for node, port in ports.items()
    }
    settings["broker-a"] |= {"commit_log_file_bytes": 16 << 20}
    directory: Path = tmp_path_factory.mktemp("measured")
    with LocalCluster(directory, settings=settings, durable=False) as cluster:
        asyncio.run(work(cluster))
        yield Measured(cluster, ports)


async def work(cluster: LocalCluster) -> None:
    """Send 40 messages one by one, read and commit 25 of them; then one commit comes too late."""
    async with rockoon.connect(cluster.nameservers) as connected:
        await connected.admin.create_topic(TOPIC, queues_per_broker=1)
        async with connected.producer() as producer:
            for number in range(SENT):
                await producer.send(TOPIC, BODY, keys=f"k{number}")
        async with connected.pull_consumer(GROUP, consume_from="first") as consumer:
            await consumer.assign_all(TOPIC)
            got: list[Message] = []
            while len(got) < READ:
                got += await consumer.poll(READ - len(got))
            await consumer.commit()


def test_a_broker_counts_what_it_took_and_gave_by_topic_and_group(measured: Measured) -> None:
    page = measured.read("broker-a")
    own = {"cluster": "rockoon", "node_type": "broker", "node_id": "broker-a", "topic": TOPIC}
    assert page.total("rocketmq_messages_in_total", message_type="normal", **own) == SENT
    assert page.total("rocketmq_messages_out_total", consumer_group=GROUP, **own) >= READ
    taken_bytes = page.total("rocketmq_throughput_in_total", **own)
    assert SENT * len(BODY) < taken_bytes < SENT * (len(BODY) + 300)
    each_bytes = taken_bytes / SENT
    given = page.total("rocketmq_messages_out_total", **own)
    assert page.total("rocketmq_throughput_out_total", **own) == pytest.approx(
        given * each_bytes, rel=0.1
    )


def test_a_broker_tells_how_large_messages_are_and_how_long_calls_took(measured: Measured) -> None:
    page = measured.read("broker-a")
    small = {"topic": TOPIC, "message_type": "normal", "le": "1024.0"}
    for name in ("rocketmq_message_size", "rocketmq_message_size_bytes"):
        assert page.total(f"{name}_bucket", **small) == SENT
        assert page.total(f"{name}_count", topic=TOPIC) == SENT
    assert page.total("rocketmq_message_size_sum", topic=TOPIC) == page.total(
        "rocketmq_throughput_in_total", topic=TOPIC
    )
    answered = {"protocol_type": "grpc", "response_code": "success"}
    appends = page.total("rocketmq_rpc_latency_count", request_code="append", **answered)
    assert appends == page.total("rockoon_appended_batches_total")
    pulls = {"request_code": "pull", "is_long_polling": "true", **answered}
    assert page.total("rocketmq_rpc_latency_milliseconds_count", **pulls) >= 1
    assert page.total("rocketmq_rpc_latency_sum", **pulls) > 0


def test_a_broker_tells_of_its_store(measured: Measured) -> None:
    page = measured.read("broker-a")
    assert page.total("rockoon_ready") == 1
    assert page.total("rocketmq_storage_flush_behind_bytes") == 0
    assert page.total("rocketmq_storage_dispatch_behind_bytes") == 0
    assert page.total("rocketmq_storage_message_reserve_time") >= 0
    assert page.total("rocketmq_storage_size") == page.total("rocketmq_storage_size_bytes") > 0
    assert page.total("rockoon_log_end_bytes_total") > SENT * len(BODY)
    assert page.total("rockoon_appended_batches_total") >= SENT
    assert page.total("rockoon_sync_wait_seconds_total") > 0
    assert page.total("rockoon_sync_wait_seconds_max") < DEADLINE_SECONDS
    assert page.total("rocketmq_topic_number") >= 1
    assert page.total("rocketmq_broker_permission") == 6
    assert 0 < page.total("rockoon_disk_used_ratio") <= 1
    assert 0 < page.total("rockoon_recovery_seconds") < DEADLINE_SECONDS
    assert page.total("process_resident_memory_bytes") > 1 << 20


async def test_the_offset_service_tells_lag_under_rocketmqs_names(measured: Measured) -> None:
    def known(page: Page) -> bool:
        return page.total("rocketmq_consumer_lag_messages", **of_group) == SENT - READ

    of_group = {"consumer_group": GROUP, "topic": TOPIC, "is_retry": "false"}
    page = await measured.until("offset", known)
    assert page.total("rocketmq_consumer_lag_latency", **of_group) > 0
    assert page.total("rocketmq_consumer_lag_latency_milliseconds", **of_group) > 0
    assert page.total("rocketmq_consumer_ready_messages", **of_group) == SENT - READ
    assert page.total("rocketmq_consumer_inflight_messages", **of_group) == 0
    # The queue has no owner now, so the oldest uncommitted message is the oldest unpulled one.
    assert (
        0
        < page.total("rocketmq_consumer_queueing_latency", **of_group)
        == page.total("rocketmq_consumer_lag_latency", **of_group)
    )
    assert page.total("rockoon_consumer_lost_messages", **of_group) == 0
    assert page.total("rockoon_consumer_lag_unknown_queues", **of_group) == 0
    assert page.total("rockoon_lag_skipped_groups") == 0
    # 72 hours and on to the next hour of deletions, unless the disk of this machine is full.
    assert 0 <= page.total("rockoon_consumer_time_to_loss_seconds", **of_group) <= 97 * 3600


async def test_the_offset_service_counts_starts_commits_and_refusals(measured: Measured) -> None:
    page = await asyncio.to_thread(measured.read, "offset")
    assert page.total("rockoon_starts_total", reason="first") >= 1
    taken, fenced = page.total("rockoon_commits_total"), page.total("rockoon_commits_fenced_total")
    assert taken >= 1
    node = measured.cluster.node("offset")
    request = CommitRequest(
        group=GROUP,
        entries=[
            CommitEntry(
                queue=QueueRef(topic=TOPIC, broker="broker-a", queue_id=0), offset=30, epoch=9_999
            )
        ],
    )
    async with aio.insecure_channel(node.address) as channel:
        reply = await OffsetServiceStub(channel).Commit(request, timeout=DEADLINE_SECONDS)
    assert reply.results[0].error.code == Error.FENCED
    after = await asyncio.to_thread(measured.read, "offset")
    assert after.total("rockoon_commits_fenced_total") == fenced + 1
    assert after.total("rockoon_commits_refused_total", error="fenced") == fenced + 1
    assert after.total("rockoon_commits_total") == taken
    assert after.total("rockoon_journal_bytes") > 0
    assert after.total("rockoon_journal_syncs_total") >= 1


def test_a_nameserver_tells_what_is_in_the_routes(measured: Measured) -> None:
    page = measured.read("nameserver-a")
    assert page.total("rockoon_nodes", kind="broker") == 1
    assert page.total("rockoon_nodes", kind="offset_service") == 1
    assert page.total("rocketmq_topic_number") >= 1
    assert page.total("rocketmq_consumer_group_number") >= 1
    assert page.total("rockoon_etcd_reachable") == 1
    name = "rockoon_etcd_request_milliseconds_count"
    for request in ("txn", "range", "lease_grant", "watch"):
        assert page.total(name, request=request, result="success") >= 1
    assert page.total("rocketmq_rpc_latency_count", request_code="create_topic") == 1
    assert page.total("rockoon_route_revision") > 0


def test_a_log_line_is_a_json_object_that_names_its_service_and_node(measured: Measured) -> None:
    lines = measured.cluster.node("broker-a").log_path.read_text().splitlines()
    assert lines
    first = json.loads(lines[0])
    assert first["service"] == "broker"
    assert first["node"] == "broker-a"
    assert first["level"] == "INFO"
    assert first["message"]
    assert "trace_id" not in first


async def test_a_broker_counts_what_became_of_messages_that_went_another_way(
    measured: Measured,
) -> None:
    """Transactions, delays, failed deliveries; and the connected clients in the meantime."""

    def in_vain(message: Message) -> None:
        raise ValueError("never satisfied")

    def all_done(page: Page) -> bool:
        names = ("rocketmq_timer_dequeue_total", "rockoon_messages_returned_total")
        return all(
            page.total(name) == 1 for name in (*names, "rocketmq_send_to_dlq_messages_total")
        )

    def connected_to(page: Page) -> set[str]:
        found = page.samples.get("rocketmq_consumer_connections", [])
        assert all(labels["consume_mode"] == "clustering" for labels, _ in found)
        return {labels["consumer_group"] for labels, value in found if value == 1}

    later = RetryPolicy(delay_levels=(18,))
    at_once: dict[str, Any] = {"consume_from": "first"}
    async with rockoon.connect(measured.cluster.nameservers) as connected:
        await connected.admin.create_topic("aside", queues_per_broker=1)
        async with (
            connected.producer() as producer,
            connected.transactional_producer("payers", check=unsure) as payer,
            connected.push_consumer("shaky", {"aside": "*"}, in_vain, redelivery=later, **at_once),
            connected.push_consumer(
                "strict", {"aside": "*"}, in_vain, redelivery=RetryPolicy(attempts_max=0), **at_once
            ),
        ):
            await producer.send("aside", b"in vain")
            await producer.send(TOPIC, BODY, delay_seconds=0.05)
            await producer.send(TOPIC, BODY, delay_seconds=3600)
            for _ in range(2):
                async with payer.transaction(TOPIC, BODY):
                    pass
            with contextlib.suppress(KeyError):
                async with payer.transaction(TOPIC, BODY):
                    raise KeyError("rolled back")
            await payer.begin(TOPIC, BODY)
            page = await measured.until("broker-a", all_done)
            assert page.total("rocketmq_producer_connections") >= 1
            await measured.until("offset", lambda seen: connected_to(seen) >= {"shaky", "strict"})
    assert page.total("rocketmq_commit_messages_total") == 2
    assert page.total("rocketmq_rollback_messages_total") == 1
    assert page.total("rocketmq_half_messages") == 1
    # One was sent delayed, and one comes again in two hours.
    assert page.total("rocketmq_timing_messages") == 2
    for message_type, sent in (("delay", 2), ("transaction", 4)):
        kind = {"topic": TOPIC, "message_type": message_type}
        assert page.total("rocketmq_messages_in_total", **kind) == sent


def unsure(_: Message) -> Resolution:
    return Resolution.UNKNOWN
