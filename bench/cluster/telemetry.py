"""Cost of telemetry: the same work with it off and on, in turns.

On means all of it: brokers' metrics page read every ten seconds, metrics and spans by OTLP, the
client's tracing at its default ratio, log lines as JSON. The collector is in this process and looks
at nothing; spans of the client end where an exporter would begin to send them. CPU time is told
beside rates: of the client, with the collector in it, and of the broker. It is what telemetry
takes, also where other work on the machine makes rates differ more than that.
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
    """One measure."""

    rate: Rate
    cpu_seconds: float
    """Per message."""


async def by_mode(folder: Path, seconds: float) -> dict[str, list[Cost]]:
    """The middle turn of each measure, by whether telemetry is off or on."""
    turns: dict[str, list[list[Cost]]] = {mode: [] for mode in MODES}
    for turn, mode in enumerate(ORDER):
        turns[mode].append(await measured(folder / f"{mode}-{turn}", mode, seconds))
    return {mode: [middle(costs) for costs in zip(*turns[mode], strict=True)] for mode in MODES}


def middle(costs: Sequence[Cost]) -> Cost:
    """The one that half of the others cost no more than."""
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
    """Of this process and the brokers, since they started."""
    return time.process_time() + sum(cpu_seconds_of(local.node(name).pid) for name in local.brokers)


class NowhereExporter(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Answer every OTLP export with nothing, undecoded; yields the endpoint."""

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
    """Read a metrics page every second, as Prometheus does less often."""

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
