"""The tables of docs/operate/security.md: attacks by HTTP/2 frames, between two marks.

There is one table for plain connections and one for TLS, each for one connection and for many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faults.flood_choice import SERVICES

from support.http2_attacks import ATTACKS

if TYPE_CHECKING:
    from faults.floods import Flooded

BEGIN = "<!-- make faults ONLY=http2 WRITE=1 writes from here -->"
END = "<!-- to here -->"
COLUMNS = (*SERVICES, "grpcio")
HEADING = ("attack", *COLUMNS)


@dataclass(frozen=True)
class Row:
    """One attack.

    Args:
        attack: name of the attack.
        shown: cells of each service, and of grpcio's server.
        broken: services that do not meet a requirement.
    """

    attack: str
    shown: "Mapping[str, Flooded]"
    broken: frozenset[str] = frozenset()

    def __str__(self) -> str:
        cve = ATTACKS[self.attack].cve
        name = f"{self.attack} (CVE-{cve})" if cve else self.attack
        cells = []
        for column in COLUMNS:
            text = cell(self.shown[column])
            cells.append(f"**{text}**" if column in self.broken else text)
        return line((name, *cells))


def cell(shown: "Flooded") -> str:
    served = (shown.before, shown.during, shown.after)
    calls = " → ".join(f"{each.per_second:.0f}" for each in served)
    p99 = " → ".join(f"{each.p99_ms:.0f}" for each in served)
    peak = shown.memory_peak - shown.memory_before
    kept = shown.memory_after - shown.memory_before
    return f"{calls}; {p99} ms; {shown.cpu_share:.0%}; {peak:+} {kept:+} MiB"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def title(*, tls: bool, connections: int) -> str:
    count = "1 connection" if connections == 1 else f"{connections} connections"
    return f"#### {count}, {'TLS' if tls else 'plain'}"


def write(path: Path, *, tls: bool, connections: int, rows: Sequence[Row]) -> None:
    """Replace one table's lines in a page that has the marks; lines of other attacks stay."""
    before, _, rest = path.read_text().partition(BEGIN)
    former, _, after = rest.partition(END)
    tables: dict[str, dict[str, str]] = {}
    lines: dict[str, str] = {}
    for each in former.splitlines():
        if each.startswith("####"):
            lines = tables.setdefault(each, {})
        elif each.startswith("| ") and (name := each.split()[1]) in ATTACKS:
            lines[name] = each
    tables.setdefault(title(tls=tls, connections=connections), {}).update(
        {row.attack: str(row) for row in rows}
    )
    parts = []
    for heading, found in tables.items():
        ordered = (found[name] for name in ATTACKS if name in found)
        parts += ["", heading, "", line(HEADING), line(["---" for _ in HEADING]), *ordered]
    path.write_text("\n".join((before + BEGIN, *parts, "", END + after)))
