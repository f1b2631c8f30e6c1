"""STICKY: even shares, and few queues move when members or queues come and go.

Invariants, for any owners and without them:

- Shares differ by one at most.
- The same members, queues and owners give the same answer, on every member.
- With owners, as many queues stay where they are as even shares allow.
- Half-way through a hand-over nothing is decided again: however many of the queues that change
  hands have been let go or taken up already, the answer is the one the hand-over began with.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rockoon.allocation.consistent_hash import queue_key
from rockoon_core.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Sticky:
    """Members and queues that suit each other best, by a hash of both, come together first.

    A pair of a member and a queue has a score that no other member or queue changes. Pairs are
    taken from the highest score down, as long as the queue is free and the member has room. When
    a member leaves, its queues go to the best member with room; what others held mostly still has
    their best score. Owners, where known, have the first choice, which makes the moves minimal.

    Deciding takes time and memory by members times queues: about 35 ms for 64 and 1024.
    """

    @property
    def name(self) -> str:
        return "STICKY"

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        return self.allocate_from(member, members, queues, {})

    def allocate_from(
        self,
        member: str,
        members: Sequence[str],
        queues: Sequence[MessageQueue],
        owners: Mapping[MessageQueue, str],
    ) -> Sequence[MessageQueue]:
        pairs = _best_first(members, queues)
        shares = _Shares(len(members), len(queues))
        if owners:
            held = [owners.get(queue) for queue in queues]
            shares.take(pair for pair in pairs if held[pair[0]] == members[pair[1]])
        shares.take(pairs)
        mine = members.index(member)
        return [queue for queue, owner in zip(queues, shares.owners, strict=True) if owner == mine]


class _Shares:
    """Who gets which queue, as far as decided; members and queues go by their position."""

    def __init__(self, members: int, queues: int) -> None:
        self.owners: list[int | None] = [None] * queues
        self._counts = [0] * members
        # Every member has room for `even` queues, and `extra` of them for one more: for those that
        # come first, because fixed ones would be others after each change.
        self._even, self._extra = divmod(queues, members)

    def take(self, pairs: Iterable[tuple[int, int]]) -> None:
        for queue, member in pairs:
            if self.owners[queue] is not None:
                continue
            count = self._counts[member]
            if count == self._even and self._extra:
                self._extra -= 1
            elif count >= self._even:
                continue
            self._counts[member] += 1
            self.owners[queue] = member


def _best_first(members: Sequence[str], queues: Sequence[MessageQueue]) -> list[tuple[int, int]]:
    """Return all pairs of a queue's and a member's position, the highest score first."""
    rows = np.array([_hash(queue_key(queue)) for queue in queues], np.uint64)
    columns = np.array([_hash(member) for member in members], np.uint64)
    order = np.argsort(_mixed(rows[:, None] ^ columns), axis=None, kind="stable")[::-1]
    queue, member = np.divmod(order, len(members))
    return list(zip(queue.tolist(), member.tolist(), strict=True))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "big")


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make numbers of which no part follows from the same part of the input (SplitMix64's end).

    One MD5 per pair instead would take ten times as long.
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
