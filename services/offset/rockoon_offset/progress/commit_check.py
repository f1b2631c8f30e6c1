"""Commit rules: decides whether a commit is accepted. Pure."""

from typing import NamedTuple

from rockoon_core.errors import (
    CommitBehind,
    Fenced,
    InvalidArgument,
    InvalidOffset,
    OffsetBeyondEnd,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_offset.progress.records import Progress

OFFSET_MAX = 1 << 62
METADATA_BYTES_MAX = 4096


class OffsetCommit(NamedTuple):
    """A reader's request to move its offset."""

    group: str
    queue: MessageQueue
    offset: int
    epoch: int
    member_id: str
    metadata: str
    force: bool


def check_commit(
    commit: OffsetCommit, progress: Progress | None, incarnation: int | None, end: int | None
) -> None:
    """Raise an error if a commit must be refused.

    Args:
        commit: the commit.
        progress: the stored progress.
        incarnation: create revision of the queue in the current routes; None: unknown.
        end: a recent end of the queue; None: unknown.

    Raises:
        InvalidOffset, InvalidArgument, Fenced, CommitBehind, OffsetBeyondEnd.
    """
    queue = str(commit.queue)
    if not 0 <= commit.offset <= OFFSET_MAX:
        raise InvalidOffset(offset=commit.offset)
    if len(commit.metadata.encode()) > METADATA_BYTES_MAX:
        raise InvalidArgument(reason=f"metadata is larger than {METADATA_BYTES_MAX} bytes")
    if progress is None:
        raise Fenced(
            f"group {commit.group!r} has no progress on queue {queue}: resolve it first",
            epoch=commit.epoch,
            current=0,
            queue=queue,
        )
    if commit.epoch != progress.epoch:
        raise Fenced(epoch=commit.epoch, current=progress.epoch, queue=queue)
    if incarnation is not None and incarnation != progress.incarnation:
        raise Fenced(
            f"queue {queue} was deleted and created again since epoch {commit.epoch} began: "
            "resolve it again",
            epoch=commit.epoch,
            current=progress.epoch,
            queue=queue,
        )
    if commit.offset < progress.offset and not commit.force:
        raise CommitBehind(offset=commit.offset, stored=progress.offset, queue=queue)
    if end is not None and commit.offset > max(end, progress.offset):
        raise OffsetBeyondEnd(offset=commit.offset, end=end, queue=queue)
