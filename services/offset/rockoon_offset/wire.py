"""Conversion between wire messages and the types of this package."""

import json
from collections.abc import Iterable
from typing import Any

from rockoon_core.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue, queue_from_wire, queue_to_wire
from rockoon_offset.in_flight.filters import ReceiverFilter
from rockoon_offset.members.membership import NO_SDK, Lock, MemberLease, PulledPosition
from rockoon_offset.progress.lag_rows import QueueLag
from rockoon_offset.progress.readers import group_of, member_of
from rockoon_offset.progress.records import GroupMember, Progress, ResetStep
from rockoon_offset.progress.resets import Target, TargetKind
from rockoon_offset.progress.unread import UnreadQueue
from rockoon_proto.v1 import offset_pb2 as pb


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Return the fields of the wire's Progress, except those of its queue."""
    return {
        "group": group_of(progress.group),
        "member": member_of(progress.group),
        "offset": progress.offset,
        "epoch": progress.epoch,
        "incarnation": progress.incarnation,
        "committer": progress.committer,
        "owner": progress.owner,
        "stored_at_ms": progress.stored_at_ms,
        "metadata": progress.metadata,
        "start_offset": progress.start_offset,
        "start_reason": progress.start_reason.value,
        "start_explanation": progress.start_explanation,
        "started_at_ms": progress.started_at_ms,
        "gap_total": progress.gap_total,
        "acknowledged_by": progress.acknowledged_by,
        "acknowledged_at_ms": progress.acknowledged_at_ms,
    }


def progress_to_wire(progress: Progress) -> pb.Progress:
    return pb.Progress(queue=queue_to_wire(progress.queue), **progress_fields(progress))


def progress_to_json(progress: Progress) -> bytes:
    """Convert progress to a line of a JSON Lines export, with the wire's field names."""
    fields = progress_fields(progress) | progress.queue._asdict()
    fields["start_reason"] = progress.start_reason.name
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def member_from_wire(request: pb.HeartbeatRequest, peer: str) -> GroupMember:
    subscriptions = sorted((entry.topic, entry.expression) for entry in request.subscriptions)
    return GroupMember(
        member_id=request.member_id,
        instance=request.instance,
        mode=int(request.mode),
        subscriptions=tuple(subscriptions),
        peer=peer,
        joined_at_ms=0,
        allocation=request.allocation,
        group_incarnation=request.group_incarnation,
    )


def positions_from_wire(
    positions: Iterable[pb.PulledPosition],
) -> dict[MessageQueue, PulledPosition]:
    return {
        queue_from_wire(each.queue): PulledPosition(
            each.next_offset,
            each.epoch,
            max(0, each.unfinished) if each.HasField("unfinished") else None,
        )
        for each in positions
    }


def lag_to_wire(lag: QueueLag) -> pb.QueueLag:
    """Convert the lag of a queue to the wire. Fields that are None stay absent."""
    return pb.QueueLag(
        queue=queue_to_wire(lag.queue),
        known=not lag.unknown_because,
        unknown_because=lag.unknown_because,
        min_offset=lag.min_offset,
        max_offset=lag.max_offset,
        committed_offset=lag.committed,
        lag=lag.lag,
        lag_ms=lag.lag_ms,
        owner=lag.owner,
        in_flight=lag.in_flight,
        ready=lag.ready,
        in_flight_as_of_ms=lag.in_flight_as_of_ms,
        lost=lag.lost,
        loss_ms=lag.loss_ms,
        loss_cause=lag.loss_cause,  # type: ignore[arg-type]
        filter=lag.filter,
        filters_differ=lag.filters_differ,
        as_of_ms=lag.as_of_ms,
        member=lag.member,
        absent=lag.absent,
        settled_above=lag.settled_above,
        lost_because=lag.lost_because,  # type: ignore[arg-type]
    )


def member_to_wire(lease: MemberLease, *, with_sdk: bool) -> pb.Member:
    """Convert a member to the wire; only replies for people have its SDK."""
    member, sdk = lease.member, lease.sdk if with_sdk else NO_SDK
    return pb.Member(
        member_id=member.member_id,
        subscriptions=[
            pb.TopicSubscription(topic=topic, expression=expression)
            for topic, expression in member.subscriptions
        ],
        mode=member.mode,  # type: ignore[arg-type]
        peer=member.peer,
        joined_at_ms=member.joined_at_ms,
        heard_at_ms=lease.heard_at_ms,
        allocation=member.allocation,
        language=sdk.language,
        version=sdk.version,
    )


def receiver_to_wire(of: ReceiverFilter) -> pb.ReceiverFilter:
    return pb.ReceiverFilter(
        receiver=of.receiver,
        filter=pb.TopicSubscription(topic=of.filter.topic, expression=of.filter.expression),
        heard_at_ms=of.heard_at_ms,
        address=of.program.address,
        language=of.program.sdk.language,
        version=of.program.sdk.version,
    )


def lock_to_wire(lock: Lock) -> pb.QueueLock:
    return pb.QueueLock(
        queue=queue_to_wire(lock.queue),
        owner=lock.owner,
        epoch=lock.epoch,
        since_ms=lock.since_ms,
        lease_left_ms=lock.lease_left_ms,
        waiting=lock.waiting,
    )


def owner_to_wire(queue: MessageQueue, owner: str) -> pb.QueueOwner:
    return pb.QueueOwner(queue=queue_to_wire(queue), member_id=owner)


def target_from_wire(target: pb.ResetTarget) -> Target:
    """Convert the target of a reset from the wire. Raises InvalidArgument if it is missing."""
    name = target.WhichOneof("to")
    if name is None or (name in ("earliest", "latest") and not getattr(target, name)):
        raise InvalidArgument(reason="a reset needs a target")
    kind = TargetKind(name)
    if kind is TargetKind.OFFSETS:
        offsets = {queue_from_wire(entry.queue): entry.offset for entry in target.offsets.offsets}
        return Target(kind, 0, offsets)
    if kind is TargetKind.GROUP:
        return Target(kind, group=target.group)
    return Target(kind, int(getattr(target, name)))


def step_to_wire(step: ResetStep, *, creates_queue: bool = False) -> pb.ResetStep:
    return pb.ResetStep(
        queue=queue_to_wire(step.queue),
        from_offset=step.from_offset,
        to_offset=step.to_offset,
        min_offset=step.min_offset,
        max_offset=step.max_offset,
        member=step.member,
        messages=0 if step.from_offset is None else step.to_offset - step.from_offset,
        clamped=step.clamped,
        creates_queue=creates_queue,
    )


def unread_to_wire(unread: UnreadQueue) -> pb.UnreadMessages:
    return pb.UnreadMessages(
        group=group_of(unread.reader),
        member=member_of(unread.reader),
        topic=unread.queue.topic,
        queue_id=unread.queue.queue_id,
        messages=unread.messages,
    )
