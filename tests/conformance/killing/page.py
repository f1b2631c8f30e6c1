"""The table of docs/measurements/faults.md about RocketMQ's clients, between its marks."""

from collections.abc import Sequence
from pathlib import Path

from conformance.killing.conducting import Finding

BEGIN = "<!-- make gateway-faults writes from here -->"
END = "<!-- make gateway-faults writes to here -->"
HEADING = (
    "client",
    "copies",
    "killed",
    "sends acknowledged",
    "answered by an error",
    "stored twice",
    "delivered",
    "of these again",
    "settled",
    "broken",
)


def write(found: Sequence[Finding], path: Path, seed: int) -> None:
    """Put the findings of one run into a page that has the marks."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = [HEADING, ("---",) * len(HEADING), *map(cells, found)]
    lines = [f"| {' | '.join(line)} |" for line in table]
    said = f"Written by `make gateway-faults SEED={seed}`."
    path.write_text("\n".join([f"{before}{BEGIN}", *lines, "", said, f"{END}{after}"]))


def cells(each: Finding) -> tuple[str, ...]:
    killed = ", ".join(f"{victim} {count}" for victim, count in sorted(each.kills.items()))
    figures = (f"{count:,}" for count in each.figures.values())
    return (each.client, str(each.copies), killed, *figures, str(len(each.broken)))
