"""Throughput of appends and pulls through the real client and broker."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import rockoon
from rockoon.local import LocalCluster


@dataclass(frozen=True)
class Rate:
    """Result of one measure."""

    measure: str
    messages_per_second: float
    bytes_per_second: float
    """Bytes per second of stored records, including properties and other fields."""


async def appended_bytes(cluster: rockoon.Cluster) -> int:
    status = await cluster.admin.status()
    return sum(node.broker.bytes_appended for node in status.brokers if node.broker is not None)


async def append(
    cluster: rockoon.Cluster,
    topic: str,
    body_bytes: int,
    seconds: float,
    *,
    idempotent: bool = False,
) -> Rate:
    """Measure one producer with default settings: `send()` for every message."""
    body = b"x" * body_bytes
    before = await appended_bytes(cluster)
    async with cluster.producer(idempotent=idempotent) as producer:
        await producer.send(topic, body)
        send = producer.send
        sent = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(500):
                send(topic, body, tags="TagA")
            sent += 500
            await producer.wait_capacity()
        await producer.flush()
        elapsed = time.perf_counter() - began
    stored = await appended_bytes(cluster) - before
    name = "append, idempotent" if idempotent else "append"
    return Rate(f"{name}, {body_bytes} B", sent / elapsed, stored / elapsed)


async def pull(cluster: rockoon.Cluster, topic: str, body_bytes: int, seconds: float) -> Rate:
    """Measure one reader of all queues that reads offsets and bodies as columns."""
    messages = record_bytes = 0
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all(topic)
        await consumer.seek_to_beginning()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            batch = await consumer.poll_batch(timeout=1.0)
            if batch is None:
                break
            assert len(batch.bodies) == len(batch.offsets)
            messages += len(batch)
            record_bytes += int(batch.columns.lengths.sum())
        elapsed = time.perf_counter() - began
    return Rate(f"pull columns, {body_bytes} B", messages / elapsed, record_bytes / elapsed)


async def send_latencies(cluster: rockoon.Cluster, topic: str, count: int) -> list[float]:
    """Measure the seconds of `count` consecutive single sends of 100-byte bodies; sorted."""
    seconds = []
    async with cluster.producer() as producer:
        for _ in range(50):
            await producer.send(topic, b"x" * 100)
        for _ in range(count):
            began = time.perf_counter()
            await producer.send(topic, b"x" * 100)
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def resident_bytes(local: LocalCluster) -> dict[str, int]:
    """Return the resident memory of each process of an idle cluster (VmRSS)."""
    sizes = {}
    for node in local.nodes:
        with open(f"/proc/{node.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        sizes[node.name] = int(line.split()[1]) * 1024
    return sizes


async def recovery(local: LocalCluster, broker: str) -> tuple[float, float, int, int]:
    """Kill a broker and start it again.

    Returns:
        Seconds until it serves, seconds of that spent in recovery, bytes scanned, log bytes.
    """
    await asyncio.to_thread(local.kill, broker)
    began = time.perf_counter()
    await asyncio.to_thread(local.start, broker)
    seconds = time.perf_counter() - began
    async with rockoon.connect(local.nameservers) as cluster:
        status = await cluster.admin.status()
        described = next(node.broker for node in status.brokers if node.name == broker)
        assert described is not None
    return (
        seconds,
        described.recovery_seconds,
        described.recovery_bytes_scanned,
        described.log_max_offset,
    )


async def appended_log_end(cluster: rockoon.Cluster) -> int:
    """Return the sum of the end offsets of the brokers' logs."""
    status = await cluster.admin.status()
    return sum(node.broker.log_max_offset for node in status.brokers if node.broker is not None)


async def fill(cluster: rockoon.Cluster, topic: str, log_bytes: int) -> None:
    """Append 1-KiB messages until the log has about this size (within a MiB)."""
    async with cluster.producer() as producer:
        while (missing := log_bytes - await appended_log_end(cluster)) > 0:
            for _ in range(min(missing // 1200 + 1, 20_000)):
                producer.send(topic, b"x" * 1024)
                await producer.wait_capacity()
            await producer.flush()


async def settle(cluster: rockoon.Cluster) -> None:
    """Wait until the log is on disk, and a recovery point was written after that."""
    for _ in range(2):
        end = await appended_log_end(cluster)
        synced = 0
        while synced < end:
            await asyncio.sleep(1.5)
            status = await cluster.admin.status()
            synced = sum(n.broker.log_synced_offset for n in status.brokers if n.broker is not None)


FILE_BYTES = 1 << 30


CHUNK_BYTES = 200 << 10


def raw_write_bytes_per_second(folder: Path) -> float:
    """Write a pre-allocated file of 1 GiB in chunks without a sync; return bytes per second."""
    path = folder / "raw"
    chunk = os.urandom(CHUNK_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        began = time.perf_counter()
        for offset in range(0, FILE_BYTES - CHUNK_BYTES, CHUNK_BYTES):
            os.pwrite(descriptor, chunk, offset)
        return FILE_BYTES / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
