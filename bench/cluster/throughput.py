"""Throughput of appends and pulls, recovery, and the upper limit of the disk's write rate."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import rockoon
from bench.loops import BODY, read_columns, send_closed
from rockoon.local import LocalCluster
from rockoon_proto.v1.broker_pb2 import DescribeBrokerReply

RAW_FILE_BYTES = 1 << 30
RAW_CHUNK_BYTES = 200 << 10


@dataclass(frozen=True)
class Rate:
    """Result of one measure."""

    measure: str
    messages_per_second: float
    bytes_per_second: float
    """Bytes per second of stored records, including properties and other fields."""


async def brokers_of(cluster: rockoon.Cluster) -> list[DescribeBrokerReply]:
    """Return the states of the brokers that answer."""
    status = await cluster.admin.status()
    return [node.broker for node in status.brokers if node.broker is not None]


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
    before = sum(each.bytes_appended for each in await brokers_of(cluster))
    async with cluster.producer(idempotent=idempotent) as producer:
        await producer.send(topic, body)
        sent, elapsed = await send_closed([producer], topic, body, seconds, tags="TagA")
    stored = sum(each.bytes_appended for each in await brokers_of(cluster)) - before
    name = "append, idempotent" if idempotent else "append"
    return Rate(f"{name}, {body_bytes} B", sent / elapsed, stored / elapsed)


async def pull(cluster: rockoon.Cluster, topic: str, body_bytes: int, seconds: float) -> Rate:
    """Measure one reader of all queues that reads offsets and bodies as columns."""
    messages = record_bytes = 0

    def read(count: int, size: int) -> None:
        nonlocal messages, record_bytes
        messages += count
        record_bytes += size

    elapsed = await read_columns(cluster, topic, seconds, read)
    return Rate(f"pull columns, {body_bytes} B", messages / elapsed, record_bytes / elapsed)


async def send_latencies(cluster: rockoon.Cluster, topic: str, count: int) -> list[float]:
    """Measure the seconds of `count` consecutive single sends of 100-byte bodies; sorted."""
    seconds = []
    async with cluster.producer() as producer:
        for _ in range(50):
            await producer.send(topic, BODY)
        for _ in range(count):
            began = time.perf_counter()
            await producer.send(topic, BODY)
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)


async def recovery(local: LocalCluster, broker: str) -> tuple[float, float, int, int]:
    """Kill a broker and start it again. Returns the seconds until it serves, the part of recovery,
    the bytes scanned, and the bytes of the log."""
    await asyncio.to_thread(local.kill, broker)
    began = time.perf_counter()
    await asyncio.to_thread(local.start, broker)
    seconds = time.perf_counter() - began
    async with rockoon.connect(local.nameservers) as cluster:
        (state,) = await brokers_of(cluster)
    return seconds, state.recovery_seconds, state.recovery_bytes_scanned, state.log_max_offset


async def fill(cluster: rockoon.Cluster, topic: str, log_bytes: int) -> None:
    """Append 1-KiB messages until the log has about this size (within a MiB)."""
    async with cluster.producer() as producer:
        while (missing := log_bytes - (await brokers_of(cluster))[0].log_max_offset) > 0:
            for _ in range(min(missing // 1200 + 1, 20_000)):
                producer.send(topic, b"x" * 1024)
                await producer.wait_capacity()
            await producer.flush()


async def settle(cluster: rockoon.Cluster) -> None:
    """Wait until the log is on disk, and a recovery point was written after that."""
    for _ in range(2):
        end, synced = (await brokers_of(cluster))[0].log_max_offset, 0
        while synced < end:
            await asyncio.sleep(1.5)
            synced = (await brokers_of(cluster))[0].log_synced_offset


def raw_write_bytes_per_second(folder: Path) -> float:
    """Write a pre-allocated file of 1 GiB in chunks without a sync; return bytes per second."""
    path = folder / "raw"
    chunk = os.urandom(RAW_CHUNK_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(descriptor, 0, RAW_FILE_BYTES)
        began = time.perf_counter()
        for offset in range(0, RAW_FILE_BYTES - RAW_CHUNK_BYTES, RAW_CHUNK_BYTES):
            os.pwrite(descriptor, chunk, offset)
        return RAW_FILE_BYTES / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
