"""Ended half messages that RocketMQ's readers are still to be told of, many in one op record.

Nothing here depends on it: a commit is a fact once the committed record is in the log. A crash
leaves at most what is noted here untold, and a RocketMQ broker that takes over such a store asks
about those half messages once more.
Source: TransactionalMessageServiceImpl.TransactionalOpBatchService.
"""

from rockoon_broker.transactions.half_messages import OP_BODY_BYTES_MAX, OP_SEPARATOR

WAIT_SECONDS_MAX = 3.0


class OpBook:
    """Queue offsets of half messages, until they fill an op record or have waited long enough.

    Pure; holds some 4096 bytes of text per record, and the owner takes one whenever there is one.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def due_at(self) -> float | None:
        """When a record is due that does not fill up before; None when nothing is noted."""
        return self._since + WAIT_SECONDS_MAX if self._offsets else None

    def note(self, half_offset: int, now: float) -> None:
        """A half message has ended; `now` is monotonic seconds."""
        if not self._offsets:
            self._since = now
        self._offsets.append(half_offset)

    def due(self, now: float, *, closing: bool = False) -> list[int]:
        """The offsets of one op record that should be written now; none when none should.

        They stay until `written` says so.
        """
        body_bytes = 0
        for count, offset in enumerate(self._offsets):
            body_bytes += len(str(offset)) + len(OP_SEPARATOR)
            if body_bytes > OP_BODY_BYTES_MAX:
                return self._offsets[:count]
        waited = self._offsets and now - self._since >= WAIT_SECONDS_MAX
        return list(self._offsets) if waited or closing else []

    def written(self, count: int, now: float) -> None:
        """The first so many are told."""
        del self._offsets[:count]
        self._since = now
