"""Start positions of readers that store their own progress. No I/O.

The decision is that of the offset service (`rockoon_core.start_position`), with this reader instead
of the group: by rule EXACT a queue is new if it was created after *this reader* first used the
topic, however old the group is. So a member that joins late starts by policy, and queues that were
added while it was away are read from their beginning.

Source: RebalancePushImpl#computePullFromWhereWithException for broadcasting; RocketMQ has neither
create revisions nor policies for invalid progress.
"""

from dataclasses import dataclass

from rockoon.offsets.start import Start
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Facts, GroupRules, QueueState, StoredProgress, decide

CREATE_REVISION_UNKNOWN = 0
"""For progress that RocketMQ wrote: it is assumed to belong to the present queue."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress on one queue."""

    offset: int
    """Next offset to consume."""
    create_revision: int = CREATE_REVISION_UNKNOWN
    """Create revision of the queue; a later queue of the same name has another one."""


def facts_of(
    queue: MessageQueue,
    create_revision: int,
    state: QueueState,
    since: int,
    rules: GroupRules,
    progress: Position | None,
) -> Facts:
    """Return the facts for one decision.

    Args:
        queue, create_revision: the queue and its create revision.
        state: state of the queue from its broker.
        since: revision at which this reader first used the topic.
        rules: rules of its group.
        progress: stored progress; None if there is none.
    """
    stored = None
    if progress is not None:
        stored = StoredProgress(
            progress.offset,
            create_revision
            if progress.create_revision == CREATE_REVISION_UNKNOWN
            else progress.create_revision,
        )
    return Facts(queue, state, create_revision, since, rules, stored, who="this reader")


def start_on(queue: MessageQueue, facts: Facts, offset_at_time: int | None = None) -> Start:
    """Return the start on a queue; see `rockoon_core.start_position.decide`."""
    decision = decide(facts, offset_at_time)
    return Start(
        queue, decision.offset, decision.reason.name, decision.explanation, gap=decision.gap
    )
