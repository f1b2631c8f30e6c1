"""How long to wait between two pieces of indexing work. A pure decision.

Indexing shares the processor with appends. While that is scarce it gets a small share and may fall
behind; it catches up when there is less to do, or when somebody asks.
"""

# Of the time, while the processor is scarce and nobody waits for the index.
BUSY_SHARE = 0.04
# It is scarce when the broker uses so much of one for anything but indexing,
BUSY_RATIO = 0.5
# or when a piece takes so many times the processor time that it needs: others are being served.
SLOWDOWN_MAX = 1.5
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0


def pause_seconds(
    work_seconds: float,
    *,
    processor_seconds: float,
    busy_ratio: float,
    behind: bool,
    somebody_waits: bool,
) -> float:
    """How long to wait.

    Args:
        work_seconds: how long the last piece took.
        processor_seconds: what of that was work.
        busy_ratio: processor time that the broker used for anything else since the piece before,
            in seconds per second.
        behind: the log has more to index.
        somebody_waits: a query wants the index to reach the log's end.
    """
    if not behind:
        return POLL_SECONDS
    if somebody_waits:
        return 0.0
    if busy_ratio > BUSY_RATIO or work_seconds > SLOWDOWN_MAX * processor_seconds:
        return min(work_seconds * (1 / BUSY_SHARE - 1), BUSY_PAUSE_SECONDS_MAX)
    return work_seconds
