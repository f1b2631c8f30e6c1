"""`rockoon top`: rates of topics and groups from the growth of offsets between samples.

A sample has the end of each queue and the settled offset of each group on it, with the broker's
time. A rate is the sum of the queues' growth per second since the oldest sample of the window.
Consumers commit every few seconds, so the window is longer than the interval between two samples.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rockoon.cli.output import counted, duration, picked, print_table

if TYPE_CHECKING:
    from rockoon.admin.reads import GroupLag
    from rockoon.cluster import Cluster
    from rockoon_core.message_queue import MessageQueue
    from rockoon_proto.v1.offset_pb2 import QueueLag

WINDOW_SECONDS = 10.0
# Samples that are kept: each has an entry for each queue and group.
SAMPLES_MAX = 11


class Mark(NamedTuple):
    """An offset of a queue at a time of its broker's clock."""

    offset: int
    as_of_ms: int
    # Create revision of the queue; 0: unknown.
    create_revision: int


@dataclass(frozen=True, slots=True)
class Sample:
    """State of a cluster.

    Attributes:
        taken_seconds: monotonic.
        settled: offset up to which a reader (group and member) has settled a queue.
        unknown: broker → why the ends of its queues are unknown.
    """

    taken_seconds: float
    ends: Mapping["MessageQueue", Mark]
    settled: Mapping[tuple[str, str, "MessageQueue"], Mark]
    lags: Sequence["GroupLag"]
    unknown: Mapping[str, str]


@dataclass(slots=True)
class TopGroupRow:
    """A group on one topic.

    Attributes:
        out_per_second: settled messages; None if unknown.
        lag: unread messages of all queues whose lag is known.
        lag_ms: age of the oldest unread message, milliseconds.
        complete: the lag of each queue is known.
    """

    group: str
    out_per_second: float | None = None
    lag: int = 0
    lag_ms: int | None = None
    complete: bool = True
    members: int = 0
    receivers: int = 0

    def cells(self) -> tuple[Any, ...]:
        lag = self.lag if self.complete else f"{self.lag} (some queues are unknown)"
        readers = self.members + self.receivers
        out = rate_text(self.out_per_second)
        return ("", self.group, "", out, lag, duration(self.lag_ms or None), readers)


@dataclass(slots=True)
class TopTopicRow:
    """A topic with the groups that read it; `in_per_second` is None if unknown."""

    topic: str
    in_per_second: float | None = None
    groups: list[TopGroupRow] = field(default_factory=list)

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key: the highest rates first, then the largest lag."""
        rates = [self.in_per_second, *(each.out_per_second for each in self.groups)]
        lag = sum(each.lag for each in self.groups)
        return -sum(each or 0 for each in rates), -lag, self.topic


@dataclass(frozen=True, slots=True)
class TopReport:
    """Rates and lag of topics and groups: a `WatchedReport`.

    Attributes:
        rows: the busiest topics first.
        topics_left_out: topics without a row, because there is no room.
        seconds: time between the samples of the rates; 0 for the first report of a watch.
        unknown: reasons why a part is unknown, a sentence each.
    """

    rows: Sequence[TopTopicRow]
    topics_left_out: int
    seconds: float
    unknown: Sequence[str]
    danger: str = ""

    def show(self) -> None:
        cells = []
        for row in self.rows:
            cells.append((row.topic, "", rate_text(row.in_per_second), "", "", "", ""))
            cells += [each.cells() for each in row.groups]
        print_table(
            ("TOPIC", "GROUP", "IN/S", "OUT/S", "LAG", "OLDEST UNREAD", "READERS"),
            cells,
            numbers=("IN/S", "OUT/S", "LAG", "READERS"),
            empty="There are no topics.",
        )
        if self.topics_left_out:
            print(f"{counted(self.topics_left_out, 'more topic')} not shown: --limit shows more")
        for sentence in self.unknown:
            print(sentence)

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3),
            "topics": [
                {
                    "topic": row.topic,
                    "in_per_second": rounded(row.in_per_second),
                    "groups": [
                        {
                            "group": each.group,
                            "out_per_second": rounded(each.out_per_second),
                            **picked(each, "lag", "lag_ms", "complete", "members", "receivers"),
                        }
                        for each in row.groups
                    ],
                }
                for row in self.rows
            ],
            "topics_left_out": self.topics_left_out,
            "unknown": list(self.unknown),
        }


def rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def rate_text(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


class SampleWindow:
    """Samples of the last `WINDOW_SECONDS`, or the last one if it is older."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> Sample | None:
        """Add a sample; return the oldest one before it, None for the first sample."""
        samples, now = self._samples, sample.taken_seconds
        while len(samples) > 1 and now - samples[1].taken_seconds >= WINDOW_SECONDS:
            samples.popleft()
        before = samples[0] if samples else None
        least_seconds = WINDOW_SECONDS / (SAMPLES_MAX - 1)
        if not samples or now - samples[-1].taken_seconds >= least_seconds:
            samples.append(sample)
        return before


class Sampler:
    """Takes samples, and reports the rates of the last seconds.

    Args:
        topic: only this topic; empty for all topics.
        rows_max: lines of the report, about; a topic is shown with all its groups or not at all.
        with_system: also retry, dead-letter and lite topics without unread messages.
    """

    def __init__(self, topic: str, *, rows_max: int, with_system: bool) -> None:
        self._topic = topic
        self._rows_max = rows_max
        self._with_system = with_system
        self._window = SampleWindow()

    async def report(self, cluster: "Cluster") -> TopReport:
        """Take a sample and compare it with the oldest sample of the window. Raises RockoonError:
        no nameserver or no offset service answers, or the topic does not exist."""
        sample = await take_sample(cluster, self._topic)
        before = self._window.add(sample)
        rows = [
            row
            for row in rows_of(before, sample)
            if self._topic in ("", row.topic)
            if self._with_system or not is_quiet_system_topic(row)
        ]
        rows.sort(key=lambda row: row.order)
        shown = fitting(rows, self._rows_max)
        seconds = 0.0 if before is None else sample.taken_seconds - before.taken_seconds
        return TopReport(rows[:shown], len(rows) - shown, seconds, list(unknown_of(sample)))


def fitting(rows: Sequence[TopTopicRow], rows_max: int) -> int:
    """Return how many topics, at least one, fit with their groups into `rows_max` lines."""
    lines = 0
    for number, row in enumerate(rows):
        lines += 1 + len(row.groups)
        if lines > rows_max:
            return max(number, 1)
    return len(rows)


def is_quiet_system_topic(row: TopTopicRow) -> bool:
    """Return whether a retry, dead-letter or lite topic has no messages to read or to count."""
    busy = row.in_per_second or any(each.lag or each.out_per_second for each in row.groups)
    return row.topic.startswith("%") and not busy


async def take_sample(cluster: "Cluster", topic: str) -> Sample:
    """Ask brokers and the offset service; see `Sampler.report`."""
    from rockoon.admin.reads import ask_queue_ends

    if topic:
        routes = [await cluster.route(topic)]
    else:
        routes = await cluster.admin.list_topics(include_system=True)
    try:
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(ask_queue_ends(cluster, *routes))
            lags = tasks.create_task(ask_lags(cluster, topic))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    ends: dict[MessageQueue, Mark] = {}
    unknown: dict[str, str] = {}
    for each in asked.result():
        if each.state is None:
            unknown[each.queue.broker] = str(each.error)
        else:
            ends[each.queue] = Mark(each.state.max_offset, each.as_of_ms, each.create_revision)
    settled = {
        (found.name, lag.member, queue): mark
        for found in lags.result()
        for lag in known_lags(found)
        if (queue := queue_of(lag)) and (mark := settled_of(lag, ends.get(queue)))
    }
    return Sample(time.monotonic(), ends, settled, lags.result(), unknown)


async def ask_lags(cluster: "Cluster", topic: str) -> "list[GroupLag]":
    found = [each async for each in cluster.admin.lags()]
    return [each for each in found if not topic or topic in each.group.topics]


def known_lags(found: "GroupLag") -> "list[QueueLag]":
    return [] if found.lag is None else [each for each in found.lag.queues if each.known]


def queue_of(lag: "QueueLag") -> "MessageQueue":
    from rockoon.admin.reads import to_queue

    return to_queue(lag.queue)


def settled_of(lag: "QueueLag", end: Mark | None) -> Mark | None:
    """Return the offset up to which a reader has settled a queue, counting messages above the
    committed offset; None without progress."""
    if not lag.HasField("committed_offset"):
        return None
    offset = lag.committed_offset + lag.settled_above
    return Mark(offset, lag.as_of_ms, 0 if end is None else end.create_revision)


def rows_of(before: Sample | None, now: Sample) -> list[TopTopicRow]:
    """Return a row for each topic, with its groups sorted by name. `before`: an earlier sample;
    None: rates are unknown."""
    rows: dict[str, TopTopicRow] = {}
    growth: dict[str, list[float | None]] = defaultdict(list)
    for queue, mark in now.ends.items():
        rows.setdefault(queue.topic, TopTopicRow(queue.topic))
        growth[queue.topic].append(rate(before.ends.get(queue) if before else None, mark))
    for topic, rates in growth.items():
        rows[topic].in_per_second = total(rates)
    for found in sorted(now.lags, key=lambda each: each.name):
        for topic, row in group_rows(found, before, now).items():
            rows.setdefault(topic, TopTopicRow(topic)).groups.append(row)
    return list(rows.values())


def group_rows(found: "GroupLag", before: Sample | None, now: Sample) -> dict[str, TopGroupRow]:
    """Return a row of a group for each topic that it reads."""
    rows: dict[str, TopGroupRow] = {}
    rates: dict[str, list[float | None]] = defaultdict(list)
    for lag in found.lag.queues if found.lag is not None else ():
        topic = lag.queue.topic
        row = rows.setdefault(topic, TopGroupRow(found.name))
        row.members = len(found.readers.members)
        row.receivers = found.readers.receiver_count
        if not lag.known:
            row.complete = False
            continue
        row.lag += lag.lag
        if lag.lag and lag.HasField("lag_ms"):
            row.lag_ms = max(row.lag_ms or 0, lag.lag_ms)
        reader = found.name, lag.member, queue_of(lag)
        if (mark := now.settled.get(reader)) is not None:
            rates[topic].append(rate(before.settled.get(reader) if before else None, mark))
    for topic, each in rates.items():
        rows[topic].out_per_second = total(each)
    return rows


def rate(before: Mark | None, now: Mark) -> float | None:
    """Return the growth of an offset per second.

    None: there is no earlier mark of this queue, or the offset went back, as after a reset.
    """
    if before is None or before.create_revision != now.create_revision:
        return None
    elapsed_ms = now.as_of_ms - before.as_of_ms
    if elapsed_ms <= 0 or now.offset < before.offset:
        return None
    return (now.offset - before.offset) * 1000 / elapsed_ms


def total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of the known rates; None if none is known."""
    known = [each for each in rates if each is not None]
    return sum(known) if known else None


def unknown_of(sample: Sample) -> Iterable[str]:
    for broker, reason in sorted(sample.unknown.items()):
        yield f"rates of topics on {broker} are incomplete: {reason}"
    for found in sample.lags:
        if found.error is not None:
            yield f"the lag of group {found.name} is unknown: {found.error}"
