"""`make bench`: throughput and latency of the whole path.

The machine is shared and noisy: compare only ratios, and only within one run.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop

import rockoon
from bench.cluster import costs, groups, throughput
from bench.command import console, parser, show, stores
from bench.loops import make_topic, one_broker
from bench.tables import quantile
from bench.usage import resident_bytes
from rockoon.local import LocalCluster

MB = 1e6
MIB = 1 << 20
BURST_BYTES = 16 * MIB
RECOVERED_BYTES = (64 * MIB, 512 * MIB, 2048 * MIB)
PARTS = (
    *("throughput", "latency", "groups", "tls", "access", "telemetry", "copies"),
    *("recovery", "memory"),
)


async def measure_throughput(folder: Path, flush: str, seconds: float) -> None:
    raw = throughput.raw_write_bytes_per_second(folder)
    rows = [("raw fallocate + pwrite", "", f"{raw / MB:.0f}", "1.00")]
    async with one_broker(folder / f"cluster-{flush}", flush) as (_, cluster):
        for body_bytes in (100, 1024):
            topic = f"bench-{body_bytes}"
            await cluster.admin.create_topic(topic, queues_per_broker=8)
            for rate in (
                await throughput.append(cluster, topic, body_bytes, seconds),
                await throughput.append(cluster, topic, body_bytes, seconds, idempotent=True),
                await throughput.pull(cluster, topic, body_bytes, seconds),
            ):
                figures = f"{rate.messages_per_second:,.0f}", f"{rate.bytes_per_second / MB:.0f}"
                rows.append((rate.measure, *figures, f"{rate.bytes_per_second / raw:.2f}"))
    columns = ("measure", "messages/s", "MB/s of records", "÷ raw pwrite")
    show(f"One producer, one broker, flush = {flush}", columns, rows)


async def measure_latency(folder: Path, flush: str, count: int) -> None:
    async with one_broker(folder / f"latency-{flush}", flush) as (_, cluster):
        await cluster.admin.create_topic("latency", queues_per_broker=1)
        seconds = await throughput.send_latencies(cluster, "latency", count)
    rows = [
        (name, f"{quantile(seconds, share) * 1e3:.2f}")
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    ]
    show(f"One message at a time, flush = {flush}", ("percentile", "milliseconds"), rows)


async def measure_recovery(folder: Path) -> None:
    """Measure recovery: fill the log, wait for a recovery point, append more, kill -9, and
    restart."""
    rows = []
    async with one_broker(folder / "recovery") as (local, cluster):
        await cluster.admin.create_topic("fill", queues_per_broker=8)
        for size in RECOVERED_BYTES:
            async with rockoon.connect(local.nameservers) as filling:
                await throughput.fill(filling, "fill", size - BURST_BYTES)
                await throughput.settle(filling)
                await throughput.fill(filling, "fill", size)
            found = await throughput.recovery(local, local.brokers[0])
            seconds, recovering, scanned, end = found
            rows.append(
                (
                    f"{end / MIB:,.0f}",
                    f"{seconds:.2f}",
                    f"{recovering:.3f}",
                    f"{scanned / MIB:,.1f}",
                )
            )
    title = f"Start after kill -9: {BURST_BYTES // MIB} MiB not settled, by size of the log"
    show(title, ("log MiB", "until it serves, s", "of it recovery, s", "MiB scanned"), rows)


async def measure_memory() -> None:
    async with LocalCluster(nameservers=2, brokers=2) as local:
        rows = [(node.name, f"{resident_bytes(node.pid) / MIB:.0f}") for node in local.nodes]
    show("Resident memory of an idle cluster", ("process", "MiB"), rows)


async def measure_groups(folder: Path, seconds: float) -> None:
    """Measure consumer groups: commits, starts, rebalances and latency to the listener, on one
    broker with flush = async."""
    async with one_broker(folder / "groups") as (local, cluster):
        await make_topic(cluster, "rates", groups.CALLS_IN_FLIGHT)
        rates = await groups.offset_rates(cluster, "rates", seconds)
        await make_topic(cluster, "latency", 1)
        latencies = await groups.listener_latencies(cluster, "latency", count=2000)
        async with rockoon.connect(local.nameservers) as another:
            await make_topic(another, "balanced", 1000)
            rebalances = await groups.rebalance_seconds(another, "balanced", 100, leaving=10)
    rows = [(name, f"{rate:,.0f} /s") for name, rate in rates.items()]
    rows += [
        (f"send to listener, {name}", f"{quantile(latencies, share) * 1e3:.2f} ms")
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    rows += [(f"1,000 queues: {name}", f"{taken:.2f} s") for name, taken in rebalances.items()]
    show("Consumer groups, one offset service", ("measure", ""), rows)


async def measure_tls(folder: Path, seconds: float) -> None:
    best = await costs.of_tls(folder, seconds)
    rows = []
    for works in zip(*best.values(), strict=True):
        rates = [rate.messages_per_second for rate in works]
        ratios = [f"{rate / rates[0]:.2f}" for rate in rates[1:]]
        rows.append((works[0].measure, *(f"{rate:,.0f}" for rate in rates), *ratios))
    columns = ("measure", *best, *(f"{mode} ÷ off" for mode in list(best)[1:]))
    show("TLS, flush = async, messages/s", columns, rows)


def show_costs(title: str, best: Mapping[str, Sequence[costs.Cost]]) -> None:
    """Print rates and CPU times of the same work with a feature off and on."""
    rows = [
        (
            off.rate.measure,
            *(f"{cost.rate.messages_per_second:,.0f}" for cost in (off, on)),
            *(f"{cost.cpu_seconds * 1e6:.2f}" for cost in (off, on)),
            f"{on.cpu_seconds / off.cpu_seconds:.2f}",
        )
        for off, on in zip(best["off"], best["on"], strict=True)
    ]
    columns = ("messages/s off", "on", "CPU µs a message off", "on", "on ÷ off")
    show(f"{title}, flush = async", ("measure", *columns), rows)


async def measure_copies(folder: Path, seconds: float, count: int) -> None:
    """Measure producing with one copy and with three copies of the log, flush = sync."""
    best = await costs.of_copies(folder, seconds, count)
    rows = []
    for works in zip(*best.values(), strict=True):
        for number, work in zip(best, works, strict=True):
            waits = [
                f"{quantile(work.waits, q) * 1e3:.2f}" if work.waits else "" for q in (0.5, 0.99)
            ]
            cpu = [f"{used * 1e6:.2f}" for used in (work.leader_seconds, work.follower_seconds)]
            rate = f"{work.messages_per_second:,.0f}"
            rows.append((work.measure, str(number), rate, *waits, *cpu))
    columns = ("copies", "messages/s", "p50 ms", "p99 ms", "leader", "each follower")
    title = "Copies of a log on one machine, flush = sync, CPU µs a message"
    show(title, ("measure", *columns), rows)


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
        show_costs("Access keys", await costs.of_access(folder, seconds))
    if "telemetry" in only:
        show_costs("Telemetry", await costs.of_telemetry(folder, seconds))
    if "copies" in only:
        await measure_copies(folder, seconds, count=1000)
    if "recovery" in only:
        await measure_recovery(folder)
    if "memory" in only:
        await measure_memory()


def main() -> None:
    given = parser("make bench", __doc__, PARTS, seconds=5.0).parse_args()
    with stores(given.dir) as folder:
        console.print(f"{os.cpu_count()} cores; stores in {folder.parent}")
        uvloop.run(measure(folder, set(given.only or PARTS), given.seconds))


if __name__ == "__main__":
    main()
