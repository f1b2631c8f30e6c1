"""Availability, computed from the logs of clients."""

from pathlib import Path

from hosts.availability import Timeline, timelines
from hosts.records import Operation, Records

from support.log_history import Append, Read

SECOND = 10**9


def lines_of(
    *operations: Operation, handled: dict[tuple[str, int], int] | None = None
) -> dict[str, Timeline]:
    made = timelines(operations, {"readers": handled or {}}, ["readers"], 0, 2 * SECOND)
    return {line.kind: line for line in made}


def test_an_operation_counts_where_it_began_and_must_end_well_and_soon() -> None:
    line = lines_of(
        Operation("route", 0, SECOND, ok=True, said=""),
        Operation("route", SECOND // 2, SECOND // 2 + SECOND + 1, ok=True, said=""),
        Operation("route", SECOND // 2 + 1, SECOND, ok=True, said=""),
        Operation("route", SECOND, SECOND + 1, ok=False, said="TimedOut"),
        Operation("route", SECOND + 1, None, ok=False, said=""),
        Operation("route", 2 * SECOND, None, ok=False, said=""),
    )["route"]
    assert line.shares == (1.0, 0.5, 0.0, None)
    assert line.short_seconds() == 1.0
    assert line.down_seconds() == 0.5
    assert line.last_short_ns() == 3 * SECOND // 2


def test_a_message_is_received_when_every_group_has_handled_it_soon_after_the_answer() -> None:
    sent = [Operation("send", 0, at, ok=True, said=f"t@b:0 {at}") for at in (1, 2, SECOND)]
    handled = {("t@b:0", 1): SECOND, ("t@b:0", 2): SECOND + 3}
    line = lines_of(*sent, handled=handled)["receive"]
    assert line.shares == (0.5, None, 0.0, None)


def test_records_are_read_on_line_by_line_while_they_are_written(tmp_path: Path) -> None:
    caller, member = tmp_path / "caller.log", tmp_path / "member.log"
    caller.write_text("send 5 plain:0\nroute 6 -\nsend 5 9 1 t@b:0 7\nrou")
    member.write_text("begin readers m t@b:0 1 7 10\n")
    records = Records([caller], [member])
    records.look()
    assert records.operations == [
        Operation("send", 5, 9, ok=True, said="t@b:0 7", message="plain:0"),
        Operation("route", 6, None, ok=False, said="", message="-"),
    ]
    assert records.handled_ns["readers"] == {}
    with caller.open("a") as log:
        log.write("te 6 8 0 TimedOut\nread 9 -\nread 9 10 1 t@b:0 6 8 -,plain:0\nread 11 -\n")
    with member.open("a") as log:
        log.write("end readers m t@b:0 1 7 12\n")
    records.look()
    assert records.operations[1] == Operation("route", 6, 8, ok=False, said="TimedOut", message="-")
    assert records.reads() == [Read("t@b:0", 9, 10, 6, [None, "plain:0"], 8, reader="0")]
    assert records.appends() == [Append("plain:0", 5, 9, "t@b:0", 7)]
    assert records.handled_ns["readers"] == {("t@b:0", 7): 12}
    assert records.acknowledged() == {"t@b:0": {7}}


def test_a_message_is_handled_when_it_first_was_whichever_member_is_looked_at_first(
    tmp_path: Path,
) -> None:
    logs = [tmp_path / name for name in ("caller.log", "one.log", "other.log")]
    logs[0].touch()
    for log, end_ns in zip(logs[1:], (20, 12), strict=True):
        log.write_text(f"begin readers m t@b:0 1 7 9\nend readers m t@b:0 1 7 {end_ns}\n")
    records = Records(logs[:1], logs[1:])
    records.look()
    assert records.handled_ns["readers"] == {("t@b:0", 7): 12}
