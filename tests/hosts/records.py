"""Operations of clients, from their logs: one line per event. Only reads; checks nothing."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torture.judge import Call, read_calls

from support.log_history import Append, Read

SENDS = ("send", "ordered")
NO_MESSAGE = "-"


class Operation(NamedTuple):
    """One call of a client; times are monotonic nanoseconds, `ended_ns` None while it hangs."""

    kind: str
    began_ns: int
    ended_ns: int | None
    ok: bool
    # Position of a message, stored offset, result of a read, or the name of the error.
    said: str
    # Stream and number of a sent message.
    message: str = ""


class Log:
    """A file to which another process appends lines; each read continues at the former end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def lines(self) -> list[str]:
        """Return the complete lines since the last call."""
        with self._path.open("rb") as stream:
            stream.seek(self._read_bytes)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode().splitlines()


class Records:
    """Everything that clients have reported so far.

    Args:
        callers: logs of `hosts.caller`; the first is the one that makes all calls.
        members: the logs of `torture.member`.
    """

    def __init__(self, callers: Sequence[Path], members: Sequence[Path]) -> None:
        self._callers = [Log(path) for path in callers]
        self._members = [Log(path) for path in members]
        self._lines: list[str] = []
        # By the number of the caller, kind, and start time.
        self._operations: dict[tuple[int, str, int], Operation] = {}
        # Group → (queue, offset) → end of its first handling.
        self.handled_ns: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)

    def look(self) -> None:
        """Read the new lines."""
        for number, caller in enumerate(self._callers):
            for line in caller.lines():
                kind, began, *rest = line.split(" ", 4)
                key = number, kind, int(began)
                if len(rest) == 1:
                    made = Operation(kind, int(began), None, ok=False, said="", message=rest[0])
                else:
                    ended, ok, said = rest
                    message = self._operations[key].message
                    made = Operation(kind, int(began), int(ended), ok == "1", said, message)
                self._operations[key] = made
        for log in self._members:
            lines = log.lines()
            self._lines += lines
            for line in lines:
                word, group, _, queue, _, offset, at_ns = line.split()
                if word == "end":
                    # Members are read one after another, so the later one may be first.
                    its, place = self.handled_ns[group], (queue, int(offset))
                    its[place] = min(its.get(place, int(at_ns)), int(at_ns))

    @property
    def operations(self) -> list[Operation]:
        """Return operations of the first caller, in the order of their starts."""
        return [each for (number, _, _), each in self._operations.items() if number == 0]

    def reads(self, may_be_old: Callable[[Operation], bool] = lambda _: False) -> list[Read]:
        """Return the reads of all callers.

        Args:
            may_be_old: of a read, whether the broker may not have known of its successor.
        """
        found = []
        for (number, _, _), each in self._operations.items():
            if each.kind == "read" and each.ok and each.ended_ns is not None:
                queue, first, end, messages = each.said.split(" ")
                its = [None if text == NO_MESSAGE else text for text in messages.split(",") if text]
                found.append(
                    Read(
                        queue,
                        each.began_ns,
                        each.ended_ns,
                        int(first),
                        its,
                        int(end),
                        reader=str(number),
                        may_be_old=may_be_old(each),
                    )
                )
        return found

    def appends(self) -> list[Append]:
        """Return the messages of the first caller."""
        found = []
        for each in self.operations:
            if each.kind in SENDS:
                queue, _, offset = each.said.partition(" ") if each.ok else ("", "", "-1")
                stream, _, number = each.message.partition(":")
                found.append(
                    Append(
                        each.message,
                        each.began_ns,
                        each.ended_ns if each.ok else None,
                        queue,
                        int(offset),
                        stream if each.kind == "ordered" else "",
                        int(number),
                        is_numbered=each.kind == "ordered",
                    )
                )
        return found

    def calls(self) -> list[Call]:
        """Return all handler calls so far."""
        return read_calls(self._lines)

    def acknowledged(self) -> dict[str, set[int]]:
        """Return queue → offsets of acknowledged messages."""
        found: dict[str, set[int]] = defaultdict(set)
        for each in self.operations:
            if each.kind in SENDS and each.ok:
                queue, _, offset = each.said.partition(" ")
                found[queue].add(int(offset))
        return found

    def committed(self) -> int:
        """Return the highest acknowledged offset of a commit; 0 if there is none."""
        stored = [int(each.said) for each in self.operations if each.kind == "commit" and each.ok]
        return max(stored, default=0)
