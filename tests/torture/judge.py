"""Checks the work of the members of groups, from their logs. Pure.

- Every acknowledged message was handled, in every group.
- The next owner of a queue starts no later than the last one stopped: no message is left out.
- In an orderly group a queue's messages are handled one by one, in order, and once there is another
  owner the former one begins no call, however late it wakes.
- In any group a former owner begins a call only if it could not know yet: the offset service, which
  notifies it, was down. A stop is no excuse, because its clock shows the stop.
- A message handled twice was handled by a member that could not commit it: it was killed, it was
  stopped, or the offset service was down when it released the queue.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Call(NamedTuple):
    """One handler call; times are monotonic nanoseconds, `end_ns` None if it was cut off."""

    group: str
    member: str
    queue: str
    epoch: int
    offset: int
    begin_ns: int
    end_ns: int | None


class Span(NamedTuple):
    """A time of faults for a member, or for all ("")."""

    what: str
    member: str
    from_ns: int
    to_ns: int


@dataclass(slots=True)
class Verdict:
    """Findings; `faults` must be empty."""

    calls: int = 0
    changes_of_owner: int = 0
    # Repeated messages, by their cause.
    duplicates: Counter[str] = field(default_factory=Counter)
    # Calls of a former owner, by their cause; never in an orderly group.
    late: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def read_calls(lines: Iterable[str]) -> list[Call]:
    """Return the calls of log lines, in the order of their starts."""
    open_calls: dict[tuple[str, ...], int] = {}
    calls: list[Call] = []
    for line in lines:
        word, *what, time_ns = line.split()
        key = tuple(what)
        if word == "begin":
            open_calls[key] = int(time_ns)
        else:
            calls.append(made(key, open_calls.pop(key), int(time_ns)))
    calls += [made(key, begin_ns, None) for key, begin_ns in open_calls.items()]
    return sorted(calls, key=lambda call: call.begin_ns)


def made(key: Sequence[str], begin_ns: int, end_ns: int | None) -> Call:
    group, member, queue, epoch, offset = key
    return Call(group, member, queue, int(epoch), int(offset), begin_ns, end_ns)


def judge(
    calls: Sequence[Call],
    groups: Iterable[str],
    acknowledged: Mapping[str, Iterable[int]],
    spans: Sequence[Span],
) -> Verdict:
    """Find violations.

    Args:
        calls: of all members, sorted by their starts.
        groups: all of them.
        acknowledged: queue → offsets of acknowledged messages.
        spans: kills, stops and outages.
    """
    verdict = Verdict(calls=len(calls))
    by_queue: dict[tuple[str, str], list[Call]] = defaultdict(list)
    handled: dict[tuple[str, str], set[int]] = defaultdict(set)
    for call in calls:
        by_queue[call.group, call.queue].append(call)
        if call.end_ns is not None:
            handled[call.group, call.queue].add(call.offset)
    for group in groups:
        for queue, offsets in acknowledged.items():
            missing = sorted(set(offsets) - handled[group, queue])
            if missing:
                verdict.faults.append(f"{group} never handled {queue} {missing[:5]}")
    for (group, queue), its in by_queue.items():
        judge_owners(its, spans, verdict)
        if group.startswith("orderly"):
            judge_order(f"{group} {queue}", its, verdict)
        judge_duplicates(its, spans, verdict)
    return verdict


def judge_owners(calls: Sequence[Call], spans: Sequence[Span], verdict: Verdict) -> None:
    """No call begins after a call of a later owner has begun."""
    latest = calls[0]
    for call in calls:
        if call.epoch > latest.epoch:
            verdict.changes_of_owner += call.member != latest.member
            latest = call
        elif call.epoch < latest.epoch and call.member != latest.member:
            why = explanation(call, latest.begin_ns, spans, ("offset service down",))
            if call.group.startswith("orderly") or not why:
                verdict.faults.append(f"{call} begins when {latest} owns the queue")
            verdict.late[why or "unexplained"] += 1


def judge_order(name: str, calls: Sequence[Call], verdict: Verdict) -> None:
    """One by one, in order; another epoch begins no later than at the next offset."""
    before: Call | None = None
    wanted = 0
    for call in calls:
        if before is not None:
            again = call.epoch > before.epoch and call.offset <= wanted
            if call.offset != wanted and not again:
                verdict.faults.append(f"{name}: {call} where {wanted} comes next, after {before}")
            if (
                call.member == before.member
                and before.end_ns is not None
                and call.begin_ns < before.end_ns
            ):
                verdict.faults.append(f"{name}: {call} begins within {before}")
        before, wanted = call, call.offset + 1


def judge_duplicates(calls: Sequence[Call], spans: Sequence[Span], verdict: Verdict) -> None:
    first: dict[int, Call] = {}
    for call in calls:
        earlier = first.setdefault(call.offset, call)
        if earlier is call:
            continue
        why = explanation(
            earlier, call.begin_ns, spans, ("killed", "stopped", "offset service down")
        )
        verdict.duplicates[why or "unexplained"] += 1
        if not why:
            verdict.faults.append(f"{earlier} was handled, and again: {call}")
        # A third time is explained by events since the second.
        first[call.offset] = call


def explanation(call: Call, until_ns: int, spans: Sequence[Span], whats: Sequence[str]) -> str:
    """Return the first of `whats` that happened to a member between its call and a later moment."""
    low, high = min(call.begin_ns, until_ns), max(call.begin_ns, until_ns)
    for what in whats:
        for span in spans:
            happened = span.from_ns <= high and span.to_ns >= low
            if span.what == what and span.member in ("", call.member) and happened:
                return what
    return ""
