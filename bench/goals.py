"""`make bench-goals`: measures Rockoon's performance goals in one run, and compares the results.

A run needs ten minutes on two quiet cores. On busy cores, wall-clock figures mean little, and CPU
figures somewhat more. Each line has the load average before its part and the cores that other
programs used during it.

Parts: the rows of `make compare` that have a goal; many queues, topics and groups; the CPU time of
one process to read a whole log in the page cache, the best of several passes; an idle cluster and
the start of a process. Between them the speed of the machine without Rockoon is measured: Python,
compiled code, memory copies and disk syncs. In a virtual machine, a page that the page cache
allocates for the first time can cost ten times as much as one that was used before, because the
host must provide it. Rates with syncs are those of the disk.
"""

import asyncio
import os
import resource
import shutil
import sys
import time
import traceback
import zlib
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

import rockoon
from bench.cluster.idle import SETTLE_SECONDS, used
from bench.command import parser, stores
from bench.compare.__main__ import Turn
from bench.compare.figures import CONNECTIONS, CPU, ONE_SEND, PACED, RATE, TASKS, TIMES, rows
from bench.compare.peer import python_client
from bench.compare.programs import ROOT, ClientProgram, Program
from bench.loops import make_topic, nothing, one_broker, until
from bench.single import by_key, by_topic
from bench.single import measured as measured_sends
from bench.spark.jobs import WORK, Work, partitions_of
from bench.spark.stores import StoreMade, make_store
from bench.tables import P50, P99, Goal, markdown, shown, told, write
from bench.usage import Circumstances, circumstances, cpu_seconds, machine, resident_bytes
from rockoon.local import LocalCluster
from rockoon.local.directory import PortBlock
from rockoon_broker.store.log.scan import LogScan
from rockoon_core.disk import Disk
from rockoon_format import kernel
from rockoon_format.consume_queue import ENTRY_BYTES
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.index_entries import KeyEntries, Slots
from rockoon_format.index_file import SLOTS_DEFAULT, IndexHeader
from rockoon_spark.records.record_run import queue_runs_of
from rockoon_spark.source.file_partition import FilePartition
from rockoon_spark.source.log_source import SPLIT_BYTES, ContiguousPartition
from rockoon_spark.source.store_directory import contiguous_log

PAGE = ROOT / "docs" / "measurements" / "benchmarks.md"

# Messages.

EACH, LISTS = "produce 100 B, a call a message", "produce 100 B, lists"
LARGE = "produce 1 KiB, a call a message"
BROKER = "the broker's share of produce 100 B, with its index"
MANY_CONNECTIONS = "1,000 connections that await their sends, p99 beside that of one"
KAFKA = "Kafka's when the goal was set"
ASYNC, SYNC = "before a sync", "after a sync"

MESSAGES_GOALS = (
    Goal(f"{EACH}, {SYNC}", 1_290_000, RATE, is_floor=True, origin=KAFKA),
    Goal(f"{EACH}, {SYNC}, CPU", 1.3, CPU),
    Goal(f"{BROKER}, {SYNC}", 0.45, CPU),
    Goal(f"{LISTS}, {SYNC}", 2_200_000, RATE, is_floor=True, origin=f"1.5 times {KAFKA}"),
    Goal(f"{LARGE}, {SYNC}", 600_000, RATE, is_floor=True, origin=KAFKA),
    Goal("consume 100 B, columns", 3_500_000, RATE, is_floor=True),
    Goal("consume 100 B, lists of objects", 1_200_000, RATE, is_floor=True),
    Goal("push 100 B, a message a call", 280_000, RATE, is_floor=True),
    Goal("push 100 B, lists of up to 64", 900_000, RATE, is_floor=True),
    *(
        goal
        for mode, p50 in ((ASYNC, 0.25), (SYNC, 0.35))
        for goal in (
            Goal(f"{ONE_SEND}, {mode}, CPU", 300, CPU),
            Goal(f"{ONE_SEND}, {mode}, p50", p50, "ms"),
            Goal(f"{ONE_SEND}, {mode}, p99", 1.5, "ms"),
            Goal(f"{TASKS}, {mode}", 60_000, RATE, is_floor=True),
            Goal(f"{PACED}, {mode}, CPU", 500, CPU),
            Goal(f"{PACED}, {mode}, p50", 0.5, "ms"),
            Goal(f"{PACED}, {mode}, p99", 2, "ms"),
        )
    ),
    Goal(MANY_CONNECTIONS, 20, "times"),
)


def measure_messages(folder: Path, seconds: float) -> Iterator[tuple[str, float]]:
    """Measure the rows of `make compare` without and with a sync before the acknowledgement."""
    wanted = {goal.measure for goal in MESSAGES_GOALS}
    suffixes = {RATE: "", CPU: ", CPU", P50: ", p50", P99: ", p99"}
    for sync in (False, True):
        mode = SYNC if sync else ASYNC
        with _running(folder / mode.replace(" ", "-"), sync=sync) as (local, client):
            servers = [node.pid for node in local.nodes if node.pid is not None]
            turn = Turn(servers, client, "", folder)
            turn.connect(",".join(local.nameservers))
            turn.warm(seconds)
            for row in rows(sync=sync):
                name = row.name if row.reads else f"{row.name}, {mode}"
                if row.name == CONNECTIONS:
                    if not sync:
                        yield MANY_CONNECTIONS, turn.measured(row, seconds)[CONNECTIONS, TIMES]
                    continue
                if not any(each.startswith(name) for each in wanted):
                    continue
                broker, every = [local.node("broker-a").pid or 0], [*servers, client.pid]
                before = cpu_seconds(broker), cpu_seconds(every)
                found = turn.measured(row, seconds)
                share = (cpu_seconds(broker) - before[0]) / (cpu_seconds(every) - before[1])
                for (_, unit), value in found.items():
                    yield name + suffixes[unit], value
                if row.name == EACH:
                    yield f"{BROKER}, {mode}", share * found[row.name, CPU]
                    if sync:
                        yield from measure_machine(folder)


@contextmanager
def _running(folder: Path, *, sync: bool) -> Iterator[tuple[LocalCluster, ClientProgram]]:
    """Start a cluster, and a client in another process."""
    broker = {"flush": "sync" if sync else "async", "commit_log_file_bytes": "1GiB"}
    command = python_client("Rockoon", sys.executable, "rockoon_client")
    with LocalCluster(folder, brokers=1, settings={"broker": broker}) as local:
        client = ClientProgram(command.command, folder / "client.log", command.environment)
        try:
            yield local, client
        finally:
            client.stop()


# Many queues, topics and groups.

FEW, MANY = 10, 1_000
GROUPS = 100
GROUP_QUEUES = 8

KEYED = "a message to one of 1,000 keyed queues beside one of 10, CPU"
SPREAD = "a message to one of 1,000 topics beside one of 10, CPU"
TOPICS = "1,000 topics made"
ASSIGNED = "1,000 queues assigned to a member"
JOINED = "100 groups joined at once"

MANY_GOALS = (
    Goal(KEYED, 2, "times"),
    Goal(SPREAD, 2, "times"),
    Goal(TOPICS, 2, "s"),
    Goal(ASSIGNED, 1, "s"),
    Goal(JOINED, 5, "s"),
)


async def measure_many(folder: Path, seconds: float) -> AsyncIterator[tuple[str, float]]:
    """Measure on one cluster with one broker, flush = async; this process is the client."""
    async with one_broker(folder / "many") as (local, cluster):
        keyed = {count: await make_topic(cluster, f"keyed-{count}", count) for count in (FEW, MANY)}
        yield ASSIGNED, await _assigned(cluster, keyed[MANY])
        topics = [f"spread-{number}" for number in range(MANY)]
        yield TOPICS, await _topics_made(cluster, topics)
        yield JOINED, await _joined(cluster, await make_topic(cluster, "grouped", GROUP_QUEUES))
        for name, few, many in (
            (KEYED, by_key(keyed[FEW], FEW), by_key(keyed[MANY], MANY)),
            (SPREAD, by_topic(topics[:FEW]), by_topic(topics)),
        ):
            costs = []
            for sending in (few, many):
                work = await measured_sends(local, cluster, sending, seconds)
                costs.append((work.client_seconds + work.broker_seconds) / work.messages)
            yield name, costs[1] / costs[0]


async def _topics_made(cluster: rockoon.Cluster, names: list[str]) -> float:
    """Create topics of one queue and send a message to each; return the seconds of the creation."""
    began = time.perf_counter()
    await cluster.admin.create_topics(names, queues_per_broker=1)
    seconds = time.perf_counter() - began
    async with cluster.producer() as producer:
        for name in names:
            producer.send(name, b"first")
        await producer.flush()
    return seconds


async def _assigned(cluster: rockoon.Cluster, topic: str) -> float:
    """Return the seconds until a new member has been assigned all queues with start positions."""
    consumer = cluster.push_consumer("assigned", {topic: "*"}, nothing, consume_from="first")
    began = time.perf_counter()
    async with consumer:
        await until(lambda: len(consumer.assignment) == MANY)
        return time.perf_counter() - began


async def _joined(cluster: rockoon.Cluster, topic: str) -> float:
    """Return the seconds until the only member of each new group has its queues."""
    consumers = [
        cluster.push_consumer(f"joined-{number}", {topic: "*"}, nothing, consume_from="first")
        for number in range(GROUPS)
    ]
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(stack.enter_async_context(consumer), name="join")
        await until(lambda: all(len(each.assignment) == GROUP_QUEUES for each in consumers))
        return time.perf_counter() - began


# Logs.

Result = TypeVar("Result")

LOG_BYTES = 512 << 20
PASSES = 5
# The same as in `rockoon_spark.index.linking`.
LINKED_KEYS = 16_384
QUEUE_FILE_ENTRIES = 300_000

SCAN = "recovery reads the log, one core"
INDEX = "index built: keys found and linked, one core"
REBUILD = "ConsumeQueues rebuilt: entries by queue, one core"
EVERY = "Spark's decoding, all columns, one core"
FIXED = "Spark's decoding, fixed fields, one core"

LOGS_GOALS = (
    Goal(SCAN, 1.5, "GB/s", is_floor=True),
    Goal(INDEX, 12_000_000, "keys/s", is_floor=True),
    Goal(REBUILD, 9_000_000, "entries/s", is_floor=True),
    Goal(EVERY, 1.5, "GB/s", is_floor=True),
    Goal(FIXED, 2.5, "GB/s", is_floor=True),
)


def measure_logs(folder: Path) -> Iterator[tuple[str, float]]:
    """Measure the CPU cost of each way to read a log of 268-byte records; yield each value with its
    goal's name."""
    (store,) = make_store(folder / "logs", LOG_BYTES, 1)
    try:
        log = contiguous_log(str(store.path))
        partitions = list(log.partitions(log.start, log.end, SPLIT_BYTES))
        gigabytes = store.log_bytes / 1e9
        yield SCAN, gigabytes / best(lambda: scanned(store))[0]
        finding, keys = best(lambda: keys_of(partitions))
        linking, count = best(lambda: linked(keys))
        yield INDEX, count / (finding + linking)
        cutting, entries_bytes = best(lambda: runs_of(partitions))
        assert entries_bytes == store.records * ENTRY_BYTES
        yield REBUILD, store.records / cutting
        splits = partitions_of(store.path)
        for name, columns in ((EVERY, "+ body, properties"), (FIXED, "fixed fields")):
            yield name, gigabytes / best(partial(decoded, splits, WORK[columns]))[0]
    finally:
        shutil.rmtree(folder / "logs")


def best(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU seconds of the best pass, and its result."""
    found = []
    for _ in range(PASSES):
        began = time.process_time()
        result = work()
        found.append(time.process_time() - began)
    return min(found), result


def decoded(splits: list[FilePartition], work: Work) -> int:
    return sum(map(work, splits))


def scanned(store: StoreMade) -> int:
    walk = LogScan(store.path / "commitlog", LOG_BYTES, [0], Disk())
    count = sum(chunk.records.count for chunk in walk.chunks(0))
    assert count == store.records
    return count


def keys_of(partitions: list[ContiguousPartition]) -> list[KeyEntries]:
    return [run.keys() for partition in partitions for run in partition.runs()]


def linked(keys: list[KeyEntries]) -> int:
    """Add keys to an index file in memory; return their number."""
    header, slots = IndexHeader(), Slots(SLOTS_DEFAULT)
    for part in keys:
        for at in range(0, len(part), LINKED_KEYS):
            header = slots.put(header, part.without_first(at).first(LINKED_KEYS)).header
    return header.next_unit - 1


def runs_of(partitions: list[ContiguousPartition]) -> int:
    """Extract the ConsumeQueue entries of log partitions; return their size in bytes."""
    return sum(
        len(made.entries)
        for partition in partitions
        for _, made in queue_runs_of(partition.runs(), {}, DELAY_LEVELS_MS, QUEUE_FILE_ENTRIES)
    )


# Idle processes.

IDLE = "an idle cluster, two brokers"
SINGLE_IDLE = "an idle `rockoon up --single`"
SINGLE_BYTES = "`rockoon up --single`, resident memory"
SINGLE_FIRST = "`rockoon up --single`, from the command to the first message stored"
TRIES = 3

STILL_GOALS = (
    Goal(IDLE, 0.5, "% of a core"),
    Goal(SINGLE_IDLE, 0.5, "% of a core"),
    Goal(SINGLE_BYTES, 90, "MB"),
    Goal(SINGLE_FIRST, 0.5, "s"),
)


async def measure_still(folder: Path, seconds: float) -> AsyncIterator[tuple[str, float]]:
    async with LocalCluster(folder / "idle", brokers=2) as local:
        await asyncio.sleep(SETTLE_SECONDS)
        # Including etcd, but without this process.
        nodes = {node.name for node in local.nodes}
        figures = await used(local, seconds)
        yield IDLE, sum(percent for name, (percent, _) in figures.items() if name in nodes)
    yield SINGLE_FIRST, min([await _first_message(folder / f"first-{n}") for n in range(TRIES)])
    async with LocalCluster(folder / "single", single=True) as local:
        (node,) = local.nodes
        await _send(node.address)
        await asyncio.sleep(SETTLE_SECONDS)
        figures = await used(local, seconds)
        yield SINGLE_IDLE, figures[node.name][0]
        yield SINGLE_BYTES, resident_bytes(node.pid) / 1e6


async def _first_message(folder: Path) -> float:
    """Return the seconds from the start command until a message is stored."""
    ports = PortBlock()
    port = ports.choose()
    command = [Path(sys.executable).with_name("rockoon"), "up", "--single", "--dir", folder]
    began = time.perf_counter()
    program = Program("rockoon up", [*command, "--port", port], folder.with_suffix(".log"))
    try:
        await asyncio.to_thread(program.wait_listening, port)
        await _send(f"127.0.0.1:{port}")
        return time.perf_counter() - began
    finally:
        await asyncio.to_thread(program.stop)
        ports.close()


async def _send(address: str) -> None:
    async with rockoon.connect(address) as cluster:
        await cluster.admin.create_topic("first", queues_per_broker=1)
        async with cluster.producer() as producer:
            await producer.send("first", b"first")


# The machine without Rockoon.

MIB = 1 << 20
COPIED_MIB = 64
SYNCED_MIB = 16
NEW, AGAIN = "system \N{MICRO SIGN}s of a MiB new to the page cache", "of one that it has"
SYNCED = "MB/s of pwrite and fdatasync, a MiB each"
CALLED = "ns of an object of Python with a field and a call"
SUMMED = "GB/s of zlib's CRC-32"
FACTS = (CALLED, SUMMED, NEW, AGAIN, SYNCED)
OBJECTS = 100_000


class _Object:
    def __init__(self, field: int) -> None:
        self.field = field

    def read(self) -> int:
        return self.field


def measure_machine(folder: Path) -> Iterator[tuple[str, float]]:
    """Measure the speed of Python, compiled code, memory copies and disk syncs; yield each value
    with the name of its goal."""
    began = time.process_time()
    for number in range(OBJECTS):
        _Object(number).read()
    yield CALLED, (time.process_time() - began) / OBJECTS * 1e9
    path = folder / "alone"
    chunk = os.urandom(MIB)
    began = time.process_time()
    for _ in range(COPIED_MIB):
        zlib.crc32(chunk)
    yield SUMMED, COPIED_MIB * MIB / (time.process_time() - began) / 1e9
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(descriptor, 0, (COPIED_MIB + SYNCED_MIB) * MIB)
        for name in (NEW, AGAIN):
            before = _system_seconds()
            for number in range(COPIED_MIB):
                os.pwrite(descriptor, chunk, number * MIB)
            yield name, (_system_seconds() - before) / COPIED_MIB * 1e6
        os.fdatasync(descriptor)
        began = time.perf_counter()
        # After the copied bytes, because a log's bytes are written once into preallocated space.
        for number in range(COPIED_MIB, COPIED_MIB + SYNCED_MIB):
            os.pwrite(descriptor, chunk, number * MIB)
            os.fdatasync(descriptor)
        yield SYNCED, SYNCED_MIB * MIB / (time.perf_counter() - began) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def _system_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


# All parts.

GOALS = {
    "messages": MESSAGES_GOALS,
    "many": MANY_GOALS,
    "logs": LOGS_GOALS,
    "still": STILL_GOALS,
}
IDLE_SECONDS = 60.0
Values = Iterable[tuple[str, float]] | AsyncIterable[tuple[str, float]]
"""Values of a benchmark part by the names of goals, yielded as soon as each is measured."""


@dataclass(frozen=True)
class Measured:
    """Measured values of a benchmark part, and the state of the machine.

    Attributes:
        values: values by the names of goals.
        machine: state of the machine in the part.
        failure: reason of an early end; values measured before it are valid.
    """

    values: Mapping[str, float]
    machine: Circumstances
    failure: str = ""


def table(goals: Iterable[Goal], parts: Sequence[Measured]) -> str:
    """Return a table with a line per goal: goal, value, result, and the machine's state."""
    rows = []
    for goal in goals:
        part = next((each for each in parts if goal.measure in each.values), None)
        cells = ["not measured", "", ""]
        if part is not None:
            value = part.values[goal.measure]
            state = f"{part.machine.load:.1f}, {part.machine.others_cores:.1f}"
            cells = [f"{shown(value)} {goal.unit}", goal.verdict(value), state]
        rows.append((goal.measure, goal.told(), *cells))
    return markdown(("measure", "goal", "measured", "held", "load, others' cores"), rows)


def measured(part: Callable[[], Values]) -> Measured:
    """Run a benchmark part; an error ends it and is reported in the result."""
    values: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        values[name] = value
        told(f"  {name}: {value:.4g}")

    async def note_all(found: AsyncIterable[tuple[str, float]]) -> None:
        async for name, value in found:
            note(name, value)

    failure = ""
    with circumstances() as machine_state:
        try:
            found = part()
            if isinstance(found, AsyncIterable):
                uvloop.run(note_all(found))
            else:
                for name, value in found:
                    note(name, value)
        except Exception as error:  # noqa: BLE001 - the root of a part: the others are measured
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
    return Measured(values, machine_state, failure)


def main() -> int:
    options = parser("make bench-goals", __doc__, GOALS, seconds=2.0)
    options.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    options.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    arguments = options.parse_args()
    began = time.monotonic()
    with stores(arguments.dir) as folder:
        parts: dict[str, Callable[[], Values]] = {
            "messages": lambda: measure_messages(folder, arguments.seconds),
            "many": lambda: measure_many(folder, arguments.seconds),
            "logs": lambda: measure_logs(folder),
            "still": lambda: measure_still(folder, arguments.idle_seconds),
        }
        only = arguments.only or list(GOALS)
        results = []
        for part in only:
            told(part)
            results.append(measured(parts[part]))
    date = datetime.now(UTC).date().isoformat()
    made = (
        f"{date}, {machine()}, kernel: {kernel.name()}; {time.monotonic() - began:.0f} s.\n\n"
        f"{table([each for part in only for each in GOALS[part]], results)}"
    )
    facts = {name: value for each in results for name, value in each.values.items()}
    if by_itself := [f"{name}: {shown(facts[name])}" for name in FACTS if name in facts]:
        made += f"\n\nThe machine by itself, between them: {'; '.join(by_itself)}."
    print(made)
    if arguments.write:
        write(PAGE, made, "goals")
        told(f"written: {PAGE}")
    return int(any(each.failure for each in results))


if __name__ == "__main__":
    sys.exit(main())
