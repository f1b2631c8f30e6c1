"""Bytes that compaction writes for each new byte: many runs over a topic with Zipf's keys.

After each run, the newest message of each key that a reader gets is compared with the sent ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from bench.command import show
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.jobs.compact import compact
from rockoon_spark.records.selection import EVERYTHING
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import SPLIT_BYTES, DamagedRange, rows

TOPIC = "zipf"
BODY_BYTES = 200
MESSAGES = 1000
"""Messages of a run."""
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class CompactionFigure:
    """Some runs over one topic."""

    keys_before: int
    """Number of keys before the first run."""
    min_dirty_ratio: float
    runs: int
    skipped: int
    new_bytes: int
    """Bytes of the log that the runs had to compact."""
    written_bytes: int
    """Bytes of the files that the runs wrote."""
    retained_bytes: int
    """Bytes of the generations of all runs, which would be written without links."""
    parts: int
    """Number of parts of the last generation."""
    read_bytes: int
    """Bytes of the former generations that the runs read."""


def measure_compactions(spark: SparkSession, runs: int) -> list[CompactionFigure]:
    """Measure runs from a small and from a large topic, with and without `min_dirty_ratio`."""
    shapes = ((20_000, 0.0), (20_000, 0.5), (1000, 0.0))
    found = [_measure(spark, runs, keys_before, ratio) for keys_before, ratio in shapes]
    columns = (
        *("keys before", "min-dirty-ratio", "runs", "skipped", "new MB", "written MB"),
        *("written / new", "without links", "parts", "read MB"),
    )
    rows = (
        (
            *(f"{each.keys_before:,}", f"{each.min_dirty_ratio:g}", str(each.runs)),
            *(str(each.skipped), f"{each.new_bytes / 1e6:.2f}", f"{each.written_bytes / 1e6:.2f}"),
            f"{each.written_bytes / each.new_bytes:.2f}",
            f"{each.retained_bytes / each.new_bytes:.2f}",
            *(str(each.parts), f"{each.read_bytes / 1e6:.2f}"),
        )
        for each in found
    )
    show(f"compaction, {MESSAGES:,} new messages a run, Zipf's keys", columns, rows)
    return found


def _measure(
    spark: SparkSession, runs: int, keys_before: int, min_dirty_ratio: float
) -> CompactionFigure:
    choose = np.random.default_rng(1)
    newest: dict[str, bytes] = {}
    weights = 1 / np.arange(1, keys_before + 1)
    weights /= weights.sum()
    skipped = new_bytes = written = retained = parts = read = 0
    with DisposableCluster() as cluster, cluster.connect() as connection:
        attributes = {"cleanup.policy": "COMPACTION"}
        # In one queue, so that the order of the log is the order of sending.
        connection.call(
            connection.admin.create_topic(TOPIC, queues_per_broker=1, attributes=attributes)
        )
        [target] = broker_targets(cluster.nameservers[0])
        _send(connection, newest, choose, np.arange(keys_before))
        end = compact(spark, target, min_dirty_ratio=0.0).log_end
        for _ in range(runs):
            _send(connection, newest, choose, choose.choice(keys_before, MESSAGES, p=weights))
            report = compact(spark, target, min_dirty_ratio=min_dirty_ratio)
            new_bytes, end = new_bytes + report.log_end - end, report.log_end
            skipped += bool(report.skipped)
            written += report.bytes_written
            retained += report.bytes_written + report.bytes_linked
            parts = report.parts or parts
            read += report.former_bytes
            if _read(cluster.nameservers[0]) != newest:
                raise AssertionError("a reader does not get the newest message of each key")
    return CompactionFigure(
        *(keys_before, min_dirty_ratio, runs, skipped),
        *(new_bytes, written, retained, parts, read),
    )


def _send(
    connection: Cluster,
    newest: dict[str, bytes],
    choose: np.random.Generator,
    numbers: np.ndarray[Any, np.dtype[np.int64]],
) -> None:
    """Send one message for each key, in order."""
    keys = [f"key-{number}" for number in numbers.tolist()]
    bodies = [choose.bytes(BODY_BYTES) for _ in keys]
    for at in range(0, len(keys), _BATCH):
        own = slice(at, at + _BATCH)
        connection.send_many(TOPIC, bodies[own], keys=keys[own])
    newest.update(zip(keys, bodies, strict=True))


def _read(nameserver: str) -> dict[str, bytes]:
    """Return the last message of each key, as a reader of the compacted topic gets it."""
    selection = EVERYTHING.among("topic", frozenset({TOPIC}))
    found: dict[str, tuple[int, bytes]] = {}
    for partition in LiveCluster(nameserver).partitions(selection, SPLIT_BYTES):
        columns = ("physical_offset", "keys", "body")
        for batch in rows(partition.read(), selection, columns, _refuse):
            for offset, key, body in zip(*(column.to_pylist() for column in batch), strict=True):
                found[key] = max(found.get(key, (-1, b"")), (offset, body))
    return {key: body for key, (_, body) in found.items()}


def _refuse(damage: DamagedRange) -> None:
    raise AssertionError(damage)
