"""MACHINE_ROOM and MACHINE_ROOM_NEARBY: members read queues of brokers in their machine room."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rockoon.allocation.strategy import AllocationStrategy, name_of, share_of
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

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
            raise InvalidArgument(reason=f"{thing} has no machine room: its name is empty")
        found.setdefault(room, []).append(thing)
    return found
