"""Pace of indexing: the size of a piece of work, and the pause before the next. Pure.

Indexing shares the processor with appends. While that is scarce its share is what it is behind by:
a burst is indexed afterwards, and a broker that stays busy keeps its index at a distance at which
the share suffices. With more to spare, or somebody who asks, it catches up at once.
"""

# Of the time, while the processor is scarce and nobody waits for the index: at least,
BUSY_SHARE_MIN = 0.04
# at most,
BUSY_SHARE_MAX = 0.8
# and in between, what it is behind by in this unit.
FAR_BEHIND_BYTES = 32 << 20
# While it is not scarce, at least.
IDLE_SHARE = 0.5
# It is scarce when the broker uses so much of one for anything but indexing,
BUSY_RATIO = 0.5
# or when a piece takes so many times the processor time that it needs: others are being served.
SLOWDOWN_MAX = 1.5
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0
PIECE_BYTES_MIN = 512 << 10
PIECE_BYTES_MAX = 2 << 20
# A piece costs a thread's turn, however small it is: what is less than one waits so long for more.
LITTLE_PAUSE_SECONDS = 0.1


def piece_bytes(behind_bytes: int) -> int:
    """How much of the log to index at once.

    A small piece keeps the event loop from others for a shorter time; a large one costs less per
    message, and gives the interpreter's lock away less often, which is slow to come back while the
    loop is busy.
    """
    share = behind_bytes / FAR_BEHIND_BYTES
    return min(max(int(share * PIECE_BYTES_MAX), PIECE_BYTES_MIN), PIECE_BYTES_MAX)


def pause_seconds(
    work_seconds: float,
    *,
    processor_seconds: float,
    busy_ratio: float,
    behind_bytes: int,
    somebody_waits: bool,
) -> float:
    """How long to wait.

    Args:
        work_seconds: how long the last piece took.
        processor_seconds: what of that was work.
        busy_ratio: processor time that the broker used for anything else since the piece before,
            in seconds per second.
        behind_bytes: how much the log has that is not in the index.
        somebody_waits: a query wants the index to reach the log's end.
    """
    if behind_bytes <= 0:
        return POLL_SECONDS
    if somebody_waits:
        return 0.0
    if behind_bytes < PIECE_BYTES_MIN:
        return LITTLE_PAUSE_SECONDS
    is_scarce = busy_ratio > BUSY_RATIO or work_seconds > SLOWDOWN_MAX * processor_seconds
    share_min = BUSY_SHARE_MIN if is_scarce else IDLE_SHARE
    share = min(max(behind_bytes / FAR_BEHIND_BYTES, share_min), BUSY_SHARE_MAX)
    return min(work_seconds * (1 / share - 1), BUSY_PAUSE_SECONDS_MAX)
