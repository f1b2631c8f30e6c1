"""Steps of a reset, one for each queue. Pure."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from rockoon_core.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_offset.progress.records import Progress, ResetStep


class TargetKind(enum.Enum):
    """Kinds of targets of a reset: names of the fields of ResetTarget on the wire."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp_ms"
    SHIFT = "shift"
    DURATION = "duration_ms"
    OFFSETS = "offsets"
    GROUP = "group"


class Target(NamedTuple):
    """Target of a reset; `value` is an offset, a time, a duration or a shift, by its kind."""

    kind: TargetKind
    value: int = 0
    offsets: Mapping[MessageQueue, int] = {}
    # The group whose progress is cloned, for GROUP.
    group: str = ""


def search_timestamp_ms(target: Target, as_of_ms: int) -> int | None:
    """Return the store time whose offset the brokers must look up for a reset; None: no lookup is
    needed. A duration counts back from `as_of_ms`.
    """
    if target.kind is TargetKind.TIMESTAMP:
        return target.value
    if target.kind is TargetKind.DURATION:
        return max(0, as_of_ms - target.value)
    return None


def check(target: Target, group: str) -> None:
    """Raise InvalidArgument if the target of a reset of a group is invalid."""
    negative = target.value < 0 and target.kind is not TargetKind.SHIFT
    if negative or any(offset < 0 for offset in target.offsets.values()):
        raise InvalidArgument(reason="a reset's target must not be negative")
    if target.kind is TargetKind.OFFSETS and not target.offsets:
        raise InvalidArgument(reason="a reset to given offsets names no queue")
    if target.kind is TargetKind.GROUP and target.group == group:
        raise InvalidArgument(reason=f"group {group!r} cannot be cloned to itself")


def step(
    queue: MessageQueue,
    target: Target,
    stored: Progress | None,
    incarnation: int,
    state: QueueState,
    offset_at_time: int | None,
    source: Progress | None = None,
) -> ResetStep | None:
    """Return the step of a reset for one queue; None if the target does not apply to the queue.

    Args:
        target: the new position.
        stored: current progress.
        incarnation: current create revision of the queue.
        state: ends of the queue.
        offset_at_time: first offset at or after `search_timestamp_ms`, if that is not None.
        source: current progress of the group that is cloned.
    """
    here = stored is not None and stored.incarnation == incarnation
    match target.kind:
        case TargetKind.EARLIEST:
            wanted = state.min_offset
        case TargetKind.LATEST:
            wanted = state.max_offset
        case TargetKind.OFFSET:
            wanted = target.value
        case TargetKind.SHIFT:
            if stored is None or not here:
                return None
            wanted = stored.offset + target.value
        case TargetKind.OFFSETS:
            if queue not in target.offsets:
                return None
            wanted = target.offsets[queue]
        case TargetKind.GROUP:
            if source is None or source.incarnation != incarnation:
                return None
            wanted = source.offset
        case TargetKind.TIMESTAMP | TargetKind.DURATION:
            assert offset_at_time is not None, "the caller searches first"
            wanted = offset_at_time
    clamped = min(max(wanted, state.min_offset), state.max_offset)
    return ResetStep(
        queue=queue,
        from_offset=None if stored is None else stored.offset,
        to_offset=clamped,
        min_offset=state.min_offset,
        max_offset=state.max_offset,
        clamped=clamped != wanted,
        incarnation=incarnation,
        epoch=0 if stored is None else stored.epoch,
    )


def origin(target: Target, step: ResetStep, source: Progress | None) -> str:
    """Return why a step of a clone has its offset, for `offsets why`; empty for other resets."""
    if target.kind is not TargetKind.GROUP or source is None:
        return ""
    text = f"cloned from group {target.group}, which had committed {source.offset}"
    return f"{text}; the queue holds {step.min_offset}..{step.max_offset}" if step.clamped else text
