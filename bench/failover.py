"""`make failover`: how long producers wait when the leader of a log with three copies fails.

The leader is killed, stopped with a planned handover, or paused as if its machine had vanished; all
processes run on one machine. One producer sends single messages, another in bulk. The result of a
trial is the longest wait from a send to its acknowledgement. Exit status 1: a message was lost.
"""

import asyncio
import itertools
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

import rockoon
from bench.command import parser, show, stores
from bench.tables import quantile
from rockoon.admin.logs import LogDescription
from rockoon.local import LocalCluster
from rockoon_core.errors import RockoonError

LOG = "broker-a"

KINDS = {
    "kill": "killed (SIGKILL)",
    "hand over": "handed over (SIGTERM)",
    "freeze": "stopped (SIGSTOP)",
}

BULK_MESSAGES = 100
BULK_SECONDS = 0.02
LOOK_SECONDS = 0.05
SUCCESSOR_SECONDS_MAX = 60.0


class NoSuccessor(Exception):
    """Raised if the log still has no leader long after the former leader failed."""


@dataclass
class Sending:
    """Send statistics of one producer.

    Attributes:
        longest: the longest time from a send to its acknowledgement since the last reset, seconds.
        acknowledged: numbers of the acknowledged messages.
    """

    topic: str
    longest: float = 0.0
    acknowledged: set[int] = field(default_factory=set)
    failed: int = 0
    unsettled: dict[int, float] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def send(self, producer: rockoon.Producer) -> tuple[int, rockoon.Receipt]:
        number = next(self.numbers)
        self.unsettled[number] = time.perf_counter()
        return number, producer.send(self.topic, b"%d" % number)

    async def settle(self, number: int, receipt: rockoon.Receipt) -> None:
        try:
            await receipt
        except RockoonError:
            self.failed += 1
        else:
            self.acknowledged.add(number)
        self.longest = max(self.longest, time.perf_counter() - self.unsettled.pop(number))

    async def settled_since(self, moment: float) -> None:
        """Wait until all messages sent before a moment were acknowledged or have failed."""
        while True:
            if all(sent >= moment for sent in self.unsettled.values()):
                return
            await asyncio.sleep(LOOK_SECONDS)


@dataclass
class Outcome:
    """Result of all trials of one kind.

    Attributes:
        waits: by topic, the longest wait of each trial, seconds.
        failed: by topic, number of failed sends.
        lost: by topic, acknowledged messages that are not stored.
        doubled: by topic, number of duplicates.
    """

    waits: dict[str, list[float]]
    failed: dict[str, int]
    lost: dict[str, int] = field(default_factory=dict)
    doubled: dict[str, int] = field(default_factory=dict)


async def outcome_of(folder: Path, kind: str, trials: int, settle_seconds: float) -> Outcome:
    """Run trials in which the leader of the log fails; return the combined result.

    Args:
        kind: one of KINDS.
        trials: number of failures.
        settle_seconds: pause before each failure, in which followers catch up.

    Raises:
        NoSuccessor.
    """
    settings = {"broker": {"flush": "sync"}}
    async with (
        LocalCluster(folder, brokers=1, replicas=3, settings=settings) as local,
        rockoon.connect(local.nameservers) as cluster,
    ):
        sendings = [Sending("single"), Sending("bulk")]
        for sending in sendings:
            await cluster.admin.create_topic(sending.topic, queues_per_broker=4)
        waits: dict[str, list[float]] = {sending.topic: [] for sending in sendings}
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_singly(cluster, sendings[0], stop), name="single")
            tasks.create_task(send_in_bulk(cluster, sendings[1], stop), name="bulk")
            for _ in range(trials):
                await asyncio.sleep(settle_seconds)
                for sending in sendings:
                    sending.longest = 0.0
                await trial(local, cluster, kind, sendings)
                for sending in sendings:
                    waits[sending.topic].append(sending.longest)
                await whole(cluster)
            stop.set()
        outcome = Outcome(waits, {sending.topic: sending.failed for sending in sendings})
        for sending in sendings:
            found = await stored(cluster, sending.topic)
            outcome.lost[sending.topic] = len(sending.acknowledged - found.keys())
            outcome.doubled[sending.topic] = found.total() - len(found)
    return outcome


async def trial(
    local: LocalCluster, cluster: rockoon.Cluster, kind: str, sendings: list[Sending]
) -> None:
    """Run one trial: make the leader fail, wait until sends succeed again, and restart it."""
    before = await led(cluster, above=0)
    assert before.leader is not None
    name = before.leader.name
    node = local.node(name)
    if kind == "kill":
        await asyncio.to_thread(local.kill, name)
    elif kind == "hand over":
        await asyncio.to_thread(local.stop, name)
    else:
        node.signal(signal.SIGSTOP)
    try:
        await led(cluster, above=before.epoch)
        moment = time.perf_counter()
        for sending in sendings:
            await sending.settled_since(moment)
    finally:
        if kind == "freeze":
            node.signal(signal.SIGCONT)
    if kind != "freeze":
        await asyncio.to_thread(local.start, name)


async def led(cluster: rockoon.Cluster, above: int) -> LogDescription:
    """Wait until the log has a leader in an epoch above `above`; return its description."""
    try:
        async with asyncio.timeout(SUCCESSOR_SECONDS_MAX):
            while True:
                with suppress(RockoonError):
                    log = await cluster.admin.logs.describe(LOG)
                    if log.leader is not None and log.confirmed and log.epoch > above:
                        return log
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise NoSuccessor(f"{LOG}: nobody leads an epoch above {above}") from None


async def whole(cluster: rockoon.Cluster) -> None:
    """Wait until every replica of the log is running again."""
    while True:
        log = await led(cluster, above=0)
        if all(each.address is not None for each in log.replicas):
            return
        await asyncio.sleep(LOOK_SECONDS)


async def send_singly(cluster: rockoon.Cluster, sending: Sending, stop: asyncio.Event) -> None:
    async with cluster.producer() as producer:
        while not stop.is_set():
            await sending.settle(*sending.send(producer))


async def send_in_bulk(cluster: rockoon.Cluster, sending: Sending, stop: asyncio.Event) -> None:
    async with cluster.producer() as producer, asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            sent = [sending.send(producer) for _ in range(BULK_MESSAGES)]
            tasks.create_task(settle_all(sending, sent), name="settling")
            await producer.wait_capacity()
            await asyncio.sleep(BULK_SECONDS)


async def settle_all(sending: Sending, sent: list[tuple[int, rockoon.Receipt]]) -> None:
    for number, receipt in sent:
        await sending.settle(number, receipt)


async def stored(cluster: rockoon.Cluster, topic: str) -> Counter[int]:
    """Count the copies of each message in a topic."""
    found: Counter[int] = Counter()
    async with cluster.pull_consumer() as consumer:
        await consumer.assign_all(topic)
        await consumer.seek_to_beginning()
        while (batch := await consumer.poll_batch(timeout=2.0)) is not None:
            found.update(int(body) for body in batch.bodies)
    return found


COLUMNS = ("p50 s", "p99 s", "longest s", "lost", "doubled", "failed sends")


def rows(kind: str, outcome: Outcome) -> list[tuple[str, ...]]:
    """Return a table row for each producer."""
    made = []
    for topic, waits in outcome.waits.items():
        ordered = sorted(waits)
        figures = [quantile(ordered, share) for share in (0.5, 0.99)] + ordered[-1:]
        counts = (outcome.lost[topic], outcome.doubled[topic], outcome.failed[topic])
        made.append((KINDS[kind], topic, *(f"{each:.2f}" for each in figures), *map(str, counts)))
    return made


def main() -> int:
    options = parser("make failover", __doc__, KINDS)
    options.add_argument("--trials", type=int, default=20, help="of each kind, at least 1")
    options.add_argument("--settle", type=float, default=2.0, help="seconds before each trial")
    given = options.parse_args()
    # Errors of stopped processes are expected; lost messages are counted at the end.
    logging.getLogger("rockoon").setLevel(logging.ERROR)
    lost, shown = 0, []
    with stores(given.dir) as folder:
        for kind in given.only or KINDS:
            outcome = uvloop.run(outcome_of(folder / kind, kind, given.trials, given.settle))
            lost += sum(outcome.lost.values())
            shown += rows(kind, outcome)
    show(f"The leader goes, {given.trials} times each", ("leader", "producer", *COLUMNS), shown)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
