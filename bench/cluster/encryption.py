"""Cost of TLS: the same work without TLS, with TLS and with mutual TLS, in turns."""

from pathlib import Path

import rockoon
from bench.cluster import throughput
from bench.cluster.throughput import Rate
from rockoon.local import LocalCluster

MODES = ("off", "on", "mutual")
ROUNDS = 3
SENDS = 1000
BODY_BYTES = (100, 1024)


async def by_mode(folder: Path, seconds: float) -> dict[str, list[Rate]]:
    """Measure each TLS setting in several rounds; return the best rate of each measure.

    The best, because disturbances on a shared machine only reduce rates. The last measure is single
    sends as a rate: the reciprocal of the median latency.
    """
    best: dict[str, list[Rate]] = {}
    for turn in range(ROUNDS):
        for mode in MODES:
            rates = await measured(folder / f"{mode}-{turn}", mode, seconds / ROUNDS)
            known = best.get(mode, rates)
            best[mode] = [
                max(pair, key=lambda rate: rate.messages_per_second)
                for pair in zip(known, rates, strict=True)
            ]
    return best


async def measured(folder: Path, mode: str, seconds: float) -> list[Rate]:
    settings = {"broker": {"flush": "async", "commit_log_file_bytes": "1GiB"}}
    rates = []
    async with (
        LocalCluster(folder, brokers=1, settings=settings, tls=mode) as local,
        rockoon.connect(local.nameservers, tls=local.tls) as cluster,
    ):
        for body_bytes in BODY_BYTES:
            topic = f"bench-{body_bytes}"
            await cluster.admin.create_topic(topic, queues_per_broker=8)
            rates.append(await throughput.append(cluster, topic, body_bytes, seconds))
            rates.append(await throughput.pull(cluster, topic, body_bytes, seconds))
        await cluster.admin.create_topic("latency", queues_per_broker=1)
        latencies = await throughput.send_latencies(cluster, "latency", SENDS)
    median = latencies[len(latencies) // 2]
    return [*rates, Rate("1 / p50 of one send", 1 / median, 100 / median)]
