"""Allocation: how the members of a group share the queues of a topic, computed by each member.

Every member runs the same strategy over the same sorted input: queues by topic, broker and id,
member ids by code point, and only the members that subscribe to the topic. While two members see
different members or routes, they may disagree for a moment; the epochs of the offset service decide
then. Source: RebalanceImpl#rebalanceByTopic and the AllocateMessageQueueStrategy classes.

A consumer also accepts your own strategy: a function of a member, all members and the queues of one
topic. In this example the first member alone reads the first queue:

    def audit_first(
        member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        first, *others = members
        if member == first:
            return queues if not others else queues[:1]
        return AVERAGE.allocate(member, others, queues[1:])

    PushConsumer(..., allocation=audit_first)

A strategy with settings is an object with `name` and a method `allocate` with these arguments
(`AllocationObject`). A strategy that uses the present owners of queues is an `OwnerAware`.
"""

from collections.abc import Mapping

from rockoon.allocation.strategy import (
    AllocationFunction,
    AllocationObject,
    AllocationStrategy,
    Average,
    AverageByCircle,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    OwnerAware,
    Sticky,
    allocate,
)
from rockoon.errors import InvalidArgument

__all__ = [
    "AVERAGE",
    "AVERAGE_BY_CIRCLE",
    "CONSISTENT_HASH",
    "STICKY",
    "STRATEGIES",
    "AllocationFunction",
    "AllocationObject",
    "AllocationStrategy",
    "Average",
    "AverageByCircle",
    "Configured",
    "ConsistentHash",
    "MachineRoom",
    "MachineRoomNearby",
    "OwnerAware",
    "Sticky",
    "allocate",
    "strategy_named",
]

AVERAGE = Average()
AVERAGE_BY_CIRCLE = AverageByCircle()
CONSISTENT_HASH = ConsistentHash()
STICKY = Sticky()

STRATEGIES: Mapping[str, AllocationObject] = {
    strategy.name: strategy for strategy in (AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH, STICKY)
}
"""Strategies without settings, by RocketMQ's names; STICKY exists only in Rockoon."""

_WITH_SETTINGS = {
    "CONFIG": "Configured(queues)",
    "MACHINE_ROOM": "MachineRoom(rooms)",
    "MACHINE_ROOM_NEARBY": "MachineRoomNearby(inner, room_of_queue, room_of_member)",
}


def strategy_named(name: str) -> AllocationObject:
    """Return the strategy with a name.

    Args:
        name: a key of `STRATEGIES`.

    Raises:
        InvalidArgument: there is no such strategy, or it needs settings.
    """
    found = STRATEGIES.get(name)
    if found is not None:
        return found
    needed = _WITH_SETTINGS.get(name.partition("-")[0])
    if needed:
        raise InvalidArgument(reason=f"allocation {name} needs settings: use {needed} instead")
    known = ", ".join(sorted({*STRATEGIES, *_WITH_SETTINGS}))
    raise InvalidArgument(reason=f"there is no allocation {name!r}; known are {known}")
