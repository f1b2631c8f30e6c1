"""How long to wait between two pieces of indexing work. A pure decision.

Indexing shares the processor with appends. While the broker is busy it gets a small share and may
fall behind; it catches up when there is less to do, or when somebody asks.
"""

# Of the time, while the broker is busy and nobody waits for the index.
BUSY_SHARE = 0.04
# The broker is busy when everything but indexing uses so much of one processor.
BUSY_RATIO = 0.5
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0


def pause_seconds(
    work_seconds: float, *, behind: bool, busy_ratio: float, somebody_waits: bool
) -> float:
    """How long to wait.

    Args:
        work_seconds: how long the last piece took.
        behind: the log has more to index.
        busy_ratio: processor time that the broker used for anything else since the piece before,
            in seconds per second.
        somebody_waits: a query wants the index to reach the log's end.
    """
    if not behind:
        return POLL_SECONDS
    if somebody_waits:
        return 0.0
    if busy_ratio > BUSY_RATIO:
        return min(work_seconds * (1 / BUSY_SHARE - 1), BUSY_PAUSE_SECONDS_MAX)
    return work_seconds
