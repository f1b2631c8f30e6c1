"""Command line of a benchmark: its options, the directory of its stores, and its tables."""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(highlight=False)


def parser(
    prog: str, description: str | None, parts: Iterable[str] = (), seconds: float | None = None
) -> argparse.ArgumentParser:
    """Return a parser with the options `--dir`, `--only` if the benchmark has parts, and
    `--seconds` if a default is given."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    if parts := list(parts):
        made.add_argument("--only", choices=parts, action="append", help="a part; may be repeated")
    if seconds is not None:
        made.add_argument("--seconds", type=float, default=seconds, help="duration of each measure")
    made.add_argument("--dir", type=Path, default=Path(".bench"), help="directory for the stores")
    return made


@contextmanager
def stores(directory: Path) -> Iterator[Path]:
    """Yield a new directory for stores, which is removed at the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; all columns but the first are aligned to the right."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
