"""`rockoon offsets why`: for each queue, where a group started, why, and its current offset.

orders@broker-a:0
  began   at 0 (NEW_QUEUE) on 2026-01-31 12:00:00
          the queue was created at revision 57, after the group subscribed at revision 41
  now     1234 committed by host@77@ab on 2026-01-31 12:05:00, epoch 3
  left    66 messages to read before the end, 1300; the oldest has waited 2.1 s

If clients acknowledge message by message:

  now     1234; client host@1@0@ab acknowledged last, on 2026-01-31 12:05:00, epoch 3
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from rockoon.cli.lag import queue_lag_json
from rockoon.cli.output import duration, local_time, print_wrapped

if TYPE_CHECKING:
    from rockoon.admin.descriptions import QueueStory
    from rockoon_proto.v1.offset_pb2 import Progress, QueueLag


def show_stories(group: str, stories: "Sequence[QueueStory]") -> None:
    if not stories:
        print(f"Group {group} reads no queues yet: it starts with its first consumer.")
    for number, story in enumerate(stories):
        if number:
            print()
        whose = f" for member {story.member}" if story.member else ""
        typer.secho(f"{story.queue}{whose}", bold=True)
        for heading, sentence in story_lines(story):
            print_wrapped(f"  {heading:<8}", sentence)


def story_lines(story: "QueueStory") -> Iterator[tuple[str, str]]:
    """Yield headings and sentences about one queue."""
    if story.progress is None:
        yield "began", "not yet: no member of the group has started on this queue"
    else:
        yield from progress_lines(story.progress)
    if story.lag is not None and story.lag.lost:
        yield "lost", lost_text(story.lag)
    if story.lag is None:
        yield "left", "unknown: the topic does not have this queue any more"
    else:
        yield "left", lag_text(story.lag)


def progress_lines(progress: "Progress") -> Iterator[tuple[str, str]]:
    when = local_time(progress.started_at_ms)
    began = f"at {progress.start_offset} ({reason_name(progress)})"
    yield "began", f"{began} on {when}" if when else began
    if progress.start_explanation:
        yield "", progress.start_explanation
    yield "now", f"{progress.offset}{moved_text(progress)}, epoch {progress.epoch}"
    if progress.owner and progress.owner != progress.committer:
        yield "", f"last owner: {progress.owner}"
    if progress.metadata:
        yield "", f"metadata: {progress.metadata}"
    if progress.gap_total:
        yield "lost", f"{progress.gap_total} messages were deleted before they could be read"


def moved_text(progress: "Progress") -> str:
    """Return which client moved the group to its offset, and when."""
    stored = local_time(progress.stored_at_ms)
    if progress.acknowledged_by:
        return f"; client {progress.acknowledged_by} acknowledged last, on {stored}"
    if progress.acknowledged_at_ms:
        return f"; receivers acknowledged, last on {stored}; the last client is not known"
    if progress.committer:
        return f" committed by {progress.committer} on {stored}"
    if progress.offset != progress.start_offset:
        # Acknowledged through a former version, or committed by a reader without a name.
        return f", stored on {stored}; the client is not known"
    return ", the start offset: nothing has been committed since"


def lost_text(lag: "QueueLag") -> str:
    """Return how many messages after the committed offset were deleted, and why."""
    from rockoon_core.start_position import deletion_text

    return (
        f"{lag.lost} messages from {lag.committed_offset} on {deletion_text(lag.lost_because)} "
        "before they were read"
    )


def lag_text(lag: "QueueLag") -> str:
    if not lag.known:
        return f"unknown: {lag.unknown_because}"
    if not lag.HasField("lag"):
        return f"the queue holds {lag.min_offset}..{lag.max_offset}"
    if lag.lag == 0:
        return f"nothing: it has read up to the end, {lag.max_offset}"
    noun = "message" if lag.lag == 1 else "messages"
    left = f"{lag.lag} {noun} to read before the end, {lag.max_offset}"
    if lag.HasField("lag_ms") and lag.lag_ms:
        left += f"; the oldest has waited {duration(lag.lag_ms)}"
    return left


def reason_name(progress: "Progress") -> str:
    from rockoon_proto.v1.offset_pb2 import StartReason

    return str(StartReason.Name(progress.start_reason))


def story_json(story: "QueueStory") -> dict[str, Any]:
    queue, progress = story.queue, story.progress
    fields: dict[str, Any] = {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.queue_id,
        "member": story.member or None,
        "progress": None,
        "lag": queue_lag_json(story.lag) if story.lag is not None else None,
    }
    if progress is not None:
        fields["progress"] = {
            "start_offset": progress.start_offset,
            "start_reason": reason_name(progress),
            "start_explanation": progress.start_explanation,
            "started_at_ms": progress.started_at_ms,
            "committed_offset": progress.offset,
            "committer": progress.committer,
            "committed_at_ms": progress.stored_at_ms,
            "acknowledged_by": progress.acknowledged_by or None,
            "acknowledged_at_ms": progress.acknowledged_at_ms or None,
            "owner": progress.owner,
            "epoch": progress.epoch,
            "incarnation": progress.incarnation,
            "metadata": progress.metadata,
            "gap_total": progress.gap_total,
        }
    return fields
