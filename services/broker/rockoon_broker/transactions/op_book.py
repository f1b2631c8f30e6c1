"""Queue of ended half messages to report to RocketMQ, many in one op record.

Rockoon does not need op records: a commit is final once the committed record is in the log. A crash
may lose entries of this queue. A RocketMQ broker that uses the store next then checks those half
messages once more.
Source: TransactionalMessageServiceImpl.TransactionalOpBatchService.
"""

from rockoon_broker.transactions.half_messages import OP_BODY_BYTES_MAX, OP_SEPARATOR

WAIT_SECONDS_MAX = 3.0


class OpBook:
    """Collects queue offsets of ended half messages until they fill an op record, or have waited
    long enough.

    Pure; contains at most about one record of 4096 bytes, since the owner writes each full one.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def due_at(self) -> float | None:
        """Time at which an op record is due even if it is not full; None without entries."""
        return self._since + WAIT_SECONDS_MAX if self._offsets else None

    def add(self, half_offset: int, now: float) -> None:
        """Add an ended half message; `now` is monotonic seconds."""
        if not self._offsets:
            self._since = now
        self._offsets.append(half_offset)

    def due(self, now: float, *, closing: bool = False) -> list[int]:
        """Return the queue offsets for one op record that is due; empty if none is due.

        They stay until `written` is called.
        """
        body_bytes = 0
        for count, offset in enumerate(self._offsets):
            body_bytes += len(str(offset)) + len(OP_SEPARATOR)
            if body_bytes > OP_BODY_BYTES_MAX:
                return self._offsets[:count]
        waited = self._offsets and now - self._since >= WAIT_SECONDS_MAX
        return list(self._offsets) if waited or closing else []

    def written(self, count: int, now: float) -> None:
        """Remove the first `count` queue offsets, because their op record was written."""
        del self._offsets[:count]
        self._since = now
