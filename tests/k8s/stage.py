"""Steps under load: each is one part of the checker, and one row of the table."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from k8s.deployment import Deployment
from k8s.load import Load, Part
from k8s.shell import CACHE, Failed

# After the last pod is ready: a silence that begins at its end exceeds every bound in this time.
SETTLE_SECONDS = 2.5
LOAD_SECONDS = 2400.0
COPIES_SECONDS_MAX = 2.0
RETURN_SECONDS_MAX = 1.0
NEWCOMER_SECONDS_MAX = 0.5


@dataclass(frozen=True)
class Row:
    """A step of the table."""

    cluster: str
    step: str
    dns: float | None
    seconds: float
    failed: int | None = None
    longest: float | None = None
    after_return: float | None = None
    newcomers: float | None = None
    note: str = ""
    faults: tuple[str, ...] = ()


@dataclass
class Report:
    """The rows of a run, printed as they come."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(line(row), flush=True)
        for fault in row.faults:
            print(f"    FAULT: {fault}", flush=True)

    @property
    def faults(self) -> list[str]:
        return [f"{row.cluster}, {row.step}: {fault}" for row in self.rows for fault in row.faults]

    def measured(self, cluster: str, step: str, action: Callable[[], str | None]) -> None:
        """Run an action that is not under load; its result is a note."""
        began = time.monotonic()
        try:
            note = action() or ""
        except Failed as failure:
            seconds = time.monotonic() - began
            self.add(Row(cluster, step, None, seconds, faults=(shortened(failure),)))
        else:
            self.add(Row(cluster, step, None, time.monotonic() - began, note=note))


def shortened(failure: Failed) -> str:
    """Return the text of a failure; of a long one its begin, and its end with the reason."""
    text = str(failure)
    return text if len(text) <= 2000 else f"{text[:400]}\n...\n{text[-1600:]}"


def line(row: Row) -> str:
    def shown(value: float | None, unit: str = " s") -> str:
        return "-" if value is None else f"{value:.2f}{unit}"

    dns = "" if row.dns is None else f"DNS {row.dns:.0f} s"
    figures = ""
    if row.failed is not None:
        figures = (
            f"failed {row.failed}  longest {shown(row.longest)}"
            f"  after return {shown(row.after_return)}  newcomers {shown(row.newcomers)}"
        )
    return f"{row.cluster:10} {row.step:34} {dns:9} {row.seconds:6.1f} s  {figures}{row.note}"


class Stage:
    """A deployment under the load of its checker.

    Args:
        deployment: ready, with the client's pod.
        name: of its rows.
        report: receives the rows.
    """

    def __init__(self, deployment: Deployment, name: str, report: Report) -> None:
        self.deployment = deployment
        self.name = name
        self.report = report
        self.load = Load(deployment, LOAD_SECONDS)
        self.dns: float = 0.0

    def step(
        self,
        name: str,
        action: Callable[[], object],
        *,
        bound: float | None = None,
        newcomers: float | None = NEWCOMER_SECONDS_MAX,
    ) -> None:
        """Run an action under load, wait until all is ready again, and judge the part.

        Args:
            name: of the row.
            action: changes the cluster.
            bound: longest permitted silence in seconds; None: 2 s with copies, and without copies
                1 s after the process is back in the routes.
            newcomers: longest permitted connect and first send; None: not judged.
        """
        began = time.monotonic()
        self.load.begin_part(name)
        problems: list[str] = []
        try:
            action()
            self.deployment.roll_out()
        except Failed as failure:
            problems.append(shortened(failure))
        seconds = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        part = self.load.end_part()
        problems += self._faults(part, bound, newcomers)
        if problems:
            problems += self.load.failures()[-5:]
        self.report.add(
            Row(
                self.name,
                name,
                self.dns,
                seconds,
                part.failed,
                part.longest,
                None if self.deployment.copies else part.after_return,
                part.newcomers,
                f"  ({part.longest_kind})",
                tuple(problems),
            )
        )

    def _faults(self, part: Part, bound: float | None, newcomers: float | None) -> Sequence[str]:
        faults = list(part.faults)
        if part.failed:
            faults.append(f"{part.failed} calls failed")
        if bound is None and not self.deployment.copies:
            if part.after_return > RETURN_SECONDS_MAX:
                faults.append(
                    f"{part.after_return:.2f} s of silence after the process was back in the routes"
                )
        elif part.longest > (bound or COPIES_SECONDS_MAX):
            faults.append(f"{part.longest:.2f} s of silence ({part.longest_kind})")
        if newcomers is not None and part.newcomers > newcomers:
            faults.append(f"a newcomer's first send lasted {part.newcomers:.2f} s")
        return faults

    def finish(self) -> None:
        """End the load and add a row with the checker's last line."""
        began = time.monotonic()
        try:
            self.load.save(CACHE / "last")
            facts, faults = self.load.end()
        except Failed as failure:
            self.report.add(
                Row(self.name, "checker", None, time.monotonic() - began, faults=(str(failure),))
            )
            return
        note = (
            f"{facts['messages']:,} messages read, {facts['lost']} lost, idempotent messages "
            f"stored twice: {facts['idempotent_twice']}, other messages stored twice: "
            f"{facts['stored_twice']}, delivered twice: {facts['delivered_twice']}"
        )
        self.report.add(
            Row(
                self.name,
                "checker, whole run",
                None,
                time.monotonic() - began,
                note=note,
                faults=tuple(faults),
            )
        )
