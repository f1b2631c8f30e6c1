"""Allocation strategies: the protocol, and sharing the queues of all topics with one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

AllocationFunction: TypeAlias = Callable[
    [str, Sequence[str], Sequence[MessageQueue]], Collection[MessageQueue]
]
"""A strategy without a name of its own; see `AllocationObject.allocate` for the arguments."""


class AllocationObject(Protocol):
    """A way to share the queues of one topic, with settings or a name in settings."""

    @property
    def name(self) -> str:
        """What the strategy is called in settings, for example "AVG"."""
        ...

    def allocate(
        self, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Collection[MessageQueue]:
        """Return the queues of `member`, some of the queues given.

        Over all members, every queue should be returned once. Whatever the answer depends on
        must be the same on every member: no clock, no random number, no `hash()` of a string.

        Args:
            member: one of `members`.
            members: sorted ids of all members that subscribe to the topic.
            queues: sorted queues of one topic.
        """
        ...


@runtime_checkable
class OwnerAware(AllocationObject, Protocol):
    """A strategy that can do better when it knows who holds what now."""

    def allocate_from(
        self,
        member: str,
        members: Sequence[str],
        queues: Sequence[MessageQueue],
        owners: Mapping[MessageQueue, str],
    ) -> Collection[MessageQueue]:
        """Return the queues of `member`, as `allocate` does.

        Args:
            member: one of `members`.
            members: sorted ids of all members that subscribe to the topic.
            queues: sorted queues of one topic.
            owners: queue to the member that holds it; a queue without a holder is left out.
                Holders that are not in `members` and queues that are not in `queues` may occur.
        """
        ...


AllocationStrategy: TypeAlias = AllocationObject | AllocationFunction
"""What a consumer takes: an object such as `STICKY`, or a plain function."""


def name_of(strategy: AllocationStrategy) -> str:
    """Return what to call a strategy in settings, logs and errors."""
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None)
    return str(name or type(strategy).__name__)


def share_of(
    strategy: AllocationStrategy,
    member: str,
    members: Sequence[str],
    queues: Sequence[MessageQueue],
    owners: Mapping[MessageQueue, str] | None,
) -> Collection[MessageQueue]:
    """Ask a strategy of any kind for one member's queues of one topic.

    Args:
        strategy: an object or a function; only one that is `OwnerAware` is told the owners.
        member: one of `members`.
        members: sorted ids of all members that subscribe to the topic.
        queues: sorted queues of one topic.
        owners: queue to the member that holds it, or None where that is not known.
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
        strategy: how the queues of each topic are shared.
        member: this member's id; one that `topics_of` does not know reads nothing.
        topics_of: member id to the topics it subscribes to, of every live member.
        queues: the readable queues of all topics, in any order; a topic that `member` does not
            subscribe to is not looked at.
        owners: queue to the member that holds it, as the offset service knows them; either all
            members of a group give it or none. None: shared by members and queues alone.

    Raises:
        InvalidArgument: the strategy answered with a queue that it was not given, or cannot tell
            where a queue or a member belongs.
    """
    mine: set[MessageQueue] = set()
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    for topic in topics_of.get(member, ()):
        members = sorted(other for other, topics in topics_of.items() if topic in topics)
        ordered = sorted(by_topic.get(topic, ()), key=lambda queue: (queue.broker, queue.queue_id))
        share = share_of(strategy, member, members, ordered, owners)
        # Another topic's queue would be read by two members, one that is not there by nobody.
        strange = set(share).difference(ordered)
        if strange:
            shown = ", ".join(str(queue) for queue in sorted(strange)[:3])
            raise InvalidArgument(
                reason=f"allocation strategy {name_of(strategy)} gave {shown}, "
                f"not a readable queue of {topic!r}"
            )
        mine.update(share)
    return mine
