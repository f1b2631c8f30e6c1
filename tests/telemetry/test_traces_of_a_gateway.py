"""A trace leads from a client of the gateway through gateway and broker to the readers."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

import rockoon
from gateway.reading import read
from gateway.wire_client import WireClient, message
from rockoon.local.cluster import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from support.eventually import eventually
from support.otlp_receiver import OtlpReceiver, SeenSpan, otlp_receiver

CALLS = "apache.rocketmq.v2.MessagingService"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def local_cluster(
    tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver
) -> Iterator[LocalCluster]:
    exported: dict[str, object] = {"otlp_endpoint": receiver.endpoint}
    settings: dict[str, dict[str, object]] = {"broker": exported, "gateway": exported}
    directory = tmp_path_factory.mktemp("traced-gateway")
    with LocalCluster(directory, settings=settings, durable=False, gateway=0) as cluster:
        yield cluster


@pytest.fixture
async def client(local_cluster: LocalCluster) -> AsyncIterator[WireClient]:
    assert local_cluster.gateway is not None
    async with WireClient(local_cluster.gateway) as made:
        yield made


class Trace:
    """A trace that a client has started."""

    def __init__(self) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    def spans(self, receiver: OtlpReceiver) -> dict[tuple[str, str], SeenSpan]:
        """The exported spans of the trace, by service and name."""
        own = [span for span in receiver.spans if span.trace_id == self.trace_id]
        return {(span.service.removeprefix("rockoon-"), span.name): span for span in own}

    async def path(self, receiver: OtlpReceiver, *names: tuple[str, str]) -> list[SeenSpan]:
        """Wait for spans below the client's span. Each span must be the parent of the next."""
        await eventually(lambda: set(names) <= self.spans(receiver).keys())
        found = self.spans(receiver)
        path = [found[name] for name in names]
        assert [each.parent_id for each in path] == [
            self.span_id,
            *(each.span_id for each in path[:-1]),
        ]
        return path


async def test_a_traced_call_leads_to_the_append_and_its_message_carries_the_trace(
    client: WireClient, local_cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    trace = Trace()
    async with rockoon.connect(local_cluster.nameservers) as cluster:
        await cluster.admin.create_topic("called", queues_per_broker=1)
        client.metadata += (("traceparent", trace.traceparent),)
        assert (await client.send(message("called", message_id="traced"))).status.code == d.OK
        path = await trace.path(
            receiver,
            ("gateway", f"{CALLS}/SendMessage"),
            ("gateway", "send called"),
            ("broker", "append called"),
        )
        (got,) = await read(cluster, "called", 1)
    assert got.message_id == path[1].attributes["messaging.message.id"] == "traced"
    assert got.traceparent == f"00-{trace.trace_id}-{path[1].span_id}-01"


@pytest.mark.parametrize("place", ["traceparent", "trace context"])
async def test_a_message_with_a_context_in_a_call_without_one_is_traced(
    client: WireClient, local_cluster: LocalCluster, receiver: OtlpReceiver, place: str
) -> None:
    trace, topic = Trace(), place.replace(" ", "-")
    sent = message(topic)
    if place == "traceparent":
        sent.user_properties["traceparent"] = trace.traceparent
    else:
        sent.system_properties.trace_context = trace.traceparent
    async with rockoon.connect(local_cluster.nameservers) as cluster:
        await cluster.admin.create_topic(topic, queues_per_broker=1)
        # The second message of the same batch has no context and gets none.
        answer = await client.send(sent, message(topic, message_id="02"))
        assert answer.status.code == d.OK
        await trace.path(receiver, ("gateway", f"send {topic}"), ("broker", f"append {topic}"))
        traced, other = await read(cluster, topic, 2)
    assert other.traceparent is None
    if place == "traceparent":
        assert traced.traceparent == trace.traceparent
    else:
        assert (traced.traceparent or "").split("-")[1] == trace.trace_id


async def test_a_transaction_is_traced_to_its_end(
    client: WireClient, local_cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    trace = Trace()
    async with rockoon.connect(local_cluster.nameservers) as cluster:
        await cluster.admin.create_topic("paid", queues_per_broker=1)
        client.metadata += (("traceparent", trace.traceparent),)
        half = message("paid", message_type=d.TRANSACTION)
        entry = (await client.send(half)).entries[0]
        assert await client.end("paid", entry, d.COMMIT) == d.OK
        _, sent, _ = await trace.path(
            receiver,
            ("gateway", f"{CALLS}/SendMessage"),
            ("gateway", "send paid"),
            ("broker", "rockoon.v1.Broker/Append"),
        )
        await trace.path(
            receiver,
            ("gateway", f"{CALLS}/EndTransaction"),
            ("gateway", "commit paid"),
            ("broker", "rockoon.v1.Broker/EndTransaction"),
        )
        (got,) = await read(cluster, "paid", 1)
    assert got.traceparent == f"00-{trace.trace_id}-{sent.span_id}-01"
