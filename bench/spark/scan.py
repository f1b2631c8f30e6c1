"""Cost of `rockoon.arrow.scan`: CPU seconds of the reader, and the time to its first batch."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

import rockoon.arrow
from bench.command import show
from rockoon.testing.disposable import DisposableCluster

BODY_BYTES = 1000
_BATCH = 2000
_TOPIC = "orders"
_COLUMNS = ("queue", "queue_offset", "body", "store_time")


@dataclass(frozen=True, slots=True)
class ScanFigure:
    """One scan of a topic."""

    source: str
    rows: int
    bytes: int
    """Bytes of the columns."""
    first_batch_ms: float
    first_batch_cpu_ms: float
    """CPU milliseconds of the reader up to the first batch."""
    seconds: float
    cpu_seconds: float
    """CPU seconds of the reader."""


def measure_scans(column_bytes: int, rounds: int) -> list[ScanFigure]:
    """Fill a broker, scan it and its directory, and print a table.

    Args:
        column_bytes: approximate size of the columns.
        rounds: number of scans of each; the one with the least CPU counts.
    """
    # After its end, a measure of reads uses no room on the disk.
    broker = {"disk_full_percent": 100, "disk_forced_percent": 100}
    with DisposableCluster(settings={"broker": broker}) as cluster:
        with cluster.connect() as connection:
            connection.call(connection.admin.create_topic(_TOPIC, queues_per_broker=8))
            for _ in range(column_bytes // (BODY_BYTES * _BATCH)):
                connection.send_many(_TOPIC, [bytes(BODY_BYTES)] * _BATCH)
        found = [_best("cluster", cluster.nameservers[0], rounds)]
        cluster.stop("broker-a")
        store = next(cluster.directory.rglob("commitlog")).parent
        found.append(_best("directory", str(store), rounds))
    show(
        "rockoon.arrow.scan",
        ("from", "rows", "MB", "first batch ms", "its CPU ms", "s", "CPU s"),
        (
            (
                *(each.source, f"{each.rows:,}", f"{each.bytes / 1e6:.1f}"),
                *(f"{each.first_batch_ms:.1f}", f"{each.first_batch_cpu_ms:.1f}"),
                *(f"{each.seconds:.2f}", f"{each.cpu_seconds:.2f}"),
            )
            for each in found
        ),
    )
    return found


def _best(source: str, location: str, rounds: int) -> ScanFigure:
    read = partial(rockoon.arrow.scan, location, _TOPIC, columns=_COLUMNS)
    return min((_scan(source, read) for _ in range(rounds)), key=lambda run: run.cpu_seconds)


def _scan(source: str, read: Callable[[], pa.RecordBatchReader]) -> ScanFigure:
    cpu, began = time.process_time(), time.perf_counter()
    reader = read()
    first = reader.read_next_batch()
    first_at, first_cpu = time.perf_counter(), time.process_time()
    rows, size = first.num_rows, first.nbytes
    for batch in reader:
        rows += batch.num_rows
        size += batch.nbytes
    return ScanFigure(
        source,
        rows,
        size,
        round((first_at - began) * 1000, 1),
        round((first_cpu - cpu) * 1000, 1),
        round(time.perf_counter() - began, 3),
        round(time.process_time() - cpu, 3),
    )
