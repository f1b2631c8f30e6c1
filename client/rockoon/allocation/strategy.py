"""Protocols of allocation strategies, and allocation of the queues of all topics."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

AllocationFunction: TypeAlias = Callable[
    [str, Sequence[str], Sequence[MessageQueue]], Collection[MessageQueue]
]
"""A strategy without a name; for the arguments see `AllocationObject.allocate`."""


class AllocationObject(Protocol):
    """Strategy that shares the queues of one topic."""

    @property
    def name(self) -> str:
        """Name of the strategy in settings, for example "AVG"."""
        ...

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Collection[MessageQueue]:
        """Return the queues of `member`, a subset of `queues`.

        Over all members, each queue should be returned once. The result must only depend on inputs
        that are equal on every member: no clock, no random number, no `hash()` of a string.

        Args:
            member: one of `members`.
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
        members: Sequence[str],
        queues: Sequence[MessageQueue],
        owners: Mapping[MessageQueue, str],
    ) -> Collection[MessageQueue]:
        """Return the queues of `member`, as `allocate`.

        Args:
            member: one of `members`.
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
        member: one of `members`.
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
