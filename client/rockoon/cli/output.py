"""Output of commands: tables and sentences for people, JSON for programs."""

import datetime
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rockoon_core.message_queue import MessageQueue
    from rockoon_proto.v1.offset_pb2 import QueueRef

Row = TypeVar("Row")
# Without a terminal, lines are neither cut nor wrapped.
PIPE_COLUMNS = 4096


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, for streams of documents."""
    print(json.dumps(value, ensure_ascii=False))


def picked(source: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object for JSON, by their names."""
    return {name: getattr(source, name) for name in names}


def optional_field(message: Any, name: str) -> Any:
    """Return a field of a protobuf message; None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def queue_fields(queue: "QueueRef | MessageQueue") -> dict[str, Any]:
    return picked(queue, "topic", "broker", "queue_id")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    numbers: Iterable[str] = (),
) -> None:
    """Print a table, or one sentence if there are no rows.

    Args:
        rows: cells; None is shown as "-".
        numbers: headings of the columns to align right.
    """
    lines = [[cell(value) for value in row] for row in rows]
    if not lines:
        print(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Two spaces between columns, so that the common tables fit into 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    right = set(numbers)
    for heading in columns:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    for line in lines:
        # Text, not markup: names of topics may contain brackets.
        table.add_row(*map(Text, line))
    # Full width, however narrow the terminal: a truncated address is useless.
    console = Console(width=PIPE_COLUMNS, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def print_rows(
    rows: Iterable[Row],
    columns: Mapping[str, Callable[[Row], Any]],
    *,
    empty: str,
    numbers: Iterable[str] = (),
) -> None:
    """Print a table as `print_table`. `columns`: heading → function of a row's cell."""
    cells = ([value(row) for value in columns.values()] for row in rows)
    print_table(tuple(columns), cells, empty=empty, numbers=numbers)


def print_wrapped(heading: str, sentence: str) -> None:
    """Print a sentence next to its heading, wrapped at the width of a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_COLUMNS
    room = max(width - len(heading), 20)
    lines = textwrap.wrap(sentence, room, break_on_hyphens=False) or [""]
    print(heading + ("\n" + " " * len(heading)).join(lines))


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def local_time(epoch_ms: int | None) -> str | None:
    """Return a time in the local time zone with its UTC offset, for example
    "2026-01-31T12:00:00+01:00"; None if there is no time. Options for times accept this form."""
    if not epoch_ms:
        return None
    moment = datetime.datetime.fromtimestamp(epoch_ms / 1000).astimezone()
    return moment.isoformat(timespec="seconds")


def queue_text(queue: "QueueRef") -> str:
    """Return a queue in the form "orders@broker-a:3"."""
    return f"{queue.topic}@{queue.broker}:{queue.queue_id}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 line" or "2 lines"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def for_humans(byte_count: int) -> str:
    size = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration(milliseconds: int | None) -> str | None:
    """Return a duration in its largest fitting unit; None for None."""
    if milliseconds is None:
        return None
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"
