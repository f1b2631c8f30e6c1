"""Truth: committed, acknowledged and read values of a run, which must never change."""

from rockoon_core.replication_rules import consistent_point
from support.byte_log import VALUE, ByteLog


class Violation(AssertionError):
    """A promise was broken."""


class Stuck(AssertionError):
    """No value is lost, but the log does not work again."""


class Truth:
    """Valid facts, as far as any client or replica has learnt them."""

    def __init__(self) -> None:
        self._committed = bytearray()
        # End of the commits of each epoch.
        self._by_epoch: list[tuple[int, int]] = []
        self._leaders: dict[int, str] = {}
        self.acked: dict[int, tuple[int, int]] = {}
        self.acked_end = 0

    @property
    def end(self) -> int:
        return len(self._committed)

    def leads(self, replica: str, epoch: int, log: ByteLog) -> None:
        """Record a leader: no other replica led this epoch, and it has all committed records."""
        if self._leaders.setdefault(epoch, replica) != replica:
            raise Violation(f"{replica} and {self._leaders[epoch]} lead epoch {epoch}")
        ends = [end for end, committed_in in self._by_epoch if committed_in < epoch]
        self.has(replica, log, max(ends, default=0), f"leads epoch {epoch}")

    def has(self, replica: str, log: ByteLog, end: int, what: str) -> None:
        """Check that a log has all committed records up to a position."""
        first = min(log.min_offset, end)
        if log.end < end or log.bytes_between(first, end) != self._committed[first:end]:
            raise Violation(f"{replica} {what}, and has not all committed up to {end}")

    def committed(self, replica: str, epoch: int, log: ByteLog, end: int) -> None:
        """Record that a replica shows readers the records before a position.

        Args:
            epoch: epoch that it leads; 0: a follower, which knows no more than leaders.
        """
        known = min(end, self.end)
        self.has(replica, log, known, "commits something else")
        if end > known:
            if self._leaders.get(epoch) != replica:
                raise Violation(f"{replica} commits up to {end} and leads nothing")
            self._committed += log.bytes_between(known, end)
            self._by_epoch.append((end, epoch))

    def acknowledged(self, value: int, first: int, end: int) -> None:
        """Record that a sender got the acknowledgement of a message."""
        if self.acked.setdefault(value, (first, end)) != (first, end):
            raise Violation(f"{value} was acknowledged at {self.acked[value]} and at {first}")
        if end > self.end or b"%d" % value not in self._committed[first:end]:
            raise Violation(f"{value} was acknowledged at {first} and is not committed there")
        self.acked_end = max(self.acked_end, end)

    def read(self, least: int, committed: int) -> None:
        """Record the answer to a question that must be current, from the records before
        `committed`."""
        if committed < least:
            raise Violation(f"a read up to {committed}, and {least} was acknowledged before")

    def check(self, logs: dict[str, ByteLog]) -> None:
        """Compare logs with the committed records, and with each other."""
        for replica, log in logs.items():
            self.has(replica, log, min(log.committed_end, self.end), "has something else")
            if log.committed_end > self.end:
                raise Violation(f"{replica} knows more committed than anybody")

    def check_values(self, logs: dict[str, ByteLog]) -> None:
        """Check that no message is twice in a log."""
        for replica, log in logs.items():
            values = [record.body for record in log.records() if record.kind == VALUE]
            if len(values) != len(set(values)):
                raise Violation(f"{replica} has a message twice")

    def check_pairs(self, logs: dict[str, ByteLog]) -> None:
        """Check that two logs with a common epoch are equal up to it."""
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
