"""Verified claims of the demo with their figures, and the start positions of two groups."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rockoon.message import Message
from rockoon.offsets.start import Start
from rockoon_core.message_queue import MessageQueue


@dataclass
class Verified:
    """Claims and whether they held."""

    rows: list[tuple[bool, str, str]] = field(default_factory=list)

    def check(self, claim: str, holds: bool, figures: str) -> None:
        self.rows.append((holds, claim, figures))

    @property
    def all_hold(self) -> bool:
        return bool(self.rows) and all(holds for holds, _, _ in self.rows)

    def print(self, console: Console) -> None:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for holds, claim, figures in self.rows:
            mark = "[green]yes[/green]" if holds else "[bold red]NO[/bold red]"
            table.add_row(mark, Text.assemble(claim, "\n", (figures, "dim")))
        console.print(table)


@dataclass
class Received:
    """Messages that the members of a group received."""

    group: str
    messages: Counter[str] = field(default_factory=Counter)
    # Message id → (queue, offset): more than one if the message was stored more than once.
    places: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    # The last offset by (member, queue): a member must see ascending offsets.
    last_offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    backward_steps: int = 0

    def add(self, member: str, message: Message) -> None:
        self.messages[message.message_id] += 1
        position = (str(message.queue), message.queue_offset)
        self.places.setdefault(message.message_id, set()).add(position)
        place = (member, str(message.queue))
        if message.queue_offset <= self.last_offsets.get(place, -1):
            self.backward_steps += 1
        self.last_offsets[place] = message.queue_offset

    def missing(self, acknowledged: set[str]) -> set[str]:
        return acknowledged - self.messages.keys()

    @property
    def stored_twice(self) -> int:
        return sum(len(places) > 1 for places in self.places.values())

    @property
    def duplicates(self) -> int:
        return self.messages.total() - len(self.messages)


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
