"""The matrix as a page of documentation."""

from collections.abc import Iterable, Sequence

from rockoon.offsets.start import Start
from tools.expansion.cell import AFTERWARDS, EARLIER, LATER, Cell, NewQueueRule

HEADINGS = (
    "group",
    "growth",
    "policy",
    "new queues start at",
    "because",
    "skipped",
    "replayed",
    "old queues: skipped",
    "replayed",
)


def page(cells: Sequence[Cell]) -> str:
    """All of `docs/measurements/expansion.md`."""
    parts = [
        "# Where groups read on when a topic grows",
        "`make expansion` (`.venv/bin/python -m tools.expansion`) writes this page. It runs real "
        "processes: two brokers, the second added during the run, a nameserver, the offset "
        "service, and a group and a topic for each line. The command fails if a line of rule exact "
        "skips or replays a message.",
        f"Every queue gets {EARLIER} messages, and later {LATER} more; new queues get theirs "
        "before any group can know of them. TIMESTAMP is a time between the two. Then other topics "
        "fill the brokers' (small) memory, so that these messages count as written to disk, the "
        f"stopped groups are restarted, and every queue gets the last {AFTERWARDS}.",
        "- *new*: the group subscribes after the topic has grown, so its policy decides for all "
        "queues;\n"
        "- *running*: the group reads all the time; *lagging*: it runs and hangs; *stopped*: it "
        "does not run. It reads queues that are created in this time from their first message, "
        "whatever the policy.\n"
        "- *skipped*: messages that the group should have received and did not; *replayed*: "
        "messages that it received without a request, or twice. All queues of a line together.",
    ]
    for rule in NewQueueRule:
        parts.append(f"## Rule {rule}")
        parts.append(table(cell for cell in cells if cell.rule is rule))
    parts.append("## Explanations of the service")
    parts.append(
        "Output of `rockoon offsets why` for one new queue of each kind of line; figures as above."
    )
    parts.append(explanations(cells))
    return "\n\n".join(parts) + "\n"


def table(cells: Iterable[Cell]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row(cell)) + " |" for cell in cells]
    return "\n".join(lines)


def row(cell: Cell) -> tuple[str, ...]:
    new, old = cell.difference(cell.new_queues), cell.difference(cell.old_queues)
    starts = [cell.starts[queue] for queue in cell.new_queues]
    return (
        str(cell.group_is),
        str(cell.growth),
        str(cell.policy),
        among(str(start.offset) for start in starts),
        among(start.reason for start in starts),
        str(new.skipped),
        str(new.replayed),
        str(old.skipped),
        str(old.replayed),
    )


def among(values: Iterable[str]) -> str:
    """The distinct values."""
    return ", ".join(dict.fromkeys(values))


def explanations(cells: Iterable[Cell]) -> str:
    """An explanation of the offset service for each rule and reason, from its first line."""
    found: dict[tuple[NewQueueRule, str], tuple[Start, Cell]] = {}
    for cell in cells:
        start = cell.starts[cell.new_queues[0]]
        found.setdefault((cell.rule, start.reason), (start, cell))
    return "\n".join(
        f"- {rule}, {reason} ({cell.group_is}, {cell.growth}, {cell.policy}): {start.explanation}"
        for (rule, reason), (start, cell) in found.items()
    )
