"""Start positions of two groups on the same queues, side by side, with an explanation for each."""

from collections.abc import Mapping, Set

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rockoon.offsets.start import Start
from rockoon_core.message_queue import MessageQueue

Starts = Mapping[MessageQueue, Start]


def print_starts(
    console: Console, exact: Starts, classic: Starts, new_queues: Set[MessageQueue]
) -> None:
    """Print a line for each queue, and for one differing queue the explanation of each rule."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("queue", "rule EXACT starts at", "rule CLASSIC starts at"):
        table.add_column(heading, no_wrap=True)
    differing: MessageQueue | None = None
    for queue in sorted(exact.keys() | classic.keys()):
        places = [said.get(queue) for said in (exact, classic)]
        differs = len({place and (place.offset, place.reason) for place in places}) > 1
        if differs and differing is None:
            differing = queue
        name = Text(str(queue))
        if queue in new_queues:
            name.append(" new", style="yellow")
        style = "bold" if differs else ""
        table.add_row(
            name,
            *(
                Text(f"{place.offset:>6}  {place.reason}" if place else "     -", style=style)
                for place in places
            ),
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    if differing is None:
        return
    console.print(f"  why on {differing}:", style="dim", highlight=False)
    for rule, said in (("EXACT", exact), ("CLASSIC", classic)):
        if differing in said:
            because = Text(f"{rule}: {said[differing].explanation}", style="dim")
            console.print(Padding(because, (0, 0, 0, 4)))
