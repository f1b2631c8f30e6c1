"""Start positions of readers that keep their own progress. Pure: facts in, a decision out.

The decision is the offset service's (`rockoon_core.start_position`), with this reader in the place
of the group: by rule EXACT a queue is new when it was born after *this reader* first looked at the
topic, however long the group has been there. So a member that comes late starts by policy, and
queues that were added while it was away are read from their beginning.

Source: RebalancePushImpl#computePullFromWhereWithException for broadcasting; RocketMQ knows neither
create revisions nor policies for progress that does not fit.
"""

from dataclasses import dataclass

from rockoon.offsets.start import Start
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import Facts, GroupRules, QueueState, Stored, decide

CREATE_REVISION_UNKNOWN = 0
"""Of progress that RocketMQ wrote: taken to be of the queue that is there now."""


@dataclass(frozen=True, slots=True)
class Position:
    """Progress on one queue."""

    offset: int
    """Next offset to consume."""
    create_revision: int = CREATE_REVISION_UNKNOWN
    """Revision at which the queue was created: a queue of the same name is another one."""


def facts_of(
    queue: MessageQueue,
    create_revision: int,
    state: QueueState,
    since: int,
    rules: GroupRules,
    kept: Position | None,
) -> Facts:
    """What one decision is made on.

    Args:
        queue, create revision: which, and the revision at which it was created.
        state: as its broker tells.
        since: revision at which this reader first looked at the topic.
        rules: of its group.
        kept: progress; None: nothing is kept.
    """
    stored = None
    if kept is not None:
        stored = Stored(
            kept.offset,
            create_revision
            if kept.create_revision == CREATE_REVISION_UNKNOWN
            else kept.create_revision,
        )
    return Facts(queue, state, create_revision, since, rules, stored, who="this reader")


def start_on(queue: MessageQueue, facts: Facts, offset_at_time: int | None = None) -> Start:
    """Where reading starts; arguments and errors as of `rockoon_core.start_position.decide`."""
    decision = decide(facts, offset_at_time)
    return Start(
        queue, decision.offset, decision.reason.name, decision.explanation, gap=decision.gap
    )
