"""A history that is right is judged right, and each that is not is told for what is wrong in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hosts.cuts import named, slow_clients
from hosts.progress import Progress
from hosts.records import Records
from hosts.shape import THREE_COPIES
from hosts.verdict import GROWTH_BYTES_MAX, HEAL_SECONDS_MAX, Outcome, Result, judged

from support.log_history import Read

SECOND = 10**9
TENTH = SECOND // 10
CUT_FROM, CUT_TO, END = 10, 20, 60
QUEUE = "hosts@broker-a:0"
SLOW = slow_clients()


@dataclass
class History:
    """What clients did in a minute with a cut in it: a message each second, handled by each group
    at once, in order, by one owner, and its progress stored."""

    cut: str = "clients ✕ offset service"
    # Kind of operation → seconds at which one began → tenths that it took, None for a failure.
    operations: dict[str, dict[int, int | None]] = field(default_factory=dict)
    # Handler calls: group, member, epoch, offset, and tenths at which each began; each takes one.
    handled: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    # Looks at progress: epoch, offset, tenths.
    looks: list[tuple[int, int, int]] = field(default_factory=list)
    # How many messages are there in the end.
    stored: int = END
    growth_bytes: int = GROWTH_BYTES_MAX
    ended: list[str] = field(default_factory=list)

    @classmethod
    def right(cls) -> "History":
        history = cls()
        during = range(CUT_FROM, CUT_TO)
        history.operations = {
            "send": dict.fromkeys(range(END), 1),
            "commit": {at: None if at in during else 1 for at in range(END)},
        }
        history.handled = [
            (group, f"{group}:client-b", 1, offset, 10 * offset + 2)
            for group in ("plain", "orderly")
            for offset in range(END)
        ]
        history.looks = [(1, offset + 1, 10 * offset + 3) for offset in range(END)]
        return history

    def lines(self) -> Iterator[str]:
        for kind, each in self.operations.items():
            for at, tenths in each.items():
                began = f"{kind} {at * SECOND}"
                yield f"{began} {f'plain:{at}' if kind == 'send' else '-'}\n"
                answer = f"{QUEUE} {at}" if kind == "send" else "7"
                if tenths is not None:
                    yield f"{began} {at * SECOND + tenths * TENTH} 1 {answer}\n"
                elif kind == "send":
                    yield f"{began} {at * SECOND + TENTH} 0 TimedOut\n"

    def calls(self) -> Iterator[str]:
        for group, member, epoch, offset, at in self.handled:
            call = f"{group} {member} {QUEUE} {epoch} {offset}"
            yield f"begin {call} {at * TENTH}\nend {call} {(at + 1) * TENTH}\n"

    def judged(self, folder: Path) -> Result:
        caller, members = folder / "caller.log", folder / "members.log"
        caller.write_text("".join(self.lines()))
        members.write_text("".join(self.calls()))
        progress = Progress()
        for epoch, offset, at in self.looks:
            progress.note("plain", QUEUE, epoch, offset, at * TENTH)
        outcome = Outcome(
            named(self.cut, THREE_COPIES),
            before_ns=0,
            cut_ns=CUT_FROM * SECOND,
            healed_ns=CUT_TO * SECOND,
            settled_ns=40 * SECOND,
            growth_bytes={"broker-a": self.growth_bytes},
            epochs=(7, 7),
        )
        stored = [f"plain:{number}" for number in range(self.stored)]
        last = Read(QUEUE, END * SECOND, END * SECOND + 1, 0, stored, self.stored)
        records = Records([caller], [members])
        return judged([outcome], records, progress, self.ended, [last])


def test_a_history_that_is_right_has_no_fault_and_is_counted(tmp_path: Path) -> None:
    result = History.right().judged(tmp_path)
    assert result.faults == []
    assert (result.acknowledged, result.handler_calls, result.duplicates) == (END, 2 * END, 0)
    (outcome,) = result.outcomes
    lines = {line.kind: line for line in outcome.timelines}
    # An operation a second: every other half of one has none.
    assert lines["commit"].down_seconds() == (CUT_TO - CUT_FROM) / 2
    assert lines["send"].short_seconds() == 0
    assert outcome.heal_seconds() == 0


def test_what_was_handled_again_around_a_cut_from_the_offset_service_is_counted_only(
    tmp_path: Path,
) -> None:
    history = History.right()
    history.handled.append(("plain", "plain:client-c", 2, 15, 20 * 10 + 5))
    result = history.judged(tmp_path)
    assert (result.faults, result.duplicates) == ([], 1)
    history.cut = "clients ✕ leader"
    faults = history.judged(tmp_path).faults
    assert any("was handled, and again" in fault for fault in faults), faults


def never_handled(history: History) -> None:
    history.handled = [each for each in history.handled if each[0] != "plain" or each[3] != 30]
    history.looks = []


def out_of_order(history: History) -> None:
    history.handled = [
        (group, member, epoch, {30: 31, 31: 30}.get(offset, offset), at)
        if group == "orderly"
        else (group, member, epoch, offset, at)
        for group, member, epoch, offset, at in history.handled
    ]


def two_owners(history: History) -> None:
    """Another member has the queue from 12 on; the former one goes on, in the cut."""
    history.handled = [
        ("orderly", "orderly:client-c", 2, offset, at)
        if group == "orderly" and offset >= 12
        else (group, member, epoch, offset, at)
        for group, member, epoch, offset, at in history.handled
    ]
    history.handled.append(("orderly", "orderly:client-b", 1, 13, 13 * 10 + 5))


def handled_again(history: History) -> None:
    history.handled.append(("plain", "plain:client-b", 1, 58, 59 * 10 + 8))


def progress_back(history: History) -> None:
    history.looks.append((1, 4, 10 * END))


def progress_too_far(history: History) -> None:
    history.looks.append((1, END + 1, 10 * END))


def grown(history: History) -> None:
    history.growth_bytes += 1


def nothing_cut(history: History) -> None:
    history.operations["commit"] = dict.fromkeys(range(END), 1)


def not_healed(history: History) -> None:
    late = CUT_TO + int(HEAL_SECONDS_MAX)
    history.operations["route"] = {late: None}


def lost(history: History) -> None:
    history.stored -= 1


def send_failed(history: History) -> None:
    history.operations["send"][END - 1] = None


def process_ended(history: History) -> None:
    history.ended.append("broker-a ended with 1")


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (never_handled, f"plain never handled {QUEUE} [30]"),
        (out_of_order, f"orderly {QUEUE}: Call(* where 30 comes next*"),
        (two_owners, "*begins when*owns the queue"),
        (handled_again, "*was handled, and again: *"),
        (progress_back, f"plain {QUEUE}: (1, 60) went back to (1, 4)"),
        (progress_too_far, f"plain {QUEUE}: 61 was stored before 60 was handled"),
        (grown, "clients ✕ offset service: broker-a grew by 96 MiB"),
        (nothing_cut, "clients ✕ offset service: commit went on, so nothing was cut"),
        (not_healed, "clients ✕ offset service: not healed for 15.5 s"),
        (lost, "acknowledged and not read afterwards (1): *"),
        (send_failed, "1 sends failed: TimedOut"),
        (process_ended, "broker-a ended with 1"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_history_that_is_wrong_is_told(
    tmp_path: Path, wrong: Callable[[History], None], fault: str
) -> None:
    history = History.right()
    wrong(history)
    faults = history.judged(tmp_path).faults
    assert any(matches(each, fault) for each in faults), faults


def matches(said: str, pattern: str) -> bool:
    """Whether a sentence has a pattern's parts, in their order; "*" stands between them."""
    first, *rest = pattern.split("*")
    if not said.startswith(first):
        return False
    at = len(first)
    for part in rest:
        found = said.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return bool(rest) or said == pattern


def test_a_leader_that_goes_on_was_not_cut_from_its_followers(tmp_path: Path) -> None:
    history = History.right()
    history.cut = "leader ✕ followers"
    assert history.judged(tmp_path).faults == [
        "leader ✕ followers: the leader went on, so nothing was cut"
    ]


def test_a_slow_wire_that_answers_at_once_is_none(tmp_path: Path) -> None:
    history = History.right()
    history.cut = SLOW.name
    slow = {at: 4 if CUT_FROM < at < CUT_TO else 1 for at in range(END)}
    history.operations, history.stored = {"route": dict(slow), "commit": dict(slow)}, 0
    assert history.judged(tmp_path).faults == []
    history.operations["route"][15] = 3
    assert history.judged(tmp_path).faults == [f"{SLOW.name}: route took 300 ms"]
