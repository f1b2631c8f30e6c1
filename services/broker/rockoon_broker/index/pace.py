"""How long to wait between two pieces of indexing work. A pure decision.

Indexing shares the processor with appends. While the log grows it gets a small share and may fall
behind; it catches up when nobody writes, or when somebody asks.
"""

# Of the time, while the log grows and nobody waits for the index.
BUSY_SHARE = 0.04
POLL_SECONDS = 0.2
BUSY_PAUSE_SECONDS_MAX = 1.0


def pause_seconds(
    work_seconds: float, *, behind: bool, log_grew: bool, somebody_waits: bool
) -> float:
    """How long to wait.

    Args:
        work_seconds: how long the last piece took.
        behind: the log has more to index.
        log_grew: it has grown since the piece before.
        somebody_waits: a query wants the index to reach the log's end.
    """
    if not behind:
        return POLL_SECONDS
    if somebody_waits:
        return 0.0
    if log_grew:
        return min(work_seconds * (1 / BUSY_SHARE - 1), BUSY_PAUSE_SECONDS_MAX)
    return work_seconds
