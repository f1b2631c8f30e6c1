"""Latency of awaited sends while another process reads a log that is not in the page cache.

Run: `.venv/bin/python -m bench.cold_reads`; `--disk-megabytes 125` limits the broker's disk reads
(as root, with the cgroup v1 controller blkio). One broker, flush = async, so that disk syncs do not
count. Rows: sends without a reader, with a reader of cached data, and with a reader of cold data.
"""

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

import uvloop

import rockoon
from bench.command import parser, stores
from bench.loops import one_broker, read_columns
from bench.tables import P50, P99, p50_p99
from rockoon.local import LocalCluster

BODY = bytes(1000)
LOG_BYTES = 2 << 30
RECORD_BYTES = 1165
PAUSE_SECONDS = 0.001
KINDS = ("alone", "cached", "cold")
BLKIO = Path("/sys/fs/cgroup/blkio")


async def read(nameservers: str, seconds: float) -> None:
    """Main function of the reader process: reads columns of all queues from the beginning."""
    counts: list[int] = []
    async with rockoon.connect(nameservers) as cluster:
        took = await read_columns(cluster, "filled", seconds, lambda count, _: counts.append(count))
    print(f"{sum(counts) / took:.0f}")


async def fill(cluster: rockoon.Cluster) -> None:
    await cluster.admin.create_topic("filled", queues_per_broker=8)
    await cluster.admin.create_topic("single", queues_per_broker=1)
    async with cluster.producer() as producer:
        for _ in range(LOG_BYTES // RECORD_BYTES // 10_000):
            await producer.send_many("filled", [BODY] * 10_000)


def evict(folder: Path) -> None:
    """Remove the pages of a folder's files from the page cache."""
    os.sync()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def slow_down(pid: int, folder: Path, bytes_per_second: int) -> None:
    group, device = BLKIO / "rockoon-bench", folder.stat().st_dev
    group.mkdir(exist_ok=True)
    rule = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
    (group / "blkio.throttle.read_bps_device").write_text(rule)
    (group / "cgroup.procs").write_text(str(pid))


async def measured(kind: str, local: LocalCluster, folder: Path, seconds: float) -> str:
    reader = None
    if kind == "cold":
        evict(folder)
    if kind != "alone":
        command = (sys.executable, "-m", __spec__.name, "--seconds", str(seconds))
        reader = await asyncio.create_subprocess_exec(
            *command, "--reads", ",".join(local.nameservers), stdout=asyncio.subprocess.PIPE
        )
    waits: list[float] = []
    async with rockoon.connect(local.nameservers) as cluster, cluster.producer() as producer:
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            await producer.send("single", BODY)
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)
    rate = "" if reader is None else (await reader.communicate())[0].decode().strip()
    shares = p50_p99(waits)
    return (
        f"{kind:>6}: {len(waits) / seconds:5.0f} sends/s, p50 {shares[P50]:.2f}, "
        f"p99 {shares[P99]:.1f}, max {max(waits) * 1e3:.0f} ms"
        + (f"; {int(rate):,} messages/s read" if rate else "")
    )


async def main() -> None:
    options = parser("python -m bench.cold_reads", __doc__, seconds=4.0)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--disk-megabytes", type=int, help="limit of the broker's reads, MB/s")
    options.add_argument("--reads", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.reads:
        await read(given.reads, given.seconds)
        return
    with stores(given.dir) as folder:
        async with one_broker(folder) as (local, cluster):
            await fill(cluster)
            if given.disk_megabytes:
                pid = local.node(local.brokers[0]).pid
                assert pid is not None
                slow_down(pid, folder, given.disk_megabytes * 1_000_000)
            for _ in range(given.rounds):
                for kind in KINDS:
                    print(await measured(kind, local, folder, given.seconds), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
