"""Allocation strategies, their protocols, and allocation of the queues of all topics.

| name                 | shares                                                                |
| AVG, AVG_BY_CIRCLE   | by position; sizes differ by at most one queue                        |
| CONFIG               | a fixed list of queues for each member                                |
| CONSISTENT_HASH      | a ring of queues and members; few queues move, shares may be uneven   |
| STICKY               | even shares, and few queues move if members or queues change          |
| MACHINE_ROOM         | members read queues of brokers in their machine room                  |

Invariants of STICKY, with or without owners:

- Shares differ by at most one.
- Equal members, queues and owners give equal results on every member.
- With owners, as many queues stay with their owner as even shares allow.
- During a hand-over the result does not change: it is the same however many of the moving queues
  have been released or acquired so far.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

Members: TypeAlias = Sequence[str]
Queues: TypeAlias = Sequence[MessageQueue]
AllocationFunction: TypeAlias = Callable[[str, Members, Queues], Collection[MessageQueue]]
"""A strategy without a name; for the arguments see `AllocationObject.allocate`."""


class AllocationObject(Protocol):
    """Strategy that shares the queues of one topic."""

    @property
    def name(self) -> str:
        """Name of the strategy in settings, for example "AVG"."""
        ...

    def allocate(self, member: str, members: Members, queues: Queues) -> Collection[MessageQueue]:
        """Return the queues of `member`, a subset of `queues`.

        Over all members, each queue should be returned once. The result must only depend on inputs
        that are equal on every member: no clock, no random number, no `hash()` of a string.

        Args:
            members: sorted ids of all members that subscribe to the topic.
            queues: sorted queues of one topic.
        """
        ...


@runtime_checkable
class OwnerAware(AllocationObject, Protocol):
    """Strategy that also uses the present owners of queues."""

    def allocate_from(
        self,
        member: str,
        members: Members,
        queues: Queues,
        owners: Mapping[MessageQueue, str],
    ) -> Collection[MessageQueue]:
        """Return the queues of `member`, as `allocate`.

        Args:
            members: sorted ids of all members that subscribe to the topic.
            queues: sorted queues of one topic.
            owners: queue → member that owns it; queues without an owner are missing. May contain
                owners that are not in `members` and queues that are not in `queues`.
        """
        ...


AllocationStrategy: TypeAlias = AllocationObject | AllocationFunction
"""Accepted by a consumer: an object such as `STICKY`, or a function."""


def name_of(strategy: AllocationStrategy) -> str:
    """Return the name of a strategy for settings, logs and errors."""
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None)
    return str(name or type(strategy).__name__)


def share_of(
    strategy: AllocationStrategy,
    member: str,
    members: Sequence[str],
    queues: Sequence[MessageQueue],
    owners: Mapping[MessageQueue, str] | None,
) -> Collection[MessageQueue]:
    """Return one member's queues of one topic by a strategy of any kind.

    Args:
        strategy: an object or a function; only an `OwnerAware` one gets the owners.
        members: sorted ids of all members that subscribe to the topic.
        queues: sorted queues of one topic.
        owners: queue → member that owns it; None if unknown.
    """
    if owners is not None and isinstance(strategy, OwnerAware):
        return strategy.allocate_from(member, members, queues, owners)
    if callable(strategy):
        return strategy(member, members, queues)
    return strategy.allocate(member, members, queues)


def allocate(
    strategy: AllocationStrategy,
    member: str,
    topics_of: Mapping[str, Collection[str]],
    queues: Collection[MessageQueue],
    owners: Mapping[MessageQueue, str] | None = None,
) -> set[MessageQueue]:
    """Return all queues that `member` reads.

    Args:
        strategy: shares the queues of each topic.
        member: id of this member; if `topics_of` does not have it, the result is empty.
        topics_of: id of every live member → topics it subscribes to.
        queues: the readable queues of all topics, in any order; topics that `member` does not
            subscribe to are ignored.
        owners: queue → member that owns it, from the offset service; None to ignore owners. All
            members of a group must pass owners, or none.

    Raises:
        InvalidArgument: the strategy returned a queue that is not in its input, or cannot
            determine the room of a queue or a member.
    """
    mine: set[MessageQueue] = set()
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic in topics_of.get(member, ()):
        members = sorted(other for other, topics in topics_of.items() if topic in topics)
        ordered = sorted(by_topic.get(topic, ()), key=lambda queue: (queue.broker, queue.queue_id))
        share = share_of(strategy, member, members, ordered, owners)
        # A queue of another topic would be read by two members, and an unknown one by none.
        foreign = set(share).difference(ordered)
        if foreign:
            shown = ", ".join(str(queue) for queue in sorted(foreign)[:3])
            raise InvalidArgument(
                reason=f"allocation strategy {name_of(strategy)} returned {shown}, "
                f"not a readable queue of {topic!r}"
            )
        mine.update(share)
    return mine


@dataclass(frozen=True, slots=True)
class Average:
    """Consecutive queues go to one member; shares differ by at most one, the first are larger.

    Source: AllocateMessageQueueAveragely.
    """

    @property
    def name(self) -> str:
        return "AVG"

    def allocate(self, member: str, members: Members, queues: Queues) -> Queues:
        index = members.index(member)
        share, rest = divmod(len(queues), len(members))
        if share == 0:
            return queues[index : index + 1]
        size = share + (index < rest)
        start = index * size + (0 if index < rest else rest)
        return queues[start : start + size]


@dataclass(frozen=True, slots=True)
class AverageByCircle:
    """Queue number n goes to member number n modulo the number of members.

    Source: AllocateMessageQueueAveragelyByCircle.
    """

    @property
    def name(self) -> str:
        return "AVG_BY_CIRCLE"

    def allocate(self, member: str, members: Members, queues: Queues) -> Queues:
        return queues[members.index(member) :: len(members)]


@dataclass(frozen=True, slots=True)
class Configured:
    """This member reads a fixed list of queues, independent of other members.

    The operator must make sure that the lists of all members cover every queue once. Unlike in
    RocketMQ, a listed queue that does not exist or is not readable is skipped until it is.

    Args:
        queues: queues of any topics that this member reads.

    Source: AllocateMessageQueueByConfig.
    """

    @property
    def name(self) -> str:
        return "CONFIG"

    queues: tuple[MessageQueue, ...]

    def allocate(
        self,
        member: str,  # noqa: ARG002 - the result does not depend on the member
        members: Sequence[str],  # noqa: ARG002 - nor on other members
        queues: Sequence[MessageQueue],
    ) -> Sequence[MessageQueue]:
        return [queue for queue in queues if queue in self.queues]


def ring_hash(text: str) -> int:
    """Return the ring position of a text: the first 32 bits of its MD5, big-endian, unsigned.

    Source: ConsistentHashRouter.MD5Hash.
    """
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_key(queue: MessageQueue) -> str:
    """Return the text whose hash is the position of a queue.

    Source: MessageQueue#toString, which Java members hash.
    """
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
    )


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """A queue belongs to the next member on the ring.

    If a member joins or leaves, only its own queues move. But one member may read several times as
    much as another, or nothing. `Sticky` moves some more queues and keeps shares even.

    Args:
        virtual_nodes: ring positions per member; must be equal on all members.

    Raises:
        InvalidArgument: `virtual_nodes` is less than one.

    Source: AllocateMessageQueueConsistentHash, ConsistentHashRouter, VirtualNode.
    """

    @property
    def name(self) -> str:
        return "CONSISTENT_HASH"

    virtual_nodes: int = 10

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise InvalidArgument(reason=f"virtual_nodes is {self.virtual_nodes}, not at least 1")

    def allocate(self, member: str, members: Members, queues: Queues) -> Queues:
        # If two nodes have one position, the later member gets it, as in the Java tree map.
        ring = {
            ring_hash(f"{other}-{number}"): other
            for other in members
            for number in range(self.virtual_nodes)
        }
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, ring_hash(queue_key(queue))) % len(places)]]
            == member
        ]


@dataclass(frozen=True, slots=True)
class Sticky:
    """Assigns queues to members by a score, a hash of both.

    The score of a pair of a member and a queue does not depend on other members or queues. Pairs
    are processed from the highest score down; a pair is assigned if the queue is free and the
    member's share is not full. If a member leaves, its queues go to the members with the next
    scores, and most other queues do not move. If the owners are known, their pairs are processed
    first, which minimizes the moves.

    Time and memory grow with members times queues: about 35 ms for 64 members and 1024 queues.
    """

    @property
    def name(self) -> str:
        return "STICKY"

    def allocate(self, member: str, members: Members, queues: Queues) -> Queues:
        return self.allocate_from(member, members, queues, {})

    def allocate_from(
        self,
        member: str,
        members: Members,
        queues: Queues,
        owners: Mapping[MessageQueue, str],
    ) -> Sequence[MessageQueue]:
        pairs = _best_first(members, queues)
        shares = _Shares(len(members), len(queues))
        if owners:
            held = [owners.get(queue) for queue in queues]
            shares.assign(pair for pair in pairs if held[pair[0]] == members[pair[1]])
        shares.assign(pairs)
        mine = members.index(member)
        return [queue for queue, owner in zip(queues, shares.owners, strict=True) if owner == mine]


class _Shares:
    """Assignment of queues to members, which are identified by their positions."""

    def __init__(self, members: int, queues: int) -> None:
        self.owners: list[int | None] = [None] * queues
        self._counts = [0] * members
        # Each member may get `even` queues, and the first `extra` members that need it one more.
        # Fixed members would be other members after each change.
        self._even, self._extra = divmod(queues, members)

    def assign(self, pairs: Iterable[tuple[int, int]]) -> None:
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
    """Return all pairs of queue and member positions, highest score first."""
    rows = np.array([_hash(queue_key(queue)) for queue in queues], np.uint64)
    columns = np.array([_hash(member) for member in members], np.uint64)
    order = np.argsort(_mixed(rows[:, None] ^ columns), axis=None, kind="stable")[::-1]
    queue, member = np.divmod(order, len(members))
    return list(zip(queue.tolist(), member.tolist(), strict=True))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "big")


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of numbers, so that every bit depends on all input bits (end of SplitMix64).

    One MD5 per pair would take ten times as long.
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


_Thing = TypeVar("_Thing", str, MessageQueue)


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Members read only queues of certain rooms, in even shares; no member reads other queues.

    The room of a broker is the part of its name before the separator: "room1@broker-a". A broker
    without a separator, or with several, has no room.

    Args:
        rooms: names of the rooms to read from; must be equal on all members.
        separator: "@" as in RocketMQ. Rockoon's nameservers do not accept "@" in a broker's name;
            for "room1.broker-a" use ".".

    Raises:
        InvalidArgument: there are no rooms, or the separator is empty.

    Source: AllocateMessageQueueByMachineRoom.
    """

    @property
    def name(self) -> str:
        return "MACHINE_ROOM"

    rooms: frozenset[str]
    separator: str = "@"

    def __post_init__(self) -> None:
        if not self.rooms:
            raise InvalidArgument(reason="MACHINE_ROOM without a room would read nothing")
        if not self.separator:
            raise InvalidArgument(reason="the separator of room and broker is empty")

    def allocate(self, member: str, members: Members, queues: Queues) -> Queues:
        near = [queue for queue in queues if self._holds(queue.broker)]
        index = members.index(member)
        share, rest = divmod(len(near), len(members))
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[share * len(members) + index])
        return mine

    def _holds(self, broker: str) -> bool:
        parts = broker.split(self.separator)
        while parts and not parts[-1]:  # as String#split of Java does
            parts.pop()
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Members share the queues of their own room; all share those of a room without members.

    Rooms are allocated one by one, so the total shares may differ by more than one queue.

    Args:
        inner: strategy for the queues of one room.
        room_of_queue: returns the room of a queue's broker.
        room_of_member: returns the room of a member id. All three must be equal on all members.

    Raises:
        InvalidArgument: in an allocation, if the name of a room is empty.

    Source: AllocateMachineRoomNearby and its MachineRoomResolver.

    Example, for brokers and members whose names start with the room, as in "A-broker-1":

        def room(name: str) -> str:
            return name.partition("-")[0]

        MachineRoomNearby(AVERAGE, lambda queue: room(queue.broker), room)
    """

    inner: AllocationStrategy
    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{name_of(self.inner)}"

    def allocate(self, member: str, members: Members, queues: Queues) -> Collection[MessageQueue]:
        return self._allocate(member, members, queues, None)

    def allocate_from(
        self,
        member: str,
        members: Members,
        queues: Queues,
        owners: Mapping[MessageQueue, str],
    ) -> Collection[MessageQueue]:
        return self._allocate(member, members, queues, owners)

    def _allocate(
        self,
        member: str,
        members: Members,
        queues: Queues,
        owners: Mapping[MessageQueue, str] | None,
    ) -> Collection[MessageQueue]:
        members_in = _by_room(members, self.room_of_member)
        mine: list[MessageQueue] = []
        for room, there in sorted(_by_room(queues, self.room_of_queue).items()):
            readers = members_in.get(room, members)
            if member in readers:
                mine += share_of(self.inner, member, readers, there, owners)
        return mine


def _by_room(things: Sequence[_Thing], room_of: Callable[[_Thing], str]) -> dict[str, list[_Thing]]:
    found: dict[str, list[_Thing]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise InvalidArgument(reason=f"{thing} has no machine room: its name is empty")
        found.setdefault(room, []).append(thing)
    return found
