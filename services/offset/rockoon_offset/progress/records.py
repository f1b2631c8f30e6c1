"""Records of the journal, one JSON array each.

A record says what *is* after it, never what to work out again, so replay needs no rule, no clock
and no broker, and gives the state that was live. The first element names the kind; kinds and the
order of their fields are stable, fields are only ever added at the end, with a default.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartReason


class Progress(NamedTuple):
    """How far a reader has read a queue."""

    # A reader's name (see `readers`), here and in the records that follow: the group's, or that of
    # one member with progress of its own.
    group: str
    queue: MessageQueue
    # Next offset to consume.
    offset: int
    # Who may commit: only the bearer of this number. Drawn from one counter for all queues.
    epoch: int
    # Create revision revision of the queue the offset belongs to.
    incarnation: int
    # Create revision of the group: a re-created group of the same name is another one.
    group_incarnation: int
    # Member that resolved last and holds the epoch; empty when it was released, and for a reader
    # outside membership.
    owner: str
    # Member that committed last.
    committer: str
    stored_at_ms: int
    metadata: str
    # The last decision that was not simply COMMITTED.
    start_offset: int
    start_reason: StartReason
    start_explanation: str
    started_at_ms: int
    # Messages that could not be read any more, over all decisions.
    gap_total: int
    # Receiver that acknowledged messages last; empty: it is not known, or a commit or a decision
    # came later.
    acknowledged_by: str = ""
    # When that was, epoch milliseconds; 0: no receiver has acknowledged a message since.
    acknowledged_at_ms: int = 0


class Put(NamedTuple):
    """Progress is now this."""

    progress: Progress


class Committed(NamedTuple):
    """The holder of the epoch moved the offset."""

    group: str
    queue: MessageQueue
    offset: int
    committer: str
    stored_at_ms: int
    metadata: str


class Removed(NamedTuple):
    """Progress is gone; a reader of the queue is a new one."""

    group: str
    queue: MessageQueue


class Reverted(NamedTuple):
    """Progress is gone, and who holds the queue is not: a reader of it is a new one."""

    # What it was, under its last epoch.
    progress: Progress


class QueueDeleted(NamedTuple):
    """The topic was deleted: progress is gone, the fact that there was some stays."""

    group: str
    queue: MessageQueue
    incarnation: int


class KnownMember(NamedTuple):
    """A member with progress of its own is now this."""

    group: str
    member: str
    # Create revision of the group.
    group_incarnation: int
    # (topic, revision), sorted: what it reads, and the create revision of the youngest queue
    # that it named when it first asked for the topic.
    since: tuple[tuple[str, int], ...]
    # When it was last known to be alive, epoch milliseconds; not exact while it is.
    seen_at_ms: int


class MemberForgotten(NamedTuple):
    """A member's own progress is gone; who comes under its name is a new one."""

    group: str
    member: str


class GroupDeleted(NamedTuple):
    """The group was deleted with everything it and its members had."""

    group: str


class ResetStep(NamedTuple):
    """One queue of a reset."""

    queue: MessageQueue
    # None when nothing was stored.
    from_offset: int | None
    to_offset: int
    min_offset: int
    max_offset: int
    clamped: bool
    # Incarnation of the queue that the plan was made for.
    incarnation: int
    # Epoch that the plan saw, 0 for none.
    epoch: int
    # Whose progress; empty for the group's.
    member: str = ""


class ResetApplied(NamedTuple):
    """An operator's reset, kept so that it can be undone. The progress itself is in Put records."""

    reset_id: str
    group: str
    topic: str
    operator: str
    applied_at_ms: int
    steps: tuple[ResetStep, ...]
    undone: bool


class Member(NamedTuple):
    """A member of a group, as far as a restart of the service has to remember it."""

    member_id: str
    instance: str
    mode: int
    # (topic, expression), sorted by topic.
    subscriptions: tuple[tuple[str, str], ...]
    peer: str
    joined_at_ms: int
    # How it shares queues with the others, for people.
    allocation: str = ""
    # Of the group that it joined; 0: not known.
    group_incarnation: int = 0


class MembersChanged(NamedTuple):
    """The members of a group are now these."""

    group: str
    members: tuple[Member, ...]


class MemberJoined(NamedTuple):
    """A group has this member, beside the others; one of the same id is replaced."""

    group: str
    member: Member


class Acquired(NamedTuple):
    """Receivers' messages of one queue are now this acquisition's; see `in_flight.window`."""

    group: str
    queue: MessageQueue
    number: int
    # Whose they were; 0: nobody's.
    former: int
    # Queue offset of bit 0 of `messages`, a set of offsets.
    first: int
    messages: int
    attempt: int
    visible_at_ms: int
    # Of a FIFO group's receiver.
    attempt_id: str = ""
    # Why the last delivery failed whose receiver gave a reason; empty: none did.
    reason: str = ""
    # The receiver, and its access key.
    holder: str = ""
    holder_key: str = ""
    # Reports of the holder extend the messages until then, epoch milliseconds; 0: none does.
    held_until_ms: int = 0
    # Name of the call that acquired them, which its caller may report as lost.
    call_id: str = ""


class Settled(NamedTuple):
    """Messages of an acquisition are done."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    messages: int
    stored_at_ms: int
    # The receiver that acknowledged them; empty: their holder.
    receiver: str = ""


class Extended(NamedTuple):
    """Messages of an acquisition are visible at another time."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    messages: int
    visible_at_ms: int


class WindowPut(NamedTuple):
    """What receivers have of a queue, without the acquisitions, whose records follow."""

    group: str
    queue: MessageQueue
    acquired_to: int
    since: int
    # Sets of offsets, the first of which is the committed offset.
    settled: int
    skipped: int


class Counters(NamedTuple):
    """Numbers that only grow."""

    # The last epoch given out.
    epoch: int
    # How often the service has started on this store.
    starts: int
    # The latest etcd revision that progress was compared with.
    route_revision: int
    # Identity of the etcd that counts revisions and incarnations; 0 while it was never told.
    etcd_cluster_id: int = 0
    # The last number of an acquisition given out.
    acquisition: int = 0


Record = (
    Put
    | Committed
    | Removed
    | Reverted
    | QueueDeleted
    | GroupDeleted
    | KnownMember
    | MemberForgotten
    | ResetApplied
    | MembersChanged
    | MemberJoined
    | Acquired
    | Settled
    | Extended
    | WindowPut
    | Counters
)

# Of the last fields, the last one first: without them a service of an earlier version reads the
# record, too.
_ACQUIRED_DEFAULTS = ("", 0, "", "", "")
_PROGRESS_DEFAULTS = (0, "")

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(record: Record) -> bytes:
    """A record as the journal stores it."""
    match record:
        case Committed():
            fields: list[Any] = ["commit", record.group, *record.queue, *record[2:]]
        case Put(progress):
            fields = ["put", progress.group, *progress.queue, *progress[2:]]
            _remove_defaults(fields, _PROGRESS_DEFAULTS)
        case Reverted(progress):
            fields = ["vacated", progress.group, *progress.queue, *progress[2:]]
            _remove_defaults(fields, _PROGRESS_DEFAULTS)
        case Removed(group, queue):
            fields = ["removed", group, *queue]
        case QueueDeleted(group, queue, incarnation):
            fields = ["queue-gone", group, *queue, incarnation]
        case KnownMember():
            fields = ["known", *record]
        case MemberForgotten(group, name):
            fields = ["forgotten", group, name]
        case GroupDeleted(group):
            fields = ["group-gone", group]
        case ResetApplied():
            fields = ["reset", *record]
        case MembersChanged():
            fields = ["members", *record]
        case MemberJoined(group, member):
            fields = ["member", group, member]
        # JSON readers have limits for numbers, and sets have thousands of bits: hexadecimal.
        case Acquired():
            set_of = f"{record.messages:x}"
            fields = ["acquired", record.group, *record.queue, *record[2:5], set_of, *record[6:]]
            _remove_defaults(fields, _ACQUIRED_DEFAULTS)
        case Settled() | Extended():
            kind = "settled" if isinstance(record, Settled) else "extended"
            set_of = f"{record.messages:x}"
            fields = [kind, record.group, *record.queue, record.number, record.first, set_of]
            fields += record[5:6] if record[-1] == "" else record[5:]
        case WindowPut(group, queue, acquired_to, since, settled, skipped):
            sets = f"{settled:x}", f"{skipped:x}"
            fields = ["window", group, *queue, acquired_to, since, *sets]
        case Counters():
            fields = ["counters", *record]
    return _to_json(fields).encode()


def _remove_defaults(fields: list[Any], defaults: Iterable[Any]) -> None:
    """Remove the last fields that have their defaults, the last one first."""
    for default in defaults:
        if fields[-1] != default:
            return
        fields.pop()


def decode(data: bytes) -> Record:
    """The record that `encode` wrote.

    Raises:
        ValueError: not a record of this version.
    """
    kind, *rest = json.loads(data)
    match kind:
        case "commit":
            group, topic, broker, queue_id, *fields = rest
            return Committed(group, MessageQueue(topic, broker, queue_id), *fields)
        case "put":
            return Put(progress_of(*rest))
        case "vacated":
            return Reverted(progress_of(*rest))
        case "removed":
            return Removed(rest[0], MessageQueue(*rest[1:]))
        case "queue-gone":
            return QueueDeleted(rest[0], MessageQueue(*rest[1:4]), rest[4])
        case "known":
            known = KnownMember(*rest)
            return known._replace(since=tuple((topic, at) for topic, at in known.since))
        case "forgotten":
            return MemberForgotten(*rest)
        case "group-gone":
            return GroupDeleted(*rest)
        case "reset":
            return reset_applied(*rest)
        case "members":
            group, members = rest
            return MembersChanged(group, tuple(member_of(*fields) for fields in members))
        case "member":
            return MemberJoined(rest[0], member_of(*rest[1]))
        case "acquired":
            group, topic, broker, queue_id, number, former, first, messages, *fields = rest
            queue = MessageQueue(topic, broker, queue_id)
            return Acquired(group, queue, number, former, first, int(messages, 16), *fields)
        case "settled" | "extended":
            group, topic, broker, queue_id, number, first, messages, *fields = rest
            record = Settled if kind == "settled" else Extended
            queue = MessageQueue(topic, broker, queue_id)
            return record(group, queue, number, first, int(messages, 16), *fields)
        case "window":
            group, topic, broker, queue_id, acquired_to, since, *sets = rest
            queue = MessageQueue(topic, broker, queue_id)
            return WindowPut(group, queue, acquired_to, since, *(int(each, 16) for each in sets))
        case "counters":
            return Counters(*rest)
    raise ValueError(f"unknown kind of record {kind!r}")


def progress_of(group: str, topic: str, broker: str, queue_id: int, *rest: Any) -> Progress:
    progress = Progress(group, MessageQueue(topic, broker, queue_id), *rest)
    return progress._replace(start_reason=StartReason(progress.start_reason))


def reset_applied(*fields: Any) -> ResetApplied:
    reset = ResetApplied(*fields)
    steps: list[list[Any]] = list(fields[ResetApplied._fields.index("steps")])
    return reset._replace(
        steps=tuple(ResetStep(MessageQueue(*queue), *rest) for queue, *rest in steps)
    )


def member_of(member_id: str, instance: str, mode: int, subscriptions: Any, *rest: Any) -> Member:
    pairs = tuple((topic, expression) for topic, expression in subscriptions)
    return Member(member_id, instance, mode, pairs, *rest)
