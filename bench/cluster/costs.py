"""Cost of a feature: the same work without and with it, in alternating turns.

- Copies of a log, on one machine: three copies write and sync three times as much to one disk.
- TLS, and mutual TLS.
- Access keys. A stream of batches is signed only when it is opened. The cost of signatures is
  visible in small calls, so these are measured too.
- Telemetry: the broker's metrics page is read every ten seconds, metrics and spans are sent by
  OTLP, the client traces at its default ratio, log lines are JSON. The collector runs in this
  process and discards its input; the client's spans are discarded before an exporter sends them.

In addition to rates, CPU time of client and broker is measured: it shows the cost even if other
work on the machine changes the rates by more.
"""

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import rockoon
from bench.cluster import throughput
from bench.cluster.throughput import Rate
from bench.loops import BODY, call_closed, one_broker
from bench.usage import cpu_of
from rockoon.local import LocalCluster
from rockoon.local.directory import choose_port
from rockoon.tracing.tracing import Tracing
from rockoon_proto.v1.broker_pb2 import BrokerQueue, QueueStatusRequest

Mode = TypeVar("Mode")
Found = TypeVar("Found")

LOG = "broker-a"
COPIES_ORDER = (1, 3, 3, 1)
TLS_MODES = ("off", "on", "mutual")
TLS_ROUNDS = 3
ACCESS_ORDER = ("off", "on", "on", "off")
TELEMETRY_ORDER = ACCESS_ORDER * 2
SENDS = 1000
CALLS_IN_FLIGHT = 32
LOOK_SECONDS = 10.0


async def in_turns(
    order: Sequence[Mode],
    measured: Callable[[Mode, int], Awaitable[Sequence[Found]]],
    chosen: Callable[[Sequence[Found]], Found],
) -> dict[Mode, list[Found]]:
    """Measure modes in an order; return the chosen result of each measure by mode.

    Args:
        measured: measures a mode; its second argument is the number of the turn.
        chosen: chooses among the results that a measure has in the turns of a mode.
    """
    turns: dict[Mode, list[Sequence[Found]]] = {}
    for turn, mode in enumerate(order):
        turns.setdefault(mode, []).append(await measured(mode, turn))
    return {
        mode: [chosen(each) for each in zip(*found, strict=True)] for mode, found in turns.items()
    }


@dataclass(frozen=True)
class Cost:
    """Result of one measure."""

    rate: Rate
    cpu_seconds: float
    """CPU seconds per message, of this process and the brokers."""


async def cost_of(local: LocalCluster, work: Awaitable[Rate]) -> Cost:
    began, before = time.perf_counter(), _cpu_seconds(local)
    rate = await work
    elapsed, used = time.perf_counter() - began, _cpu_seconds(local) - before
    return Cost(rate, used / (rate.messages_per_second * elapsed))


def _cpu_seconds(local: LocalCluster) -> float:
    return time.process_time() + sum(cpu_of(local.node(name).pid) for name in local.brokers)


def _cpu_seconds_of(cost: Cost) -> float:
    return cost.cpu_seconds


# Access keys.


async def of_access(folder: Path, seconds: float) -> dict[str, list[Cost]]:
    """Return the turn of each measure with the least CPU, without and with access keys."""

    async def measured(mode: str, turn: int) -> list[Cost]:
        async with one_broker(folder / f"access-{turn}", access=mode == "on") as (local, cluster):
            await cluster.admin.create_topic("bench", queues_per_broker=8)
            works = (
                throughput.append(cluster, "bench", 100, seconds),
                throughput.pull(cluster, "bench", 100, seconds),
                _sends(cluster, "bench", seconds),
                _calls(cluster, "bench", seconds),
            )
            return [await cost_of(local, work) for work in works]

    return await in_turns(ACCESS_ORDER, measured, lambda costs: min(costs, key=_cpu_seconds_of))


async def _sends(cluster: rockoon.Cluster, topic: str, seconds: float) -> Rate:
    """Measure single messages, each acknowledged before the next is sent."""
    async with cluster.producer() as producer:
        rate = (await call_closed(lambda _: producer.send(topic, BODY), 1, seconds)).per_second
    return Rate("single sends", rate, rate * len(BODY))


async def _calls(cluster: rockoon.Cluster, topic: str, seconds: float) -> Rate:
    """Measure small unary calls with many calls in flight."""
    stub = cluster.broker(LOG)
    request = QueueStatusRequest(queues=[BrokerQueue(topic=topic, queue_id=0)])

    async def call(_: int) -> None:
        await stub.QueueStatus(request, metadata=cluster.metadata)

    rate = (await call_closed(call, CALLS_IN_FLIGHT, seconds)).per_second
    return Rate(f"small calls, {CALLS_IN_FLIGHT} in flight", rate, rate * request.ByteSize())


# TLS.


async def of_tls(folder: Path, seconds: float) -> dict[str, list[Rate]]:
    """Return the best rate of each measure, because disturbances only reduce rates.

    The last measure is single sends as a rate: the reciprocal of the median latency.
    """

    async def measured(mode: str, turn: int) -> list[Rate]:
        rates = []
        async with one_broker(folder / f"tls-{turn}", tls=mode) as (_, cluster):
            for size in (100, 1024):
                topic = f"bench-{size}"
                await cluster.admin.create_topic(topic, queues_per_broker=8)
                rates.append(await throughput.append(cluster, topic, size, seconds / TLS_ROUNDS))
                rates.append(await throughput.pull(cluster, topic, size, seconds / TLS_ROUNDS))
            await cluster.admin.create_topic("latency", queues_per_broker=1)
            latencies = await throughput.send_latencies(cluster, "latency", SENDS)
        median = latencies[len(latencies) // 2]
        return [*rates, Rate("1 / p50 of one send", 1 / median, 100 / median)]

    return await in_turns(
        TLS_MODES * TLS_ROUNDS,
        measured,
        lambda rates: max(rates, key=lambda rate: rate.messages_per_second),
    )


# Copies.


@dataclass(frozen=True)
class CopiesCost:
    """Result of one measure.

    Attributes:
        leader_seconds, follower_seconds: CPU time per message of the leader and of one follower; 0
            without followers.
        waits: seconds of single sends, ascending; empty for other measures.
    """

    measure: str
    messages_per_second: float
    leader_seconds: float
    follower_seconds: float
    waits: Sequence[float] = ()


async def of_copies(folder: Path, seconds: float, count: int) -> dict[int, list[CopiesCost]]:
    """Return the turns with the least CPU of the leader, by number of copies.

    Args:
        seconds: duration of each rate.
        count: number of single sends.
    """

    async def measured(copies: int, turn: int) -> list[CopiesCost]:
        async with one_broker(folder / f"copies-{turn}", "sync", replicas=copies) as (
            local,
            cluster,
        ):
            await cluster.admin.create_topic("bulk", queues_per_broker=8)
            await cluster.admin.create_topic("single", queues_per_broker=1)
            leader = await _leader_of(cluster, local)

            def cost(
                measure: str, rate: float, messages: int, waits: Sequence[float] = ()
            ) -> CopiesCost:
                used = {name: now - before[name] for name, now in cpu_of_copies().items()}
                leading = used.pop(leader)
                following = sum(used.values()) / len(used) if used else 0.0
                return CopiesCost(measure, rate, leading / messages, following / messages, waits)

            def cpu_of_copies() -> dict[str, float]:
                return {name: cpu_of(local.node(name).pid) for name in local.replicas_of(LOG)}

            # Warm-up: creates connections and queue files.
            await throughput.append(cluster, "bulk", len(BODY), min(seconds, 0.5))
            began, before = time.perf_counter(), cpu_of_copies()
            rate = (
                await throughput.append(cluster, "bulk", len(BODY), seconds)
            ).messages_per_second
            sent = round(rate * (time.perf_counter() - began))
            bulk = cost(f"append, {len(BODY)} B", rate, sent)
            before = cpu_of_copies()
            waits = await throughput.send_latencies(cluster, "single", count)
            return [bulk, cost("one message at a time", count / sum(waits), count, waits)]

    return await in_turns(
        COPIES_ORDER, measured, lambda costs: min(costs, key=lambda each: each.leader_seconds)
    )


async def _leader_of(cluster: rockoon.Cluster, local: LocalCluster) -> str:
    """Return the name of the log's leader; without copies, of the only node."""
    nodes = local.replicas_of(LOG)
    if len(nodes) == 1:
        return nodes[0]
    leader = (await cluster.admin.logs.describe(LOG)).leader
    assert leader is not None, "the topic was created, so the log has a leader"
    return leader.name


# Telemetry.


async def of_telemetry(folder: Path, seconds: float) -> dict[str, list[Cost]]:
    """Return the turn of each measure with the median CPU, without and with telemetry."""

    async def measured(mode: str, turn: int) -> list[Cost]:
        async with contextlib.AsyncExitStack() as stack:
            tracing, more = None, dict[str, object]()
            page = f"127.0.0.1:{choose_port()}"
            if mode == "on":
                more = {"metrics_listen": page, "otlp_endpoint": stack.enter_context(_collector())}
                more |= {"otlp_interval_seconds": LOOK_SECONDS, "log_format": "json"}
                provider = TracerProvider(shutdown_on_exit=False)
                provider.add_span_processor(BatchSpanProcessor(_NowhereExporter()))
                stack.push_async_callback(asyncio.to_thread, provider.shutdown)
                tracing = Tracing(tracer_provider=provider)
            local, _ = await stack.enter_async_context(
                one_broker(folder / f"telemetry-{turn}", broker=more)
            )
            if mode == "on":
                await stack.enter_async_context(_looked_at(f"http://{page}/metrics"))
            connected = rockoon.connect(local.nameservers, tracing=tracing)
            cluster = await stack.enter_async_context(connected)
            costs = []
            for size in (100, 1024):
                topic = f"bench-{size}"
                await cluster.admin.create_topic(topic, queues_per_broker=8)
                costs += [
                    await cost_of(local, measure(cluster, topic, size, seconds))
                    for measure in (throughput.append, throughput.pull)
                ]
            return costs

    return await in_turns(
        TELEMETRY_ORDER,
        measured,
        lambda costs: sorted(costs, key=_cpu_seconds_of)[(len(costs) - 1) // 2],
    )


class _NowhereExporter(SpanExporter):
    """Span exporter that discards all spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """Run an OTLP collector that discards exports without decoding; yield its endpoint."""

    class Anything(grpc.GenericRpcHandler):
        def service(self, _: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")

    server = grpc.server(ThreadPoolExecutor(max_workers=1), handlers=[Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextlib.asynccontextmanager
async def _looked_at(url: str) -> AsyncIterator[None]:
    """Context manager that reads a metrics page every LOOK_SECONDS, like Prometheus."""

    def look() -> None:
        with urllib.request.urlopen(url, timeout=10) as answer:
            answer.read()

    async def look_forever() -> None:
        while True:
            await asyncio.to_thread(look)
            await asyncio.sleep(LOOK_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look_forever(), name="look at the metrics page")
        try:
            yield
        finally:
            looking.cancel()
