"""What clients did, from their logs: one line an operation. Reading only; nothing is judged."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from torture.judge import Call, read_calls


class Operation(NamedTuple):
    """One call of a client; times are monotonic nanoseconds, `ended_ns` None while it hangs."""

    kind: str
    began_ns: int
    ended_ns: int | None
    ok: bool
    # Where a message went, which offset was stored, or the name of the error.
    said: str


class Log:
    """A file that another process appends lines to, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def lines(self) -> list[str]:
        """The whole lines that have come since."""
        with self._path.open("rb") as stream:
            stream.seek(self._read_bytes)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode().splitlines()


class Records:
    """All that clients have told so far.

    Args:
        caller: the log of `hosts.caller`.
        members: the logs of `torture.member`.
    """

    def __init__(self, caller: Path, members: list[Path]) -> None:
        self._caller = Log(caller)
        self._members = [Log(path) for path in members]
        self._lines: list[str] = []
        self._operations: dict[tuple[str, int], Operation] = {}
        # Group → (queue, offset) → when its first handling ended.
        self.handled_ns: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)

    def look(self) -> None:
        """Read on."""
        for line in self._caller.lines():
            kind, began, *end = line.split(" ", 4)
            began_ns = int(began)
            self._operations[kind, began_ns] = (
                Operation(kind, began_ns, int(end[0]), end[1] == "1", end[2])
                if end
                else Operation(kind, began_ns, None, ok=False, said="")
            )
        for log in self._members:
            lines = log.lines()
            self._lines += lines
            for line in lines:
                word, group, _, queue, _, offset, at_ns = line.split()
                if word == "end":
                    self.handled_ns[group].setdefault((queue, int(offset)), int(at_ns))

    @property
    def operations(self) -> list[Operation]:
        """In the order in which they began."""
        return list(self._operations.values())

    def calls(self) -> list[Call]:
        """Every handler call so far."""
        return read_calls(self._lines)

    def acknowledged(self) -> dict[str, set[int]]:
        """Queue → offsets of messages whose sender was told that they are stored."""
        found: dict[str, set[int]] = defaultdict(set)
        for each in self.operations:
            if each.kind == "send" and each.ok:
                queue, _, offset = each.said.partition(" ")
                found[queue].add(int(offset))
        return found

    def committed(self) -> int:
        """The furthest offset whose caller was told that it is stored; 0 when none."""
        stored = [int(each.said) for each in self.operations if each.kind == "commit" and each.ok]
        return max(stored, default=0)
