"""Traces and metrics of a whole cluster, read back from a real OpenTelemetry collector."""

from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import NonRecordingSpan, set_span_in_context
from telemetry.real_collector import Collector, Span, collector

import rockoon
from bench.compare.programs import NotHere
from gateway.consumers import Consumer, handle
from gateway.wire_client import WireClient, message
from rockoon import Message
from rockoon.consumer.retry import RetryPolicy
from rockoon.local.cluster import LocalCluster
from rockoon.tracing import Tracing
from rockoon.tracing.spans import context_in, traceparent_of
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


async def test_one_trace_leads_from_a_client_of_the_gateway_through_a_retry_to_the_handler(
    cluster: LocalCluster, receiver: Collector, providers: dict[str, TracerProvider]
) -> None:
    sending = providers["sender"].get_tracer("client")
    reading = providers["reader"].get_tracer("client")
    async with rockoon.connect(cluster.nameservers) as connected:
        await connected.admin.create_topic("shipped", queues_per_broker=1)
    assert cluster.gateway is not None
    with sending.start_as_current_span("order") as order:
        traceparent = traceparent_of(order.get_span_context())
        # As gRPC's instrumentation of a client: the context is in the call alone.
        async with WireClient(cluster.gateway, headers={"traceparent": traceparent}) as client:
            assert (await client.send(message("shipped", b"parcel"))).status.code == d.OK
    contexts = set()
    async with WireClient(cluster.gateway) as client:
        consumer = Consumer(client, "couriers", "shipped")
        for attempt in (1, 2):
            (got,) = await consumer.receive_all(1)
            assert got.system_properties.delivery_attempt == attempt
            contexts.add(got.user_properties["traceparent"])
            (own,) = map(context_in, contexts)
            assert own is not None
            within = set_span_in_context(NonRecordingSpan(own))
            reading.start_span(f"handler {attempt}", within).end()
            if attempt == 1:
                await consumer.change(handle(got), 0.1)
            else:
                await consumer.acknowledge(handle(got))
    trace_id = f"{order.get_span_context().trace_id:032x}"
    sends = "rockoon-gateway", "apache.rocketmq.v2.MessagingService/SendMessage"
    parents = {
        ("sender", "order"): None,
        sends: ("sender", "order"),
        ("rockoon-gateway", "send shipped"): sends,
        ("rockoon-broker", "append shipped"): ("rockoon-gateway", "send shipped"),
        ("rockoon-broker", "pull shipped"): ("rockoon-gateway", "send shipped"),
        ("reader", "handler 1"): ("rockoon-gateway", "send shipped"),
        ("reader", "handler 2"): ("rockoon-gateway", "send shipped"),
    }
    await eventually(lambda: parents.keys() <= by_name(receiver.trace(trace_id)).keys())
    found = by_name(receiver.trace(trace_id))
    for name, parent in parents.items():
        expected = "" if parent is None else found[parent][0].span_id
        assert found[name][0].parent_id == expected, name


async def test_metrics_of_all_services_arrive(cluster: LocalCluster, receiver: Collector) -> None:
    services = {f"rockoon-{each}" for each in ("nameserver", "broker", "offset", "gateway")}
    await eventually(lambda: services <= receiver.metric_services())
