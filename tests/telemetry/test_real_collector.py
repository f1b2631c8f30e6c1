"""Traces and metrics of a whole cluster, read back from a real OpenTelemetry collector."""

import secrets
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from telemetry.real_collector import Collector, Span, collector

import rockoon
from bench.compare.programs import NotHere
from gateway.wire_client import WireClient
from rockoon import Message
from rockoon.consumer.retry import RetryPolicy
from rockoon.local.cluster import LocalCluster
from rockoon.tracing import Tracing
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from support.eventually import eventually

pytestmark = pytest.mark.collector


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    try:
        with collector(tmp_path_factory.mktemp("collector")) as running:
            yield running
    except NotHere as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, receiver: Collector
) -> Iterator[LocalCluster]:
    telemetry: dict[str, object] = {
        "otlp_endpoint": receiver.endpoint,
        "otlp_interval_seconds": 1.0,
    }
    settings = {
        "nameserver": telemetry,
        "broker": {**telemetry, "commit_log_file_bytes": 16 << 20},
        "offset": telemetry,
        "gateway": telemetry,
    }
    directory = tmp_path_factory.mktemp("traced")
    with LocalCluster(directory, settings=settings, durable=False, gateway=0) as cluster:
        yield cluster


@pytest.fixture
def providers(receiver: Collector) -> Iterator[dict[str, TracerProvider]]:
    """Exporters of a program that sends and of one that reads."""
    made = {}
    for name in ("sender", "reader"):
        made[name] = TracerProvider(resource=Resource.create({"service.name": name}))
        exporter = OTLPSpanExporter(endpoint=receiver.endpoint)
        made[name].add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    for provider in made.values():
        provider.shutdown()


def by_name(spans: list[Span]) -> dict[tuple[str, str], list[Span]]:
    found: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        found.setdefault((span.service, span.name), []).append(span)
    return found


async def test_one_trace_leads_from_the_producer_through_broker_and_retry_to_the_commit(
    cluster: LocalCluster, receiver: Collector, providers: dict[str, TracerProvider]
) -> None:
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)
        if len(handled) == 1:
            raise ValueError("the first attempt fails")

    sending = Tracing(1.0, providers["sender"])
    async with rockoon.connect(cluster.nameservers, tracing=sending) as connected:
        await connected.admin.create_topic("paid", queues_per_broker=1)
        async with connected.producer() as producer:
            await producer.send("paid", b"42")
    async with (
        rockoon.connect(cluster.nameservers, tracing=Tracing(0.0, providers["reader"])) as reading,
        reading.push_consumer(
            "billing",
            {"paid": "*"},
            handle,
            consume_from="first",
            redelivery=RetryPolicy(delay_levels=(1,)),
        ),
    ):
        await eventually(lambda: len(handled) == 2)
    trace_id = (handled[0].traceparent or "").split("-")[1]
    assert handled[1].traceparent == handled[0].traceparent
    wanted = {
        ("sender", "send paid"),
        ("rockoon-broker", "append paid"),
        ("rockoon-broker", "pull paid"),
        ("reader", "receive paid"),
        ("reader", "process paid"),
        ("rockoon-broker", "pull %RETRY%billing"),
        ("reader", "commit"),
        ("rockoon-offset", "rockoon.v1.OffsetService/Commit"),
    }
    await eventually(lambda: wanted <= set(by_name(receiver.trace(trace_id))))
    processing = "reader", "process paid"
    await eventually(lambda: len(by_name(receiver.trace(trace_id))[processing]) == 2)
    found = by_name(receiver.trace(trace_id))
    (sent,) = found["sender", "send paid"]
    assert sent.parent_id == ""
    assert found["rockoon-broker", "append paid"][0].parent_id == sent.span_id
    first, second = found[processing]
    assert {first.failed, second.failed} == {True, False}
    assert {first.parent_id, second.parent_id} == {sent.span_id}


async def test_a_trace_of_a_client_leads_through_the_gateway_in_both_directions(
    cluster: LocalCluster, receiver: Collector, providers: dict[str, TracerProvider]
) -> None:
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    traceparent = f"00-{trace_id}-{span_id}-01"
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)

    reading = Tracing(0.0, providers["reader"])
    async with rockoon.connect(cluster.nameservers, tracing=reading) as connected:
        await connected.admin.create_topic("shipped", queues_per_broker=1)
        assert cluster.gateway is not None
        # As OpenTelemetry's instrumentation of a client: in the call, and in the message.
        async with WireClient(cluster.gateway, headers={"traceparent": traceparent}) as client:
            message = d.Message(
                topic=d.Resource(name="shipped"),
                body=b"parcel",
                system_properties=d.SystemProperties(
                    message_id="01" + secrets.token_hex(16).upper(), born_host="here"
                ),
                user_properties={"traceparent": traceparent},
            )
            answer = await client.send(message)
            assert answer.status.code == d.OK
        async with connected.push_consumer(
            "couriers", {"shipped": "*"}, handle, consume_from="first"
        ):
            await eventually(lambda: handled)
    wanted = {
        ("rockoon-gateway", "apache.rocketmq.v2.MessagingService/SendMessage"),
        ("rockoon-broker", "pull shipped"),
        ("reader", "process shipped"),
    }
    await eventually(lambda: wanted <= set(by_name(receiver.trace(trace_id))))
    found = by_name(receiver.trace(trace_id))
    for each in sorted(wanted):
        assert found[each][0].parent_id == span_id, each


async def test_metrics_of_all_services_arrive(cluster: LocalCluster, receiver: Collector) -> None:
    services = {f"rockoon-{each}" for each in ("nameserver", "broker", "offset", "gateway")}
    await eventually(lambda: services <= receiver.metric_services())
