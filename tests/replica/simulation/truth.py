"""Truth: what was committed, acknowledged and read in a run, and may never be otherwise."""

from rockoon_core.replication_rules import consistent_point
from support.byte_log import VALUE, ByteLog


class Violation(AssertionError):
    """A promise was broken."""


class Stuck(AssertionError):
    """Nothing is lost, and it does not work again."""


class Truth:
    """What holds, as far as anybody was told."""

    def __init__(self) -> None:
        self._committed = bytearray()
        # Where each epoch's commits end.
        self._by_epoch: list[tuple[int, int]] = []
        self._leaders: dict[int, str] = {}
        self.acked: dict[int, tuple[int, int]] = {}
        self.acked_end = 0

    @property
    def end(self) -> int:
        return len(self._committed)

    def leads(self, replica: str, epoch: int, log: ByteLog) -> None:
        """A replica leads: nobody else did in this epoch, and it has what others committed."""
        if self._leaders.setdefault(epoch, replica) != replica:
            raise Violation(f"{replica} and {self._leaders[epoch]} lead epoch {epoch}")
        ends = [end for end, committed_in in self._by_epoch if committed_in < epoch]
        self.has(replica, log, max(ends, default=0), f"leads epoch {epoch}")

    def has(self, replica: str, log: ByteLog, end: int, what: str) -> None:
        """A log has all that was committed up to a position."""
        first = min(log.min_offset, end)
        if log.end < end or log.bytes_between(first, end) != self._committed[first:end]:
            raise Violation(f"{replica} {what}, and has not all committed up to {end}")

    def committed(self, replica: str, epoch: int, log: ByteLog, end: int) -> None:
        """A replica shows readers what is below a position.

        Args:
            epoch: that it leads; 0 for a follower, which knows nothing that no leader knew.
        """
        known = min(end, self.end)
        self.has(replica, log, known, "commits something else")
        if end > known:
            if self._leaders.get(epoch) != replica:
                raise Violation(f"{replica} commits up to {end} and leads nothing")
            self._committed += log.bytes_between(known, end)
            self._by_epoch.append((end, epoch))

    def acknowledged(self, value: int, first: int, end: int) -> None:
        """A sender is told that a message is stored."""
        if self.acked.setdefault(value, (first, end)) != (first, end):
            raise Violation(f"{value} was acknowledged at {self.acked[value]} and at {first}")
        if end > self.end or b"%d" % value not in self._committed[first:end]:
            raise Violation(f"{value} was acknowledged at {first} and is not committed there")
        self.acked_end = max(self.acked_end, end)

    def read(self, least: int, committed: int) -> None:
        """A question that decides was answered by what is below `committed`."""
        if committed < least:
            raise Violation(f"a read up to {committed}, and {least} was acknowledged before")

    def check(self, logs: dict[str, ByteLog]) -> None:
        """Compare logs with what is committed, and with each other."""
        for replica, log in logs.items():
            self.has(replica, log, min(log.committed_end, self.end), "has something else")
            if log.committed_end > self.end:
                raise Violation(f"{replica} knows more committed than anybody")

    def check_values(self, logs: dict[str, ByteLog]) -> None:
        """No message is twice in a log."""
        for replica, log in logs.items():
            values = [record.body for record in log.records() if record.kind == VALUE]
            if len(values) != len(set(values)):
                raise Violation(f"{replica} has a message twice")

    def check_pairs(self, logs: dict[str, ByteLog]) -> None:
        """Two logs with an epoch in common are the same up to it."""
        names = sorted(logs)
        for at, one in enumerate(names):
            for other in names[at + 1 :]:
                mine, theirs = logs[one], logs[other]
                point = consistent_point(mine.boundaries(), theirs.boundaries())
                first = max(mine.min_offset, theirs.min_offset)
                if point is not None and point > first:
                    same = mine.bytes_between(first, point) == theirs.bytes_between(first, point)
                    if not same:
                        raise Violation(f"{one} and {other} differ below {point}")
