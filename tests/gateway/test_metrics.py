"""Metrics of a gateway: calls of its clients, with a bounded number of labels."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from grpc import aio

import rockoon
from gateway.consumers import Consumer
from gateway.gateways import running_gateway
from gateway.metrics_page import MetricsPage, metrics_page
from gateway.wire_client import WireClient, message
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon_gateway.calls import OTHERS, SERIES_MAX, SeriesCounts
from rockoon_gateway.metrics import TABLE
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from support.eventually import answered


@dataclass(frozen=True)
class Measured:
    """A gateway with a metrics page, and a client of it."""

    client: WireClient
    port: int

    async def page(self) -> MetricsPage:
        return await metrics_page(self.port)


@pytest.fixture
async def measured(local_cluster: LocalCluster) -> AsyncIterator[Measured]:
    port = choose_port(set())
    async with (
        running_gateway(local_cluster, metrics_listen=f"127.0.0.1:{port}") as gateway,
        WireClient(gateway.address) as client,
    ):
        yield Measured(client, port)


async def test_what_clients_call_themselves_makes_no_series(measured: Measured) -> None:
    """x-mq-language is any text; a type that the protocol does not have is refused."""
    words = ["JAVA", "GO", "PYTHON", "HTTP", "RUST", "DOTNET", "CPP", "java", "", "Jäva".encode()]
    words += [f"language-{number}" for number in range(50)]
    for number, word in enumerate(words):
        key = "x-mq-language" if isinstance(word, str) else "x-mq-language-bin"
        metadata = (("x-mq-client-id", f"client-{number}"), (key, word))
        request = pb.HeartbeatRequest(client_type=d.PRODUCER)
        await measured.client.stub.Heartbeat(request, metadata=metadata)
    for number in range(50, 90):
        settings = d.Settings(client_type=number, publishing=d.Publishing())  # type: ignore[arg-type]
        stream = measured.client.stub.Telemetry(
            metadata=(("x-mq-client-id", f"type-{number}"), ("x-mq-language", "GO"))
        )
        await stream.write(pb.TelemetryCommand(settings=settings))
        # The settings are refused, but the client has called.
        with pytest.raises(aio.AioRpcError, match="UNRECOGNIZED_CLIENT_TYPE"):
            await stream.read()
    page = await measured.page()
    clients = "rockoon_gateway_clients"
    assert page.values_of(clients, "language") == {
        *("java", "go", "python", "node_js", "rust", "dotnet", "cpp", "other")
    }
    assert page.values_of(clients, "client_type") == {"producer", "client_type_unspecified"}
    assert page.total(clients, language="java") == 2
    assert page.total(clients, language="other") == 52
    assert page.total(clients) == len(words) + 40


async def test_messages_are_counted_by_topic_and_by_who_got_them(
    measured: Measured, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("measured", queues_per_broker=1)
    consumer = Consumer(measured.client, "measurers", "measured")
    # The group begins with a topic's first message.
    await measured.client.send(*(message("measured", message_id=f"m{n}") for n in range(3)))
    (handle, *_) = [m.system_properties.receipt_handle for m in await consumer.receive_all(3)]
    await consumer.acknowledge(handle)
    page = await measured.page()
    sent = page.total("rockoon_gateway_messages_in_total", topic="measured", message_type="normal")
    assert sent == 3
    given = {"topic": "measured", "consumer_group": "measurers"}
    assert page.total("rockoon_gateway_messages_out_total", **given) == 3
    # All metrics of alerts and of the dashboard exist; these two have separate tests.
    assert {metric.name for metric in TABLE} - page.samples.keys() == {
        "rockoon_gateway_refusals_total",
        "rockoon_gateway_parked_receivers",
    }


async def test_receivers_that_wait_are_counted_by_group(
    measured: Measured, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("empty", queues_per_broker=1)
    consumer = Consumer(measured.client, "waiters", "empty")
    name = "rockoon_gateway_parked_receivers"
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(consumer.frames(wait=20.0)) for _ in range(2)]
        page = await answered(measured.page, lambda page: page.total(name) == 2)
        assert page.total(name, consumer_group="waiters") == 2
        for each in waiting:
            each.cancel()
    await answered(measured.page, lambda page: page.total(name) == 0)


async def test_refusals_are_counted_by_what_was_asked_and_answered(measured: Measured) -> None:
    client = measured.client
    assert (await client.send(message("nowhere"))).status.code == Code.TOPIC_NOT_FOUND
    acknowledged = await Consumer(client, "refused", "nowhere").acknowledge("no handle")
    assert acknowledged.status.code == Code.INVALID_RECEIPT_HANDLE
    empty = await Consumer(client, "bad group", "nowhere").frames()
    assert empty[0].status.code == Code.ILLEGAL_CONSUMER_GROUP
    page = await measured.page()
    assert {
        (own["request_code"], own["code"]): count
        for own, count in page.samples["rockoon_gateway_refusals_total"]
    } == {
        ("send_message", "topic_not_found"): 1,
        ("ack_message", "invalid_receipt_handle"): 1,
        ("receive_message", "illegal_consumer_group"): 1,
    }


def test_there_is_an_end_of_series() -> None:
    counts = SeriesCounts()
    for number in range(SERIES_MAX + 100):
        counts.add(f"topic-{number}", "normal")
    counts.add("topic-1", "normal", count=5)
    assert len(dict(counts)) == SERIES_MAX + 1
    assert dict(counts)[OTHERS, OTHERS] == 100
    assert dict(counts)["topic-1", "normal"] == 6
