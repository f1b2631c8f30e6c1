"""Availability of each kind of operation in each half second. Pure.

An operation counts in the interval of its start, and as done if its reply arrived within
PROMPT_SECONDS. `receive` follows a message: it starts when the sender gets the acknowledgement, and
ends when the last group has handled the message.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hosts.records import SENDS, Operation

KINDS = ("send", "ordered", "receive", "read", "commit", "route", "change")
BUCKET_SECONDS = 0.5
PROMPT_SECONDS = 1.0

# Share of a bucket's operations that were done; None if none started.
Share = float | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Shares of the buckets of one kind, from `from_ns` on."""

    kind: str
    from_ns: int
    shares: tuple[Share, ...]

    def short_seconds(self) -> float:
        """Seconds in which not everything was done."""
        return sum(BUCKET_SECONDS for share in self.shares if share is not None and share < 1)

    def down_seconds(self) -> float:
        """Seconds in which nothing was done."""
        return sum(BUCKET_SECONDS for share in self.shares if share == 0)

    def last_short_ns(self) -> int:
        """End of the last bucket in which not everything was done; `from_ns` if there is none."""
        short = [i for i, share in enumerate(self.shares, 1) if share is not None and share < 1]
        return self.from_ns + bucket_ns(short[-1] if short else 0)


def bucket_ns(count: int) -> int:
    return int(count * BUCKET_SECONDS * 1e9)


def timelines(
    operations: Iterable[Operation],
    handled_ns: Mapping[str, Mapping[tuple[str, int], int]],
    groups: Sequence[str],
    from_ns: int,
    to_ns: int,
) -> list[Timeline]:
    """Return one timeline of each of KINDS.

    Args:
        operations: operations of the caller.
        handled_ns: group → (queue, offset) → time of the first handling.
        groups: groups that read.
        from_ns, to_ns: range of the timelines.
    """
    prompt_ns = int(PROMPT_SECONDS * 1e9)
    done: dict[tuple[str, int], list[bool]] = defaultdict(list)

    def note(kind: str, began_ns: int, is_done: bool) -> None:
        if from_ns <= began_ns < to_ns:
            done[kind, (began_ns - from_ns) // bucket_ns(1)].append(is_done)

    for each in operations:
        prompt = each.ended_ns is not None and each.ended_ns - each.began_ns <= prompt_ns
        note(each.kind, each.began_ns, each.ok and prompt)
        if each.kind in SENDS and each.ok and each.ended_ns is not None:
            queue, _, offset = each.said.partition(" ")
            place = (queue, int(offset))
            ends = [handled_ns[group].get(place) for group in groups]
            is_done = all(end is not None and end - each.ended_ns <= prompt_ns for end in ends)
            note("receive", each.ended_ns, is_done)
    count = (to_ns - from_ns) // bucket_ns(1)
    return [
        Timeline(kind, from_ns, tuple(share(done.get((kind, index))) for index in range(count)))
        for kind in KINDS
    ]


def share(done: Sequence[bool] | None) -> Share:
    return sum(done) / len(done) if done else None
