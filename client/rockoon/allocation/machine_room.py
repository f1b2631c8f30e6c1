"""MACHINE_ROOM and MACHINE_ROOM_NEARBY: queues are read where their brokers stand."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rockoon.allocation.strategy import AllocationStrategy, name_of, share_of
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

_Thing = TypeVar("_Thing", str, MessageQueue)


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Only queues of certain rooms are read, and shared evenly; the others are read by nobody.

    The room of a broker is what its name has before the separator: "room1@broker-a". A broker
    without one, or with more, is in no room.

    Args:
        rooms: names of the rooms to read from; the same on all members.
        separator: "@" as in RocketMQ. Nameservers of Rockoon accept no "@" in a broker's name; for
            "room1.broker-a" give ".".

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

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
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
    """Each room's queues are shared by the members in that room; where none is, by all members.

    Rooms are shared one after the other, so over all rooms shares may differ by more than one.

    Args:
        inner: how the queues of one room are shared.
        room_of_queue: tells in which room a queue's broker stands.
        room_of_member: tells from its id in which room a member runs. All three are the same on
            all members.

    Raises:
        InvalidArgument: from an allocation, when a room's name is empty.

    Source: AllocateMachineRoomNearby and its MachineRoomResolver.

    Example, for brokers and members whose names begin with the room, as in "A-broker-1":

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

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Collection[MessageQueue]:
        return self._allocate(member, members, queues, None)

    def allocate_from(
        self,
        member: str,
        members: Sequence[str],
        queues: Sequence[MessageQueue],
        owners: Mapping[MessageQueue, str],
    ) -> Collection[MessageQueue]:
        return self._allocate(member, members, queues, owners)

    def _allocate(
        self,
        member: str,
        members: Sequence[str],
        queues: Sequence[MessageQueue],
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
            raise InvalidArgument(reason=f"{thing} is in no machine room")
        found.setdefault(room, []).append(thing)
    return found
