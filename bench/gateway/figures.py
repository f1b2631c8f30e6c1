"""Figures of a run, and their table for docs/measurements/gateway-bench.md."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.compare.figures import NONE, P50, P99, shown, span

CALLS = "calls/s"
CALL_CPU, MESSAGE_CPU, CLIENT_CPU = "CPU µs a call", "CPU µs a message", "the client's CPU µs"
CORES, CLIENT_KIB = "% of a core", "KiB a client"
# Processes with a smaller share are not shown.
SHARE_TOLD_MIN = 0.01


def p50_p99(seconds: list[float]) -> Mapping[str, float]:
    """Return p50 and p99 of latencies, in milliseconds."""
    ordered = sorted(seconds)
    return {
        unit: ordered[len(ordered) * share // 100] * 1e3 for unit, share in ((P50, 50), (P99, 99))
    }


@dataclass
class Figures:
    """Results of a run.

    Attributes:
        columns: names of the compared clients and servers.
        values: one value per round, by measure, unit and column.
        shares: share of each process, for values that are sums over processes.
    """

    columns: list[str]
    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    shares: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, column: str, measure: str, values: Mapping[str, float]) -> None:
        """Add the values of one turn, given by unit."""
        for unit, value in values.items():
            self.values.setdefault((measure, unit), {}).setdefault(column, []).append(value)

    def add_sum(
        self, column: str, measure: str, unit: str, by_process: Mapping[str, float]
    ) -> None:
        """Add a value that is a sum over processes, and the share of each process."""
        self.add(column, measure, {unit: sum(by_process.values())})
        shares = self.shares.setdefault((measure, unit), {}).setdefault(column, {})
        for name, value in by_process.items():
            shares.setdefault(name, []).append(value)

    def table(self) -> str:
        """Return the table; a cell is a range over the rounds, or a dash."""
        lines = [
            f"| measure | unit | {' | '.join(self.columns)} |",
            "|---" * (2 + len(self.columns)) + "|",
        ]
        told = ""
        for (measure, unit), by_column in self.values.items():
            cells = [span(by_column.get(column, ())) for column in self.columns]
            head = "" if measure == told else f" {measure}"
            lines.append(f"|{head} | {unit} | {' | '.join(cells)} |")
            told = measure
            processes = self.shares.get((measure, unit), {})
            if any(len(each) > 1 for each in processes.values()):
                cells = [self._processes(processes.get(column, {})) for column in self.columns]
                lines.append(f"| | of it | {' | '.join(cells)} |")
        return "\n".join(lines)

    @staticmethod
    def _processes(by_process: Mapping[str, list[float]]) -> str:
        total = sum(map(sum, by_process.values()))
        if len(by_process) < 2 or not total:
            return NONE
        found = sorted(by_process.items(), key=lambda item: -sum(item[1]))
        return ", ".join(
            f"{name} {shown(sum(values) / len(values))}"
            for name, values in found
            if sum(values) / total >= SHARE_TOLD_MIN
        )
