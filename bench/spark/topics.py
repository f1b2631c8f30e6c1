"""Cost of a read of one topic among others: bytes that reach the reader, and CPU seconds.

A read of the whole log, from which the reader selects the topic, is compared with a read that names
the topic: from a running broker, and from its directory. Spark is left out, because its start would
hide the difference.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.command import show
from bench.usage import cpu_of
from rockoon.sync import Cluster
from rockoon.testing.disposable import DisposableCluster
from rockoon_spark import files
from rockoon_spark.broker_calls import RepeatedCall
from rockoon_spark.records.selection import EVERYTHING, Selection
from rockoon_spark.source import file_partition, queue_entries
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import SPLIT_BYTES, DamagedRange, LogPartition, rows
from rockoon_spark.source.store_directory import StoreDirectory

BODY_BYTES = 200
RARE_ONE_IN = 100
"""One message in so many is of the rare topic."""
_BATCH = 2000
_COLUMNS = ("topic", "queue", "queue_offset", "body", "store_time")
_RARE, _COMMON = "rare", "common"


@dataclass(frozen=True, slots=True)
class TopicFigure:
    """One read."""

    source: str
    read: str
    rows: int
    bytes: int
    """Bytes of the broker's replies, or bytes of the files that were read."""
    cpu_seconds: float
    """CPU seconds of the reader, and of the broker if it runs."""


class _Carried:
    bytes = 0


@contextmanager
def _counted() -> Iterator[_Carried]:
    """Count the bytes of replies and of file reads within the block."""
    carried = _Carried()
    answer, read, read_ranges = RepeatedCall.answer, files.read_bytes, files.read_ranges
    reading = files.reading

    def counted_answer(call: RepeatedCall[Any, Any]) -> Any:
        reply = answer(call)
        carried.bytes += reply.ByteSize()
        return reply

    def counted_read(uri: str, start: int, stop: int | None) -> Any:
        found = read(uri, start, stop)
        carried.bytes += len(found)
        return found

    def counted_ranges(file: files.LogFile, starts: Sequence[int], sizes: Sequence[int]) -> Any:
        found = read_ranges(file, starts, sizes)
        carried.bytes += sum(map(len, found))
        return found

    @contextmanager
    def counted_reading(file: files.LogFile) -> Iterator[Callable[[int, int], bytes]]:
        with reading(file) as read_at:

            def counted_read_at(size: int, start: int) -> bytes:
                found = read_at(size, start)
                carried.bytes += len(found)
                return found

            yield counted_read_at

    counters: list[tuple[Any, str, Any]] = [
        (RepeatedCall, "answer", counted_answer),
        (files, "read_bytes", counted_read),
        (queue_entries, "reading", counted_reading),
        (file_partition, "read_ranges", counted_ranges),
    ]
    originals = [getattr(place, name) for place, name, _ in counters]
    for place, name, counter in counters:
        setattr(place, name, counter)
    try:
        yield carried
    finally:
        for (place, name, _), original in zip(counters, originals, strict=True):
            setattr(place, name, original)


def _refuse(damage: DamagedRange) -> None:
    raise AssertionError(damage)


def measure_topics(log_bytes: int, rounds: int) -> list[TopicFigure]:
    """Fill a broker, measure all reads, and print a table.

    Args:
        log_bytes: approximate size of the log.
        rounds: number of runs of each read; the one with the least CPU counts.
    """
    found: list[TopicFigure] = []
    rare = EVERYTHING.among("topic", frozenset({_RARE}))
    # A measure of reads needs no room on the disk afterwards.
    broker = {"disk_full_percent": 100, "disk_forced_percent": 100}
    with DisposableCluster(settings={"broker": broker}) as cluster:
        with cluster.connect() as connection:
            starts = _fill(connection, log_bytes // (BODY_BYTES + 250))
        tail = replace(EVERYTHING.among("topic", frozenset({_COMMON})), starts=starts)
        live = LiveCluster(cluster.nameservers[0], compacted=True)
        node = cluster.node("broker-a")

        def broker_cpu() -> float:
            return cpu_of(node.pid)

        def whole(selection: Selection) -> Sequence[LogPartition]:
            return live.partitions_of("broker-a", node.address, selection, SPLIT_BYTES)

        selections = (("1 % of the log", rare), ("end of the queues", tail))
        for name, selection in selections:
            everything = _best(partial(whole, selection), selection, broker_cpu, rounds)
            found.append(TopicFigure("cluster", f"{name}, whole log", *everything))
            only = partial(live.partitions, selection, SPLIT_BYTES)
            found.append(TopicFigure("cluster", name, *_best(only, selection, broker_cpu, rounds)))
        cluster.stop("broker-a")
        store = next(cluster.directory.rglob("commitlog")).parent
        for name, selection in selections:
            for read, planned in ((f"{name}, whole log", EVERYTHING), (name, selection)):
                # A local path is mapped, so the bytes that are read are counted with a URI.
                (count, _, cpu_seconds), (_, carried, _) = (
                    _best(
                        partial(StoreDirectory(place, "broker-a").partitions, planned, SPLIT_BYTES),
                        selection,
                        lambda: 0.0,
                        rounds,
                    )
                    for place in (str(store), store.as_uri())
                )
                found.append(TopicFigure("directory", read, count, carried, cpu_seconds))
    show(
        "one topic among others",
        ("from", "read", "rows", "MB carried", "CPU s"),
        (
            (
                *(each.source, each.read, f"{each.rows:,}"),
                *(f"{each.bytes / 1e6:.2f}", f"{each.cpu_seconds:.4f}"),
            )
            for each in found
        ),
    )
    return found


def _fill(connection: Cluster, messages: int) -> dict[tuple[str, str, int], int]:
    """Send messages of both topics; return the offsets in the common topic's queues after which 1 %
    of its messages follow."""
    for topic in (_RARE, _COMMON):
        connection.call(connection.admin.create_topic(topic, queues_per_broker=8))
    sent = 0
    while sent < messages:
        count = min(_BATCH, messages - sent)
        connection.send_many(_COMMON, [bytes(BODY_BYTES)] * (count - count // RARE_ONE_IN))
        connection.send_many(_RARE, [bytes(BODY_BYTES)] * (count // RARE_ONE_IN))
        sent += count
    described = connection.call(connection.admin.describe_topic(_COMMON))
    ends = {each.queue.queue_id: each.state.max_offset for each in described.queues if each.state}
    return {(_COMMON, "", queue): end - end // RARE_ONE_IN for queue, end in ends.items()}


def _best(
    plan: Callable[[], Sequence[LogPartition]],
    selection: Selection,
    broker_cpu: Callable[[], float],
    rounds: int,
) -> tuple[int, int, float]:
    """Return the rows, the carried bytes and the CPU seconds of a read; the best of some runs."""
    runs = []
    for _ in range(rounds):
        before = time.process_time() + broker_cpu()
        with _counted() as carried:
            count = sum(
                batch.num_rows
                for partition in plan()
                for batch in rows(partition.read(), selection, _COLUMNS, _refuse)
            )
        spent = time.process_time() + broker_cpu() - before
        runs.append((count, carried.bytes, round(spent, 4)))
    return min(runs, key=lambda run: run[2])
