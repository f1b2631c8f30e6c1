"""Records of the journal, each one JSON array.

A record contains the result of a change, not its inputs. So a replay needs no rules, clock or
broker, and gives the same state. The first element is the kind. Kinds and the order of their fields
never change; new fields are added at the end, with a default.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from rockoon_core.message_queue import MessageQueue
from rockoon_core.protocol import LEVEL
from rockoon_core.start_position import StartReason


class Progress(NamedTuple):
    """Progress of a reader on a queue: its committed offset, with epoch, owner and incarnations."""

    # Name of the reader (see `readers`), here and in the records below: a group, or `group@member`
    # for a member with its own progress.
    group: str
    queue: MessageQueue
    # Next offset to consume.
    offset: int
    # A commit must have this number. One counter gives the epochs of all queues.
    epoch: int
    # Create revision of the queue that the offset belongs to.
    incarnation: int
    # Create revision of the group that the progress belongs to.
    group_incarnation: int
    # Member that resolved the queue last and has the epoch; empty after a release, and for a reader
    # without membership.
    owner: str
    # Member that committed last.
    committer: str
    stored_at_ms: int
    metadata: str
    # Last decision with another reason than COMMITTED.
    start_offset: int
    start_reason: StartReason
    start_explanation: str
    started_at_ms: int
    # Messages that were deleted before the reader reached them, summed over all decisions.
    gap_total: int
    # Receiver of the last acknowledgement; empty: unknown, or a commit or a decision was later.
    acknowledged_by: str = ""
    # Time of the last acknowledgement, epoch milliseconds; 0: none since the last commit or
    # decision.
    acknowledged_at_ms: int = 0


class ProgressPut(NamedTuple):
    """Record that sets progress of a reader."""

    progress: Progress


class OffsetCommitted(NamedTuple):
    """Record that moves a reader's offset by a commit."""

    group: str
    queue: MessageQueue
    offset: int
    committer: str
    stored_at_ms: int
    metadata: str


class Removed(NamedTuple):
    """Record that removes progress; the next reader of the queue starts as a new reader."""

    group: str
    queue: MessageQueue


class Reverted(NamedTuple):
    """Removal of progress but not of the owner; the queue's next reader starts as a new one."""

    # The removed progress, with its last epoch.
    progress: Progress


class QueueDeleted(NamedTuple):
    """Record that removes progress on a deleted queue, and keeps the queue's incarnation."""

    group: str
    queue: MessageQueue
    incarnation: int


class KnownMember(NamedTuple):
    """Record that sets the entry of a member with its own progress."""

    group: str
    member: str
    # Create revision of the group.
    group_incarnation: int
    # (topic, revision), sorted. Revision: highest create revision of the queues in the member's
    # first Resolve for the topic.
    since: tuple[tuple[str, int], ...]
    # When the member was last alive, epoch milliseconds; rarely updated while it is alive.
    seen_at_ms: int


class MemberForgotten(NamedTuple):
    """Record that removes a member's entry and its own progress."""

    group: str
    member: str


class GroupDeleted(NamedTuple):
    """Record that removes a group with its progress, members and resets."""

    group: str


class ResetStep(NamedTuple):
    """Change of one queue's progress in a reset."""

    queue: MessageQueue
    # None: there was no progress.
    from_offset: int | None
    to_offset: int
    min_offset: int
    max_offset: int
    clamped: bool
    # Incarnation of the queue at the time of the plan.
    incarnation: int
    # Epoch at the time of the plan; 0: none.
    epoch: int
    # Member whose own progress is reset; empty: the group's progress.
    member: str = ""


class ResetApplied(NamedTuple):
    """A reset that can be undone by this record; ProgressPut records have the new progress."""

    reset_id: str
    group: str
    topic: str
    operator: str
    applied_at_ms: int
    steps: tuple[ResetStep, ...]
    undone: bool


class GroupMember(NamedTuple):
    """A member of a group, with the fields that must survive a restart of the service."""

    member_id: str
    instance: str
    mode: int
    # (topic, expression), sorted by topic.
    subscriptions: tuple[tuple[str, str], ...]
    peer: str
    joined_at_ms: int
    # Name of its allocation strategy; only for display.
    allocation: str = ""
    # Incarnation of the group that it joined; 0: unknown.
    group_incarnation: int = 0


class MembersChanged(NamedTuple):
    """Record that sets the members of a group."""

    group: str
    members: tuple[GroupMember, ...]


class MemberJoined(NamedTuple):
    """Record that adds a member to a group, or replaces the member with the same id."""

    group: str
    member: GroupMember


class Acquired(NamedTuple):
    """Record that moves messages of one queue to a new acquisition; see `in_flight.window`."""

    group: str
    queue: MessageQueue
    number: int
    # Acquisition that had the messages before; 0: none.
    former: int
    # Queue offset of bit 0 of `messages`, a set of offsets.
    first: int
    messages: int
    attempt: int
    visible_at_ms: int
    # Attempt id of the call, in a FIFO group.
    attempt_id: str = ""
    # Last reason that a receiver gave for a failed delivery; empty: none.
    reason: str = ""
    # The receiver, and its access key.
    holder: str = ""
    holder_key: str = ""
    # Reports of the holder extend the messages until then, epoch milliseconds; 0: they do not.
    held_until_ms: int = 0
    # Id of the acquiring call. Its caller may report it as lost.
    call_id: str = ""


class Settled(NamedTuple):
    """Record that settles messages of an acquisition."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    messages: int
    stored_at_ms: int
    # Receiver that acknowledged the messages; empty: the holder.
    receiver: str = ""


class Extended(NamedTuple):
    """Record that changes the visibility time of messages of an acquisition."""

    group: str
    queue: MessageQueue
    number: int
    first: int
    messages: int
    visible_at_ms: int


class WindowPut(NamedTuple):
    """Record that sets the window of a queue without its acquisitions, whose records follow."""

    group: str
    queue: MessageQueue
    acquired_to: int
    since: int
    # Sets of offsets; bit 0 is the committed offset.
    settled: int
    skipped: int


class Counters(NamedTuple):
    """Record of counters of the store: epochs, starts of the service, etcd revisions."""

    # Last used epoch.
    epoch: int
    # Number of starts of the service on this store.
    starts: int
    # Latest etcd revision that progress was compared with.
    route_revision: int
    # Cluster id of the etcd that gives revisions and incarnations; 0: unknown.
    etcd_cluster_id: int = 0
    # Last used number of an acquisition.
    acquisition: int = 0


Record = (
    ProgressPut
    | OffsetCommitted
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

# Defaults of the last fields, the last field first. Fields with defaults are not written, so former
# versions of the service can read the record. All of them belong to feature level 1.
_ACQUIRED_DEFAULTS = ("", 0, "", "", "")
_PROGRESS_DEFAULTS = (0, "")
_SETTLED_DEFAULTS = ("",)

Fields = TypeVar("Fields", bound=tuple[Any, ...])

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def level_of(record: Record) -> int:
    """Return the feature level of the services that can read the journal form of a record."""
    return int(record != _of_level_0(record))


def _of_level_0(record: Record) -> Record:
    """Return a record without the fields that services of feature level 0 cannot read."""
    match record:
        case ProgressPut(progress) | Reverted(progress):
            return type(record)(_with_defaults(progress, _PROGRESS_DEFAULTS))
        case Acquired():
            return _with_defaults(record, _ACQUIRED_DEFAULTS)
        case Settled():
            return _with_defaults(record, _SETTLED_DEFAULTS)
    return record


def _with_defaults(record: Fields, defaults: Sequence[Any]) -> Fields:
    first = len(record) - len(defaults)
    if record[first:] == tuple(reversed(defaults)):
        return record
    return type(record)(*record[:first])


def encode(record: Record, level: int = LEVEL) -> bytes:
    """Return the journal form of a record.

    Args:
        level: feature level of the services that must be able to read it.
    """
    if not level:
        record = _of_level_0(record)
    match record:
        case OffsetCommitted():
            fields: list[Any] = ["commit", record.group, *record.queue, *record[2:]]
        case ProgressPut(progress):
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
        # Sets have thousands of bits and JSON readers limit numbers, so sets are hexadecimal text.
        case Acquired():
            set_of = f"{record.messages:x}"
            fields = ["acquired", record.group, *record.queue, *record[2:5], set_of, *record[6:]]
            _remove_defaults(fields, _ACQUIRED_DEFAULTS)
        case Settled() | Extended():
            kind = "settled" if isinstance(record, Settled) else "extended"
            set_of = f"{record.messages:x}"
            fields = [kind, record.group, *record.queue, record.number, record.first, set_of]
            fields += record[5:]
            if isinstance(record, Settled):
                _remove_defaults(fields, _SETTLED_DEFAULTS)
        case WindowPut(group, queue, acquired_to, since, settled, skipped):
            sets = f"{settled:x}", f"{skipped:x}"
            fields = ["window", group, *queue, acquired_to, since, *sets]
        case Counters():
            fields = ["counters", *record]
    return _to_json(fields).encode()


def _remove_defaults(fields: list[Any], defaults: Iterable[Any]) -> None:
    """Remove the last fields of a record that have their defaults."""
    for default in defaults:
        if fields[-1] != default:
            return
        fields.pop()


def decode(data: bytes) -> Record:
    """Decode a record. Raises ValueError for a kind or fields of a later version."""
    kind, *rest = json.loads(data)
    try:
        return _decode(kind, rest)
    except TypeError as failure:
        raise ValueError(
            f"a newer version of the offset service wrote this record of kind {kind!r}: start that "
            f"version, or go back as docs/operate/upgrade.md describes ({failure})"
        ) from failure


def _decode(kind: object, rest: Sequence[Any]) -> Record:
    match kind:
        case "commit":
            group, topic, broker, queue_id, *fields = rest
            return OffsetCommitted(group, MessageQueue(topic, broker, queue_id), *fields)
        case "put":
            return ProgressPut(progress_of(*rest))
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
    raise TypeError("its kind is unknown")


def progress_of(group: str, topic: str, broker: str, queue_id: int, *rest: Any) -> Progress:
    progress = Progress(group, MessageQueue(topic, broker, queue_id), *rest)
    return progress._replace(start_reason=StartReason(progress.start_reason))


def reset_applied(*fields: Any) -> ResetApplied:
    reset = ResetApplied(*fields)
    steps: list[list[Any]] = list(fields[ResetApplied._fields.index("steps")])
    return reset._replace(
        steps=tuple(ResetStep(MessageQueue(*queue), *rest) for queue, *rest in steps)
    )


def member_of(
    member_id: str, instance: str, mode: int, subscriptions: Any, *rest: Any
) -> GroupMember:
    pairs = tuple((topic, expression) for topic, expression in subscriptions)
    return GroupMember(member_id, instance, mode, pairs, *rest)
