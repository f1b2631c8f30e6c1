"""Outcomes: the last lines of a command."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

Figures = Mapping[str, Any]
"""What was done, by name: numbers, sentences, or figures of parts by their names."""

_BYTES_READ = "log_bytes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job."""

    figures: Figures
    problems: Sequence[str] = ()
    """What is wrong: the command fails."""
    notes: Sequence[str] = ()
    """What a reader may want to know: the command does not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the table calls figures of which the name alone does not say what was done."""

    def timed(self, seconds: float) -> "Outcome":
        """This, and how long it took and how fast the log was read."""
        figures = {**self.figures, "seconds": round(seconds, 2)}
        if read := figures.get(_BYTES_READ):
            figures["MB/s"] = round(read / 1e6 / seconds, 1)
        return replace(self, figures=figures)


def table(figures: Figures, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Figures, one to a line, by name or label; those of a part under its name."""
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
