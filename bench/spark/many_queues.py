"""Cost of the plan of a stream that reads very many queues, without Spark.

The plan of a stream's first batch with a new consumer group, and the next plan, which commits the
offsets of all queues. CPU is that of the stream's driver, the broker and the offset service.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.command import show
from bench.usage import cpu_of
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, MessageQueue
from rockoon_spark.stream.reader import QueueStreamReader

QUEUES = 10_000
_TOPIC = "wide"


@dataclass(frozen=True, slots=True)
class PlanFigure:
    """One plan."""

    plan: str
    queues: int
    seconds: float
    cpu_seconds: float
    driver_cpu_seconds: float
    broker_cpu_seconds: float
    offset_cpu_seconds: float
    """The parts of the driver, the broker and the offset service."""
    checkpoint_bytes: int
    """Size of the offsets in Spark's checkpoint."""


def measure_plans(queues: int, rounds: int) -> list[PlanFigure]:
    """Create a topic, plan streams that read it, and print a table. `rounds`: number of new groups;
    the plans with the least CPU count."""
    # Small files, because each queue with a message has one.
    broker = {"disk_full_percent": 100, "disk_forced_percent": 100}
    broker["consume_queue_file_entries"] = 64
    runs: dict[str, list[PlanFigure]] = {}
    with DisposableCluster(settings={"broker": broker}) as cluster:
        with cluster.connect() as connection:
            connection.call(_make_topic(connection, queues))
            connection.call(_fill(connection, queues))
        for number in range(rounds):
            for figure in _plans(cluster, queues, f"group-{number}"):
                runs.setdefault(figure.plan, []).append(figure)
    found = [min(each, key=lambda run: run.cpu_seconds) for each in runs.values()]
    columns = ("queues", "s", "CPU s", "driver", "broker", "offset service", "checkpoint kB")
    show("streams with many queues", ("plan", *columns), map(_row, found))
    return found


async def _make_topic(connection: Cluster, queues: int) -> None:
    admin = connection.asyncio.admin
    blocks = [min(QUEUES_PER_CALL_MAX, queues - at) for at in range(0, queues, QUEUES_PER_CALL_MAX)]
    await admin.create_topic(_TOPIC, queues_per_broker=blocks[0])
    for count in blocks[1:]:
        await admin.update_topic(_TOPIC, add={"broker-a": count})


async def _fill(connection: Cluster, queues: int) -> None:
    """Send a message to each queue."""
    producer = connection.asyncio.producer()
    for number in range(queues):
        producer.send(_TOPIC, b"%d" % number, queue=MessageQueue(_TOPIC, "broker-a", number))
        await producer.wait_capacity()
    await producer.close()


def _plans(cluster: DisposableCluster, queues: int, group: str) -> list[PlanFigure]:
    pids = [cluster.node("broker-a").pid, cluster.node("offset").pid]
    options = {"endpoint": cluster.nameservers[0], "topics": _TOPIC, "startingOffsets": "earliest"}
    found = []

    def planned(name: str, plan: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before = [time.process_time(), *map(cpu_of, pids)]
        began = time.perf_counter()
        end = plan()
        seconds = time.perf_counter() - began
        after = [time.process_time(), *map(cpu_of, pids)]
        driver, broker, offset = (now - then for now, then in zip(after, before, strict=True))
        spent = (driver + broker + offset, driver, broker, offset)
        size = len(json.dumps(end))
        found.append(PlanFigure(name, queues, seconds, *spent, size))
        return end

    def first(reader: QueueStreamReader) -> dict[str, Any]:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.partitions(start, end)
        return end

    alone = QueueStreamReader(options)
    planned("first batch, no group", lambda: first(alone))
    alone.stop()
    reader = QueueStreamReader({**options, "consumerGroup": group})
    end = planned("first batch, new group", lambda: first(reader))
    planned("commit of all queues", lambda: reader.latestOffset(end, ReadAllAvailable()))
    reader.stop()
    return found


def _row(plan: PlanFigure) -> list[str]:
    services = (plan.driver_cpu_seconds, plan.broker_cpu_seconds, plan.offset_cpu_seconds)
    times = (f"{seconds:.2f}" for seconds in (plan.seconds, plan.cpu_seconds, *services))
    return [plan.plan, f"{plan.queues:,}", *times, f"{plan.checkpoint_bytes / 1e3:.0f}"]
