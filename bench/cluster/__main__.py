"""`make bench`: throughput and latency of the whole path.

The machine is shared and noisy: compare only ratios, and only within one run.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

import rockoon
from bench.cluster import access, copies, encryption, groups, telemetry, throughput
from bench.cluster.throughput import raw_write_bytes_per_second
from rockoon.local import LocalCluster

console = Console()
MB = 1e6
BURST_BYTES = 16 << 20


async def measure_throughput(folder: Path, flush: str, seconds: float) -> None:
    raw = raw_write_bytes_per_second(folder)
    table = Table(title=f"One producer, one broker, flush = {flush}", title_justify="left")
    for column in ("measure", "messages/s", "MB/s of records", "÷ raw pwrite"):
        table.add_column(column, justify="right" if column != "measure" else "left")
    table.add_row("raw fallocate + pwrite", "", f"{raw / MB:.0f}", "1.00")
    settings = {"broker": {"flush": flush, "commit_log_file_bytes": "1GiB"}}
    async with (
        LocalCluster(folder / f"cluster-{flush}", brokers=1, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        for body_bytes in (100, 1024):
            topic = f"bench-{body_bytes}"
            await cluster.admin.create_topic(topic, queues_per_broker=8)
            for rate in (
                await throughput.append(cluster, topic, body_bytes, seconds),
                await throughput.append(cluster, topic, body_bytes, seconds, idempotent=True),
                await throughput.pull(cluster, topic, body_bytes, seconds),
            ):
                table.add_row(
                    rate.measure,
                    f"{rate.messages_per_second:,.0f}",
                    f"{rate.bytes_per_second / MB:.0f}",
                    f"{rate.bytes_per_second / raw:.2f}",
                )
    console.print(table)


async def measure_latency(folder: Path, flush: str, count: int) -> None:
    settings = {"broker": {"flush": flush}}
    async with (
        LocalCluster(folder / f"latency-{flush}", brokers=1, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic("latency", queues_per_broker=1)
        seconds = await throughput.send_latencies(cluster, "latency", count)
    table = Table(title=f"One message at a time, flush = {flush}", title_justify="left")
    table.add_column("percentile")
    table.add_column("milliseconds", justify="right")
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        table.add_row(name, f"{quantile(seconds, share) * 1e3:.2f}")
    console.print(table)


async def measure_recovery(folder: Path, sizes: list[int]) -> None:
    """Measure recovery: fill the log, wait for a recovery point, append more, kill -9, and
    restart."""
    title = f"Start after kill -9: {BURST_BYTES >> 20} MiB not settled, by size of the log"
    table = Table(title=title, title_justify="left")
    for column in ("log MiB", "until it serves, s", "of it recovery, s", "MiB scanned"):
        table.add_column(column, justify="right")
    settings = {"broker": {"flush": "async", "commit_log_file_bytes": "1GiB"}}
    async with LocalCluster(folder / "recovery", brokers=1, settings=settings) as local:
        broker = local.brokers[0]
        async with rockoon.connect(local.nameservers) as cluster:
            await cluster.admin.create_topic("fill", queues_per_broker=8)
        for size in sizes:
            async with rockoon.connect(local.nameservers) as cluster:
                await throughput.fill(cluster, "fill", size - BURST_BYTES)
                await throughput.settle(cluster)
                await throughput.fill(cluster, "fill", size)
            seconds, recovering, scanned, end = await throughput.recovery(local, broker)
            table.add_row(
                f"{end / (1 << 20):,.0f}",
                f"{seconds:.2f}",
                f"{recovering:.3f}",
                f"{scanned / (1 << 20):,.1f}",
            )
    console.print(table)


async def measure_memory() -> None:
    table = Table(title="Resident memory of an idle cluster", title_justify="left")
    table.add_column("process")
    table.add_column("MiB", justify="right")
    async with LocalCluster(nameservers=2, brokers=2) as local:
        for name, size in throughput.resident_bytes(local).items():
            table.add_row(name, f"{size / (1 << 20):.0f}")
    console.print(table)


async def measure_groups(folder: Path, seconds: float) -> None:
    """Measure consumer groups: commits, starts, rebalances and latency to the listener, on one
    broker with flush = async."""
    settings = {"broker": {"flush": "async"}}
    async with LocalCluster(folder / "groups", brokers=1, settings=settings) as local:
        async with rockoon.connect(local.nameservers) as cluster:
            await make_topic(cluster, "rates", groups.CALLS_IN_FLIGHT)
            rates = await groups.offset_rates(cluster, "rates", seconds)
            await make_topic(cluster, "latency", 1)
            latencies = await groups.listener_latencies(cluster, "latency", count=2000)
        async with rockoon.connect(local.nameservers) as cluster:
            await make_topic(cluster, "balanced", 1000)
            rebalances = await groups.rebalance_seconds(cluster, "balanced", 100, leaving=10)
    table = Table(title="Consumer groups, one offset service", title_justify="left")
    table.add_column("measure")
    table.add_column("", justify="right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f} /s")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        index = int(len(latencies) * share)
        table.add_row(f"send to listener, {name}", f"{latencies[index] * 1e3:.2f} ms")
    for name, taken in rebalances.items():
        table.add_row(f"1,000 queues: {name}", f"{taken:.2f} s")
    console.print(table)


async def measure_tls(folder: Path, seconds: float) -> None:
    best = await encryption.by_mode(folder, seconds)
    table = Table(title="TLS, flush = async, messages/s", title_justify="left")
    table.add_column("measure")
    for mode in encryption.MODES:
        table.add_column(mode, justify="right")
    for mode in encryption.MODES[1:]:
        table.add_column(f"{mode} ÷ off", justify="right")
    for off, *others in zip(*best.values(), strict=True):
        rates = [rate.messages_per_second for rate in (off, *others)]
        ratios = [f"{rate / rates[0]:.2f}" for rate in rates[1:]]
        table.add_row(off.measure, *(f"{rate:,.0f}" for rate in rates), *ratios)
    console.print(table)


async def measure_access(folder: Path, seconds: float) -> None:
    show_costs("Access keys, flush = async", await access.by_mode(folder, seconds))


async def measure_telemetry(folder: Path, seconds: float) -> None:
    show_costs("Telemetry, flush = async", await telemetry.by_mode(folder, seconds))


def show_costs(title: str, best: Mapping[str, Sequence[telemetry.Cost]]) -> None:
    """Print rates and CPU times of the same work with a feature off and on."""
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for column in ("messages/s off", "on", "CPU µs a message off", "on", "on ÷ off"):
        table.add_column(column, justify="right")
    for off, on in zip(best["off"], best["on"], strict=True):
        table.add_row(
            off.rate.measure,
            *(f"{cost.rate.messages_per_second:,.0f}" for cost in (off, on)),
            *(f"{cost.cpu_seconds * 1e6:.2f}" for cost in (off, on)),
            f"{on.cpu_seconds / off.cpu_seconds:.2f}",
        )
    console.print(table)


async def measure_copies(folder: Path, seconds: float, count: int) -> None:
    """Measure producing with one copy and with three copies of the log, flush = sync."""
    best = await copies.by_copies(folder, seconds, count)
    title = "Copies of a log on one machine, flush = sync, CPU µs a message"
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for column in ("copies", "messages/s", "p50 ms", "p99 ms", "leader", "each follower"):
        table.add_column(column, justify="right")
    for works in zip(*best.values(), strict=True):
        for number, work in zip(best, works, strict=True):
            waits = [
                f"{quantile(work.waits, q) * 1e3:.2f}" if work.waits else "" for q in (0.5, 0.99)
            ]
            cpu = [f"{used * 1e6:.2f}" for used in (work.leader_seconds, work.follower_seconds)]
            rate = f"{work.messages_per_second:,.0f}"
            table.add_row(work.measure, str(number), rate, *waits, *cpu)
    console.print(table)


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


async def make_topic(cluster: rockoon.Cluster, name: str, queues: int) -> None:
    made = await cluster.admin.create_topic(name, queues_per_broker=queues)
    await cluster.route(name, min_revision=made.modified_revision)


async def measure(folder: Path, only: set[str], seconds: float) -> None:
    for flush in ("async", "sync"):
        if "throughput" in only:
            await measure_throughput(folder, flush, seconds)
        if "latency" in only:
            await measure_latency(folder, flush, count=3000)
    if "groups" in only:
        await measure_groups(folder, seconds)
    if "tls" in only:
        await measure_tls(folder, seconds)
    if "access" in only:
        await measure_access(folder, seconds)
    if "telemetry" in only:
        await measure_telemetry(folder, seconds)
    if "copies" in only:
        await measure_copies(folder, seconds, count=1000)
    if "recovery" in only:
        await measure_recovery(folder, [64 << 20, 512 << 20, 2 << 30])
    if "memory" in only:
        await measure_memory()


def main() -> None:
    parts = ["throughput", "latency", "groups", "tls", "access", "telemetry", "copies"]
    parts += ["recovery", "memory"]
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", choices=parts, action="append", help="one part; may be repeated")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each rate")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="directory for the stores")
    arguments = parser.parse_args()
    arguments.dir.mkdir(exist_ok=True)
    console.print(f"{os.cpu_count()} cores; stores in {arguments.dir.resolve()}")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        only = set(arguments.only or parts)
        uvloop.run(measure(Path(folder), only, arguments.seconds))


if __name__ == "__main__":
    main()
