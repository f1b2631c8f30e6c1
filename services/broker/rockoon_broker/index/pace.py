"""Pace of indexing: the size of the next piece of the log, and the pause after it. Pure.

Indexing shares the CPU with appends. While CPU is scarce, its share grows with its lag:
a burst is indexed later, and the lag of a constantly busy broker settles where
the share suffices. If CPU is free, or a query waits, the index catches up at once.
"""

# Share of the time while CPU is scarce and no query waits: minimum,
BUSY_SHARE_MIN = 0.04
# maximum,
BUSY_SHARE_MAX = 0.8
# and in between the lag divided by this.
FAR_BEHIND_BYTES = 32 << 20
# Minimum share while CPU is not scarce.
IDLE_SHARE = 0.5
# CPU is scarce if the broker uses this much of a CPU for other work than indexing,
BUSY_RATIO = 0.5
# or if a piece needs this many times its CPU time, because other threads run.
SLOWDOWN_MAX = 1.5
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0
PIECE_BYTES_MIN = 512 << 10
PIECE_BYTES_MAX = 2 << 20
# A piece needs the interpreter lock, and delays the messages that arrive while it runs by some
# tenths of a millisecond, whatever its size. So a smaller lag waits this long for more. With ten
# pieces a second, one of a hundred messages of a slow producer would be late.
LITTLE_PAUSE_SECONDS = 0.5


def piece_bytes(behind_bytes: int) -> int:
    """Return the size of the next piece of the log to index.

    A small piece blocks the event loop for a shorter time. A large one costs less per
    message, and releases the interpreter lock less often, which is slow to regain while the
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
    """Return how long to pause before the next piece.

    Args:
        work_seconds: duration of the work on the last piece.
        processor_seconds: CPU time of the last piece.
        busy_ratio: CPU time that the broker used for other work since the piece before,
            in seconds per second.
        behind_bytes: lag of the index in the log.
        somebody_waits: True if a query waits for the index to reach the log's end.
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
