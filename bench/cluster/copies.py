"""Cost of copies: the same work on a log with one copy and with three, in alternating turns.

All processes share one machine, and three copies write and sync three times as much to one disk. So
CPU time of the leader and of each follower is more meaningful than rates.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import rockoon
from bench.cluster import throughput
from rockoon.local import LocalCluster

COPIES = (1, 3)
ORDER = (1, 3, 3, 1)
LOG = "broker-a"
BODY_BYTES = 100


@dataclass(frozen=True)
class Work:
    """Result of one measure.

    Attributes:
        measure: name of the measure.
        messages_per_second: the rate.
        leader_seconds, follower_seconds: CPU time per message of the leader and of one follower; 0
            without followers.
        waits: seconds of single sends, ascending; empty for other measures.
    """

    measure: str
    messages_per_second: float
    leader_seconds: float
    follower_seconds: float
    waits: tuple[float, ...] = ()


async def by_copies(folder: Path, seconds: float, count: int) -> dict[int, list[Work]]:
    """Measure a log with one copy and with three; return the turns with the least CPU of the
    leader, by number of copies.

    Args:
        folder: directory for the stores.
        seconds: duration of each rate.
        count: number of single sends.
    """
    turns: dict[int, list[list[Work]]] = {copies: [] for copies in COPIES}
    for turn, copies in enumerate(ORDER):
        turns[copies].append(await measured(folder / f"copies-{turn}", copies, seconds, count))
    return {
        copies: [
            min(works, key=lambda work: work.leader_seconds) for works in zip(*each, strict=True)
        ]
        for copies, each in turns.items()
    }


async def measured(folder: Path, copies: int, seconds: float, count: int) -> list[Work]:
    settings = {"broker": {"flush": "sync"}}
    async with (
        LocalCluster(folder, brokers=1, replicas=copies, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        await cluster.admin.create_topic("bulk", queues_per_broker=8)
        await cluster.admin.create_topic("single", queues_per_broker=1)
        leader = await leader_of(cluster, local)
        # Warm-up: creates connections and queue files.
        await throughput.append(cluster, "bulk", BODY_BYTES, min(seconds, 0.5))
        began, before = time.perf_counter(), cpu_seconds(local)
        rate = await throughput.append(cluster, "bulk", BODY_BYTES, seconds)
        sent = round(rate.messages_per_second * (time.perf_counter() - began))
        bulk = work(
            f"append, {BODY_BYTES} B", rate.messages_per_second, sent, leader, before, local
        )
        before = cpu_seconds(local)
        waits = await throughput.send_latencies(cluster, "single", count)
        single = work(
            "one message at a time", count / sum(waits), count, leader, before, local, tuple(waits)
        )
    return [bulk, single]


def work(
    measure: str,
    messages_per_second: float,
    messages: int,
    leader: str,
    before: dict[str, float],
    local: LocalCluster,
    waits: tuple[float, ...] = (),
) -> Work:
    used = {name: now - before[name] for name, now in cpu_seconds(local).items()}
    leading = used.pop(leader)
    following = sum(used.values()) / len(used) if used else 0.0
    return Work(measure, messages_per_second, leading / messages, following / messages, waits)


async def leader_of(cluster: rockoon.Cluster, local: LocalCluster) -> str:
    """Return the name of the log's leader; without copies, of the only node."""
    nodes = local.replicas_of(LOG)
    if len(nodes) == 1:
        return nodes[0]
    leader = (await cluster.admin.logs.describe(LOG)).leader
    assert leader is not None, "the topic was created, so the log has a leader"
    return leader.name


def cpu_seconds(local: LocalCluster) -> dict[str, float]:
    """Return the CPU seconds of each replica since its start."""
    return {name: cpu_seconds_of(local.node(name).pid) for name in local.replicas_of(LOG)}


def cpu_seconds_of(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
