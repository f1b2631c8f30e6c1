"""docs/measurements/gateway-matrix.md: the results of a whole run of both targets."""

from collections.abc import Mapping

from bench.compare.programs import ROOT
from conformance.known_faults import KNOWN_FAULTS
from conformance.running import NOT_OFFERED, OK, Outcome, Outcomes
from conformance.scenarios import SCENARIOS

PAGE = ROOT / "docs" / "measurements" / "gateway-matrix.md"
HEAD = """# RocketMQ's clients and the gateway

`make conformance` writes this page. RocketMQ's official clients, unmodified, run the same scenarios
against Rockoon's gateway and against RocketMQ's own proxy, which is the reference. Each cell has
the results of Rockoon / the proxy; **-**: the client does not have the call. The scenarios and
their requirements are in `tests/conformance/producing.py`, `consuming.py`, `lite.py`,
`separating.py` and `guarding.py`. A restart is one of the gateway, which stores nothing; the proxy
contains its broker, so both are restarted.

"""
MARKS = {OK: "yes", NOT_OFFERED: "-"}
Run = tuple[Mapping[str, str], Outcomes]


def write(ours: Run, judge: Run, skipped: Mapping[str, str]) -> None:
    """Write the page of two whole runs, and name the languages that were not there."""
    versions = {**judge[0], **ours[0]}
    notes: list[str] = []
    languages = [name for name in ours[1] if name in judge[1]]
    lines = [
        "| | " + " | ".join(f"{name} {versions[name]}" for name in languages) + " |",
        "|---|" + "---|" * len(languages),
    ]
    for scenario in SCENARIOS:
        cells = []
        for language in languages:
            pair = [run[1][language].get(scenario.name) for run in (ours, judge)]
            cells.append(_cell(pair, f"{language}, {scenario.name}", notes))
        lines.append(f"| {scenario.name} | " + " | ".join(cells) + " |")
    lines += ["", *notes, ""] if notes else [""]
    lines.append(
        "Rockoon {}, RocketMQ {}.".format(*(next(iter(run[0].values())) for run in (ours, judge)))
    )
    lines += ["", "Faults of clients:", "", *(f"- {why}." for why in KNOWN_FAULTS.values())]
    if skipped:
        lines += ["", "Not run:", "", *(f"- {name}: {why}" for name, why in skipped.items())]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


def _cell(pair: list[Outcome | None], where: str, notes: list[str]) -> str:
    marks = []
    for who, outcome in zip(("Rockoon", "the proxy"), pair, strict=True):
        if outcome is None:
            marks.append("?")
        elif outcome.kind in MARKS:
            marks.append(MARKS[outcome.kind])
        else:
            said = outcome.said.replace("|", "\\|")
            notes.append(f"{len(notes) + 1}. {where}, {who}: {said}")
            marks.append(f"no ({len(notes)})")
    return marks[0] if set(marks) == {"-"} else " / ".join(marks)
