"""Cost of telemetry: the same work without and with telemetry, in alternating turns.

"On" means all features: the broker's metrics page is read every ten seconds, metrics and spans are
sent by OTLP, the client traces at its default ratio, log lines are JSON. The collector runs in this
process and discards its input; the client's spans are discarded before an exporter sends them. In
addition to rates, CPU time of the client (with the collector) and of the broker is shown: it shows
the cost even if other work on the machine changes the rates by more.
"""

import asyncio
import contextlib
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import rockoon
from bench.cluster import throughput
from bench.cluster.copies import cpu_seconds_of
from bench.cluster.throughput import Rate
from rockoon.local import LocalCluster
from rockoon.local.ports import choose_port
from rockoon.tracing.tracing import Tracing

MODES = ("off", "on")
ORDER = ("off", "on", "on", "off", "off", "on", "on", "off")
BODY_BYTES = (100, 1024)
LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class Cost:
    """Result of one measure."""

    rate: Rate
    cpu_seconds: float
    """CPU seconds per message."""


async def by_mode(folder: Path, seconds: float) -> dict[str, list[Cost]]:
    """Measure the work without and with telemetry; return the median turn of each measure."""
    turns: dict[str, list[list[Cost]]] = {mode: [] for mode in MODES}
    for turn, mode in enumerate(ORDER):
        turns[mode].append(await measured(folder / f"{mode}-{turn}", mode, seconds))
    return {mode: [middle(costs) for costs in zip(*turns[mode], strict=True)] for mode in MODES}


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the result with the median CPU time."""
    return sorted(costs, key=lambda cost: cost.cpu_seconds)[(len(costs) - 1) // 2]


async def measured(folder: Path, mode: str, seconds: float) -> list[Cost]:
    settings: dict[str, dict[str, object]] = {
        "broker": {"flush": "async", "commit_log_file_bytes": "1GiB"}
    }
    if mode == "off":
        async with LocalCluster(folder, brokers=1, settings=settings) as local:
            return await work(local, None, seconds)
    with collector() as endpoint:
        page = f"127.0.0.1:{choose_port()}"
        settings["broker"] |= {"metrics_listen": page, "otlp_endpoint": endpoint}
        settings["broker"] |= {"otlp_interval_seconds": LOOK_SECONDS, "log_format": "json"}
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(NowhereExporter()))
        try:
            async with (
                LocalCluster(folder, brokers=1, settings=settings) as local,
                looked_at(f"http://{page}/metrics"),
            ):
                return await work(local, Tracing(tracer_provider=provider), seconds)
        finally:
            await asyncio.to_thread(provider.shutdown)


async def work(local: LocalCluster, tracing: Tracing | None, seconds: float) -> list[Cost]:
    costs = []
    async with rockoon.connect(local.nameservers, tracing=tracing) as cluster:
        for body_bytes in BODY_BYTES:
            topic = f"bench-{body_bytes}"
            await cluster.admin.create_topic(topic, queues_per_broker=8)
            for measure in (throughput.append, throughput.pull):
                began, cpu = time.perf_counter(), cpu_seconds(local)
                rate = await measure(cluster, topic, body_bytes, seconds)
                elapsed, used = time.perf_counter() - began, cpu_seconds(local) - cpu
                costs.append(Cost(rate, used / (rate.messages_per_second * elapsed)))
    return costs


def cpu_seconds(local: LocalCluster) -> float:
    """Return the CPU seconds of this process and the brokers since their start."""
    return time.process_time() + sum(cpu_seconds_of(local.node(name).pid) for name in local.brokers)


class NowhereExporter(SpanExporter):
    """Span exporter that discards all spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


@contextlib.contextmanager
def collector() -> Iterator[str]:
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
async def looked_at(url: str) -> AsyncIterator[None]:
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
