"""Verified claims of the demo: a line for each, with its figures."""

from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rockoon.message import Message


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
