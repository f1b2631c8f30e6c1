"""One trace leads through three processes: sender, broker, reader. Spans of the first two come by
OTLP, as in an installation; those of the reader, which is this process, are looked at directly."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry.call_counts import counted_calls, of_telemetry

import rockoon
from rockoon import Message
from rockoon.errors import BodyTooLarge, InvalidArgument
from rockoon.local.cluster import LocalCluster
from rockoon.producer.once import OnceMessage
from rockoon.producer.producer import Producer
from rockoon.tracing.producer import present_context
from rockoon.tracing.spans import SpanStarter, context_in
from rockoon.tracing.tracing import Tracing
from support.eventually import eventually
from support.otlp_receiver import OtlpReceiver, otlp_receiver
from support.waiting import DEADLINE_SECONDS

SENDER = Path(__file__).parent / "sending_process.py"
READER = Path(__file__).parent / "reading_process.py"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver
) -> Iterator[LocalCluster]:
    settings: dict[str, dict[str, object]] = {
        "broker": {
            "otlp_endpoint": receiver.endpoint,
            "otlp_interval_seconds": 1.0,
            "commit_log_file_bytes": 16 << 20,
        },
        "offset": {"otlp_endpoint": receiver.endpoint, "otlp_interval_seconds": 60.0},
    }
    directory = tmp_path_factory.mktemp("traced")
    with LocalCluster(directory, settings=settings, durable=False) as cluster:
        yield cluster


class Spans:
    """What this process has traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    @property
    def names(self) -> set[str]:
        return {span.name for span in self._exporter.get_finished_spans()}


async def send_from_another_process(
    cluster: LocalCluster, receiver: OtlpReceiver, topic: str, count: int | str
) -> None:
    await run(SENDER, cluster, receiver, topic, count)


async def run(
    program: Path, cluster: LocalCluster, receiver: OtlpReceiver, topic: str, count: int | str
) -> None:
    arguments = (cluster.nameservers[0], receiver.endpoint, topic, str(count))
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), *arguments)
    assert await asyncio.wait_for(process.wait(), DEADLINE_SECONDS) == 0


async def new_topic(cluster: LocalCluster, name: str) -> None:
    async with rockoon.connect(cluster.nameservers) as connected:
        await connected.admin.create_topic(name, queues_per_broker=1)


@asynccontextmanager
async def reading(
    cluster: LocalCluster, spans: Spans, topic: str, handler: Callable[[Any], Any], **more: Any
) -> AsyncIterator[None]:
    tracing = Tracing(0.0, spans.provider)
    async with (
        rockoon.connect(cluster.nameservers, tracing=tracing) as connected,
        connected.push_consumer(
            f"readers-of-{topic}", {topic: "*"}, handler, consume_from="first", **more
        ),
    ):
        yield


def hex_id(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


def trace_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}"


async def test_one_trace_leads_from_the_sender_through_the_broker_to_handler_and_commit(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    await new_topic(cluster, "single")
    await send_from_another_process(cluster, receiver, "single", 1)
    (sent,) = await eventually(lambda: receiver.named("send single"))
    # The broker's; one traced message in a batch is all that there is to say of the batch.
    (broker,) = await eventually(lambda: receiver.named("append single"))
    spans, inside = Spans(), []

    async def handle(message: Message) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)

    async with reading(cluster, spans, "single", handle):
        await eventually(lambda: inside)
    (received,) = spans.named("receive single")
    (processed,) = spans.named("process single")
    (committed,) = spans.named("commit")

    assert (sent.service, broker.service) == ("sender", "rockoon-broker")
    assert broker.parent_id == sent.span_id
    assert broker.attributes["rockoon.queue_offset"] == 0
    assert processed.parent is not None
    assert f"{processed.parent.span_id:016x}" == sent.span_id
    assert committed.parent is not None
    assert f"{committed.parent.span_id:016x}" == hex_id(processed)
    ids = {sent.trace_id, broker.trace_id, f"{inside[0]:032x}"}
    ids |= {trace_of(span) for span in (received, processed, committed)}
    assert len(ids) == 1


async def test_a_trace_goes_on_through_every_process_to_the_progress_that_is_stored(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    """Sender, broker, reader and offset service are four processes, and one trace connects them."""
    await new_topic(cluster, "whole")
    await send_from_another_process(cluster, receiver, "whole", 1)
    await run(READER, cluster, receiver, "whole", 1)
    (sent,) = await eventually(lambda: receiver.named("send whole"))
    wanted = {
        ("sender", "send whole"): "",
        ("rockoon-broker", "append whole"): "send whole",
        ("rockoon-broker", "pull whole"): "send whole",
        ("reader", "receive whole"): "send whole",
        ("reader", "process whole"): "send whole",
        ("reader", "commit"): "process whole",
        ("rockoon-offset", "rockoon.v1.OffsetService/Commit"): "commit",
    }

    def connected() -> dict[tuple[str, str], str] | None:
        spans = {span.span_id: span for span in receiver.spans if span.trace_id == sent.trace_id}
        parents = {
            (span.service, span.name): spans[span.parent_id].name if span.parent_id else ""
            for span in spans.values()
            if not span.parent_id or span.parent_id in spans
        }
        return parents if len(parents) >= len(wanted) else None

    assert await eventually(connected) == wanted


async def test_a_message_in_a_transaction_is_traced_to_its_commit_and_its_reader(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    await new_topic(cluster, "paid")
    await send_from_another_process(cluster, receiver, "paid", "transaction")
    (sent,) = await eventually(lambda: receiver.named("send paid"))
    (committed,) = await eventually(lambda: receiver.named("commit paid"))
    spans, seen = Spans(), []

    async def handle(message: Message) -> None:
        seen.append(message.traceparent)

    async with reading(cluster, spans, "paid", handle):
        await eventually(lambda: seen)
    assert committed.parent_id == sent.span_id
    stored, ended = (f"rockoon.v1.Broker/{name}" for name in ("Append", "EndTransaction"))
    assert await eventually(lambda: [each.parent_id for each in receiver.named(stored)]) == [
        sent.span_id
    ]
    assert await eventually(lambda: [each.parent_id for each in receiver.named(ended)]) == [
        committed.span_id
    ]
    (processed,) = spans.named("process paid")
    assert processed.parent is not None
    assert f"{processed.parent.span_id:016x}" == sent.span_id


async def test_many_messages_share_the_spans_of_their_batch_pull_call_and_commit(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    count = 20
    await new_topic(cluster, "many")
    await send_from_another_process(cluster, receiver, "many", count)
    sent = await eventually(lambda: len(found := receiver.named("send many")) == count and found)
    of_messages = {span.span_id for span in sent}
    assert len({span.trace_id for span in sent}) == count, "nobody's span was their parent"

    def all_appended() -> Sequence[Any]:
        found = receiver.named("append many")
        at_broker = [span for span in found if span.service == "rockoon-broker"]
        appended = sum(span.attributes["messaging.batch.message_count"] for span in at_broker)
        return at_broker if appended == count else []

    appends = await eventually(all_appended)
    assert len(appends) < count / 2
    by_sender = {span.span_id: span for span in receiver.named("append many")}
    told = []
    for append in appends:
        # Of a batch with one message there is no span of the sender's.
        batch = by_sender.get(append.parent_id)
        told += [append.parent_id] if batch is None else [batch.parent_id, *batch.links]
    assert sorted(told) == sorted(of_messages), "each message's span is named once"

    spans, seen = Spans(), []

    async def handle(messages: list[Message]) -> None:
        seen.extend(messages)

    async with reading(cluster, spans, "many", handle, batch_max=64):
        await eventually(lambda: len(seen) == count)
    for name in ("receive many", "process many"):
        found = spans.named(name)
        assert len(found) < count / 2
        told = [f"{link.context.span_id:016x}" for span in found for link in span.links]
        told += [f"{span.parent.span_id:016x}" for span in found if span.parent is not None]
        assert sorted(told) == sorted(of_messages), name
    assert len(spans.named("commit")) == 1

    def told_by_pulls() -> set[str]:
        pulls = receiver.named("pull many")
        return {told for pull in pulls for told in (pull.parent_id, *pull.links)}

    await eventually(lambda: told_by_pulls() == of_messages)


def test_a_context_that_is_not_sampled_or_is_none_is_not_continued() -> None:
    ids = f"{1:032x}-{2:016x}"
    sampled = context_in(f"00-{ids}-01")
    assert sampled is not None
    assert (sampled.trace_id, sampled.span_id) == (1, 2)
    for traceparent in (None, "", "nonsense", f"00-{ids}-00", f"00-{0:032x}-{2:016x}-01"):
        assert context_in(traceparent) is None


async def test_a_present_span_decides_for_the_messages_sent_within_it(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    await new_topic(cluster, "within")
    spans = Spans()
    tracer = spans.provider.get_tracer("application")
    never = Tracing(0.0, spans.provider)
    async with (
        rockoon.connect(cluster.nameservers, tracing=never) as connected,
        connected.producer() as producer,
    ):
        with tracer.start_as_current_span("order taken") as taken:
            await producer.send("within", b"one", properties={"own": "x"})
            await producer.send_many("within", [b"two", b"three"])
        await producer.send("within", b"outside")
        async with connected.pull_consumer("pullers", consume_from="first") as consumer:
            await consumer.assign_all("within")
            messages: list[Message] = []
            while len(messages) < 4:
                messages += await consumer.poll(4)
    contexts = [context_in(message.traceparent) for message in messages]
    taken_id = taken.get_span_context().trace_id
    assert [context and context.trace_id for context in contexts] == [taken_id] * 3 + [None]
    one, many = spans.named("send within")
    assert messages[0].properties["own"] == "x"
    assert [f"{context.span_id:016x}" for context in contexts[:3] if context] == [
        hex_id(one),
        hex_id(many),
        hex_id(many),
    ]


async def test_messages_off_the_common_path_are_traced_and_a_refused_one_has_a_failed_span(
    cluster: LocalCluster,
) -> None:
    await new_topic(cluster, "uncommon")
    spans = Spans()
    tracer = spans.provider.get_tracer("application")
    async with (
        rockoon.connect(cluster.nameservers, tracing=Tracing(0.0, spans.provider)) as connected,
        connected.producer(idempotent=True) as producer,
    ):
        with tracer.start_as_current_span("order taken"):
            # Its route is not known yet: it moves to another batch when that is.
            unrouted = producer.send("uncommon", b"x", ordering_key="k")
            delayed = producer.send("uncommon", b"x", delay_seconds=0)
            ids = {(await unrouted).message_id, (await delayed).message_id}
            with pytest.raises(BodyTooLarge):
                producer.send("uncommon", bytes((4 << 20) + 1))
            with pytest.raises(InvalidArgument):
                await producer.send_many("uncommon", [b"y", 7])  # type: ignore[list-item]
            await producer.flush()
        with pytest.raises(BodyTooLarge):
            producer.send("uncommon", bytes((4 << 20) + 1))
        assert producer.buffered_bytes == 0
    first, second, refused, many = sorted(
        spans.named("send uncommon"), key=lambda span: (not span.status.is_ok, span.start_time)
    )
    assert {span.attributes["messaging.message.id"] for span in (first, second)} == ids
    assert refused.attributes["error.type"] == "BODY_TOO_LARGE"
    assert not many.status.is_ok


async def test_messages_of_a_batch_that_is_stored_once_are_traced(cluster: LocalCluster) -> None:
    await new_topic(cluster, "once")
    spans = Spans()
    tracer = spans.provider.get_tracer("application")
    async with (
        rockoon.connect(cluster.nameservers, tracing=Tracing(0.0, spans.provider)) as connected,
        connected.producer(idempotent=True) as producer,
    ):
        queue = (await connected.route("once")).queues[0]
        with tracer.start_as_current_span("order taken"):
            sent = await producer.send_once(queue, [OnceMessage(b"1"), OnceMessage(b"2")], b"s")
            with pytest.raises(InvalidArgument):
                await producer.send_once(queue, [], b"s")
        await sent.results()
        assert producer.buffered_bytes == 0
        async with connected.pull_consumer("pullers", consume_from="first") as consumer:
            await consumer.assign([queue])
            messages: list[Message] = []
            while len(messages) < 2:
                messages += await consumer.poll(2)
    found = sorted(spans.named("send once"), key=lambda span: span.start_time)
    assert [span.status.is_ok for span in found] == [True, True, False]
    contexts = [context_in(message.traceparent) for message in messages]
    assert [context and f"{context.span_id:016x}" for context in contexts] == [
        hex_id(span) for span in found[:2]
    ]


async def test_nothing_is_traced_when_nobody_asks_and_nothing_is_done_for_it(
    cluster: LocalCluster,
) -> None:
    await new_topic(cluster, "quiet")
    spans = Spans()
    async with rockoon.connect(cluster.nameservers, tracing=Tracing(0.0, spans.provider)) as quiet:
        async with quiet.producer() as producer:
            await producer.send("quiet", b"one")
        async with quiet.pull_consumer("pullers", consume_from="first") as consumer:
            await consumer.assign_all("quiet")
            (message,) = await consumer.poll(1)
    assert message.traceparent is None
    assert spans.names == set()
    async with rockoon.connect(cluster.nameservers) as connected, connected.producer() as producer:
        assert type(producer) is Producer


@pytest.mark.parametrize("traced", [False, True])
async def test_a_message_that_is_not_traced_calls_nothing_of_what_traces(
    cluster: LocalCluster, *, traced: bool
) -> None:
    """Off, nothing is called; on, one look at the context per message, which is no function of
    Python's, and no object is made."""
    count = 400
    await new_topic(cluster, f"counted-{traced}")
    tracing = Tracing(0.0, Spans().provider) if traced else None
    async with (
        rockoon.connect(cluster.nameservers, tracing=tracing) as connected,
        connected.producer() as producer,
    ):
        await producer.send(f"counted-{traced}", b"the route is known")
        with counted_calls() as counts:
            receipts = [producer.send(f"counted-{traced}", b"x") for _ in range(count)]
        for receipt in receipts:
            await receipt
    assert counts["ContextVar.get"] == (count if traced else 0)
    assert of_telemetry(counts) == {}


def test_no_more_traces_begin_than_somebody_could_look_at() -> None:
    now = 0.0
    tracing = SpanStarter(1.0, traces_per_second_max=5, clock=lambda: now)
    assert [tracing.may_start_trace() for _ in range(8)] == [True] * 5 + [False] * 3
    now = 0.5
    assert [tracing.may_start_trace() for _ in range(4)] == [True] * 2 + [False] * 2
    now = 60.0
    assert [tracing.chooses() for _ in range(8)] == [True] * 5 + [False] * 3
    with pytest.raises(InvalidArgument, match="must be above 0"):
        Tracing(traces_per_second_max=0)


def test_a_program_within_spans_finds_them_in_the_variable_that_is_looked_at() -> None:
    look = present_context()
    tracer = TracerProvider().get_tracer("application")
    assert not look()
    with tracer.start_as_current_span("order taken"):
        assert look() == get_current() != {}
    assert not look()


async def test_a_handler_that_raises_leaves_a_failed_span(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    await new_topic(cluster, "failing")
    await send_from_another_process(cluster, receiver, "failing", 1)
    spans, calls = Spans(), []

    def handle(message: Message) -> None:
        calls.append(message)
        raise ValueError("no such customer")

    async with reading(cluster, spans, "failing", handle):
        await eventually(lambda: spans.named("process failing"))
    (span,) = spans.named("process failing")[:1]
    assert not span.status.is_ok
    assert "no such customer" in (span.status.description or "")


async def test_metrics_come_to_a_collector_as_well(
    cluster: LocalCluster, receiver: OtlpReceiver
) -> None:
    await new_topic(cluster, "collected")
    async with rockoon.connect(cluster.nameservers) as connected, connected.producer() as producer:
        await producer.send_many("collected", [b"x"] * 7)

    def counted() -> bool:
        values = receiver.metrics.get("rocketmq_messages_in_total", [])
        return [value for labels, value in values if labels["topic"] == "collected"] == [7]

    await eventually(counted)
    sizes = receiver.histograms["rocketmq_message_size"]
    (own,) = [counts for labels, counts in sizes if labels["topic"] == "collected"]
    assert own == (7, 0, 0, 0, 0, 0, 0)
    ((labels, ready),) = receiver.metrics["rockoon_ready"]
    assert ready == 1
    assert labels == {"cluster": "rockoon", "node_type": "broker", "node_id": "broker-a"}
