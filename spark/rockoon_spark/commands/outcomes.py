"""Result of a command, printed as its last lines."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

Figures = Mapping[str, Any]
"""Figures of a job by name: numbers, sentences, or nested figures of parts such as brokers."""

_BYTES_READ = "log_bytes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job, as a command prints it."""

    figures: Figures
    problems: Sequence[str] = ()
    """Problems found by the job; if there is one, the command exits with status 1."""
    notes: Sequence[str] = ()
    """Remarks of the job, printed without effect on the exit status."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of figures in the printed table; figures without one are printed by name."""

    def timed(self, seconds: float) -> "Outcome":
        """Return a copy with the duration and the rate at which the log was read."""
        figures = {**self.figures, "seconds": round(seconds, 2)}
        if read := figures.get(_BYTES_READ):
            figures["MB/s"] = round(read / 1e6 / seconds, 1)
        return replace(self, figures=figures)


def table(figures: Figures, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Format figures, one per line; those of a part are indented below its name."""
    flat = {name: each for name, each in figures.items() if not isinstance(each, Mapping)}
    blocks = [_block(flat, labels)] if flat else []
    for name, each in figures.items():
        if isinstance(each, Mapping) and each:
            blocks.append(f"{name}:\n{textwrap.indent(table(each, labels), '  ')}")
    return "\n".join(blocks)


def _block(figures: Figures, labels: Mapping[str, str]) -> str:
    shown = {
        labels.get(name) or name.replace("_", " "): _shown(value) for name, value in figures.items()
    }
    width, length = max(map(len, shown)), max(map(len, shown.values()))
    return "\n".join(f"{name:<{width}}  {value:>{length}}" for name, value in shown.items())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
