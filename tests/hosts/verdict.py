"""Result of a trial, from the records of its clients. Only reads.

Rules:

- Each queue is one log for all senders and readers (`support.log_history`): no acknowledged message
  is lost, no read is undone, an idempotent producer's numbers are stored once and in order.
- With copies no send fails, whatever is cut.
- Each group has handled all acknowledged messages.
- A queue's messages reach an orderly group in order, one at a time, from one owner at a time.
- Progress and epochs never decrease, and progress never passes an unhandled message.
- A cut stops the expected operations, and a slow wire is slow: otherwise nothing was tested.
- Once a cut is healed all replies are prompt again, within HEAL_SECONDS_MAX.
- No process ends, and none grows without bound.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hosts.availability import Timeline, timelines
from hosts.cluster import GROUPS
from hosts.cuts import DELAY_MS, Cut
from hosts.progress import Progress
from hosts.records import SENDS, Operation, Records
from torture.judge import Span, judge

from support import log_history
from support.log_history import Read

HEAL_SECONDS_MAX = 15.0
# In one cut, of any process: data that waits for the other side is bounded.
GROWTH_BYTES_MAX = 96 << 20
# Time after the healing in which messages in progress may be handled again.
AFTER_NS = 15 * 10**9
# Time in which a wire receives that it is a bad one.
WIRE_NS = 5 * 10**8
# Time after the healing in which a former leader learns that it is deposed.
HEARD_NS = 3 * 10**9


@dataclass(slots=True)
class Outcome:
    """Effects of one cut; times are monotonic nanoseconds."""

    cut: Cut
    before_ns: int
    cut_ns: int
    healed_ns: int
    settled_ns: int
    growth_bytes: dict[str, int]
    # Of the log, before and afterwards.
    epochs: tuple[int, int] = (0, 0)
    timelines: list[Timeline] = field(default_factory=list)

    def heal_seconds(self) -> float:
        """Seconds from the healing until all replies were prompt to the end."""
        last_ns = max(timeline.last_short_ns() for timeline in self.timelines)
        return max(0.0, (last_ns - self.healed_ns) / 1e9)


@dataclass(slots=True)
class Result:
    """A whole trial; `faults` must be empty."""

    outcomes: list[Outcome] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    handler_calls: int = 0
    duplicates: int = 0


def judged(
    outcomes: list[Outcome],
    records: Records,
    progress: Progress,
    ended: Sequence[str],
    last: Sequence[Read],
    *,
    sends_may_fail: bool = False,
) -> Result:
    """Check a completed trial.

    Args:
        outcomes: outcomes of its cuts; each gets its timelines here.
        records: records of its clients; read once more.
        progress: progress as seen during the trial.
        ended: processes that ended by themselves.
        last: reads of all queues, after the last send.
        sends_may_fail: a log has one copy.
    """
    result = Result(outcomes)
    records.look()
    for outcome in outcomes:
        outcome.timelines = timelines(
            records.operations, records.handled_ns, GROUPS, outcome.before_ns, outcome.settled_ns
        )
        result.faults += faults_of(outcome, records)
    # A member that is cut off from the offset service cannot commit, and may continue for some time
    # while others have its queues; never in an orderly group.
    spans = [
        Span("offset service down", "", each.cut_ns, each.settled_ns + AFTER_NS)
        for each in outcomes
        if each.cut.from_offset_service
    ]

    def may_be_old(read: Operation) -> bool:
        """A deposed leader replies from its own state, until it learns of its successor."""
        return any(
            each.cut.may_depose and each.cut_ns <= read.began_ns <= each.healed_ns + HEARD_NS
            for each in outcomes
        )

    reads = [*records.reads(may_be_old), *last]
    result.faults += log_history.judge(records.appends(), reads)
    if not sends_may_fail:
        result.faults += failed_sends(records)
    acknowledged, calls = records.acknowledged(), records.calls()
    verdict = judge(calls, GROUPS, acknowledged, spans)
    result.faults += verdict.faults
    result.faults += progress.faults
    result.faults += progress.skipped(records.handled_ns)
    result.faults += ended
    result.acknowledged = sum(map(len, acknowledged.values()))
    result.handler_calls = len(calls)
    result.duplicates = verdict.duplicates.total()
    return result


def failed_sends(records: Records) -> list[str]:
    """Return failed sends, by the reason."""
    failed = Counter(
        each.said
        for each in records.operations
        if each.kind in SENDS and each.ended_ns is not None and not each.ok
    )
    return [f"{count} sends failed: {reason}" for reason, count in failed.items()]


def faults_of(outcome: Outcome, records: Records) -> Iterator[str]:
    """Return faults of one cut, except those of messages."""
    cut = outcome.cut
    for host, size in outcome.growth_bytes.items():
        if size > GROWTH_BYTES_MAX:
            yield f"{cut.name}: {host} grew by {size >> 20} MiB"
    for line in outcome.timelines:
        if line.kind in cut.stops and not line.down_seconds():
            yield f"{cut.name}: {line.kind} went on, so nothing was cut"
    if cut.deposes and outcome.epochs[0] == outcome.epochs[1]:
        yield f"{cut.name}: the leader went on, so nothing was cut"
    if cut.slow:
        for each in records.operations:
            from_ns = outcome.cut_ns + WIRE_NS
            within = from_ns <= each.began_ns and (each.ended_ns or 0) <= outcome.healed_ns
            if each.ended_ns is not None and within:
                took_ns = each.ended_ns - each.began_ns
                # Calls that a wire of this length cannot have transferred in both directions.
                if took_ns < 2 * DELAY_MS * 10**6:
                    yield f"{cut.name}: {each.kind} took {took_ns / 1e6:.0f} ms"
    if outcome.heal_seconds() > HEAL_SECONDS_MAX:
        yield f"{cut.name}: not healed for {outcome.heal_seconds():.1f} s"
