"""Copying: a follower's decisions in a session with its leader, from Hello to acknowledgements.
Pure.

Invariants
- Acknowledgements are sent only after the log was made a prefix of the leader's in this session
  (rule 6), and only for durable records (rule 7).
- Records that the leader has deleted are deleted here only while both have the same generation in
  use: each copy has all of a compacted topic, in its log or in its generation (rule 12).
- A session is ended (`leave`) before a promise: messages that arrive in it later are dropped.
"""

from rockoon_core.replication_rules import Boundary
from rockoon_replica.actions import (
    Acknowledge,
    Action,
    AllowDeletion,
    CommitUpTo,
    Connect,
    Disconnect,
    Drop,
    NeedGeneration,
    SayHello,
    Sync,
    Truncate,
    WriteRecords,
)
from rockoon_replica.log import LogView
from rockoon_replica.messages import Ack, Hello, RecordChunk, Welcome, tail_size


class Refused(Exception):
    """The follower's log cannot be made equal to the leader's log."""


class OtherBytes(Exception):
    """Logs of leader and follower differ in a range of equal epochs: one copy is damaged."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(f"the leader has other bytes between {begin} and {end}")
        self.begin, self.end = begin, end


class CommittedCut(Exception):
    """The leader requests a cut of records that the follower knows to be committed."""


class Copying:
    """State of a follower's connection to a leader; `out` receives the actions."""

    def __init__(self, replica: str, log: LogView, out: list[Action]) -> None:
        self._replica = replica
        self._log = log
        self._out = out
        self._target: Connect | None = None
        self._session: int | None = None
        self._hello: Hello | None = None
        self._welcomed = False
        self._leader_end = 0
        self._acked = Ack(0, 0)
        self._allowed = 0
        # Generation that the leader has in use, as last reported; 0: none.
        self.leader_generation = 0
        # True while the disk refuses writes; acknowledgements report it to the leader.
        self.writes_fail = False
        # True while records of this log are proven wrong; acknowledgements report it to the leader.
        self.is_damaged = False

    @property
    def is_matched(self) -> bool:
        """True if the follower's log is a prefix of the leader's log in this session."""
        return self._welcomed

    @property
    def is_current(self) -> bool:
        """True if all records are committed that the leader had at the session's start."""
        return self._welcomed and self._log.committed_end >= self._leader_end

    def follow(self, leader: str, epoch: int) -> None:
        """Follow a leader: request a connection, and copy its records."""
        target = Connect(leader, epoch)
        if target != self._target:
            self._clear_session()
            self._target = target
            self._out.append(target)

    def leave(self) -> None:
        """Follow no leader: close the connection."""
        if self._target is not None:
            self._clear_session()
            self._target = None
            self._out.append(Disconnect())

    def end_session(self) -> str:
        """End the session; returns the leader. Another session may be opened."""
        assert self._target is not None, "no session is open"
        self._clear_session()
        return self._target.leader

    def _clear_session(self) -> None:
        self._session, self._hello, self._welcomed = None, None, False

    def _connect_again(self) -> None:
        target = self._target
        self.leave()
        if target is not None:
            self.follow(*target)

    def opened(self, session: int) -> None:
        """The connection to the leader is open: send Hello."""
        if self._target is None:
            return
        log = self._log
        epochs: tuple[Boundary, ...] = tuple(log.boundaries())
        hello = Hello(self._target.epoch, self._replica, epochs, log.min_offset, log.end)
        self._session, self._hello, self._welcomed = session, hello, False
        self._out.append(SayHello(session, hello))

    def closed(self, session: int) -> None:
        """A connection to a leader has ended; it may have been an earlier one."""
        if session == self._session:
            self._clear_session()

    def welcome(self, session: int, welcome: Welcome) -> bool:
        """Cut the log where the leader's begins to differ (rule 6), and acknowledge the rest.

        Returns:
            Whether the session is usable from here on.

        Raises:
            Refused: the log must be remade.
            OtherBytes: one of the two copies is damaged.
            CommittedCut: some replica has broken a rule.
        """
        hello, log = self._hello, self._log
        if session != self._session or hello is None or self._welcomed or self._target is None:
            # Once per session: records that arrived since must not be cut.
            return False
        if (welcome.leader, welcome.epoch) != self._target:
            self._connect_again()
            return False
        point = welcome.truncate_to
        if point is None:
            raise Refused("the leader's log has nothing in common with this one, or begins later")
        has_records = log.end > log.min_offset
        if has_records:
            if point < log.committed_end:
                raise CommittedCut(
                    f"its leader asks it to cut its log at {point}, but the log is committed up to "
                    f"{log.committed_end}"
                )
            if point > log.end:
                raise Refused(f"the leader continues at {point}, this log ends at {log.end}")
            size = tail_size(point, hello, welcome.min_offset)
            if log.tail_crc(point, size) != welcome.tail_crc:
                blank = log.blank_at(point - 1)
                if blank is not None and blank >= log.committed_end:
                    # This log has a blank there, because the record of an epoch did not fit. The
                    # leader does not know that epoch, and has records at the same position. The log
                    # is cut at the blank, and the next Hello reports this end.
                    self._out.append(Truncate(blank))
                    self._connect_again()
                    return False
                raise OtherBytes(point - size, point)
        needed = log.generation.needed_end
        if not has_records and point != log.end:
            # The log begins where the leader's does; only the generation has earlier records.
            needed = welcome.generation_end
        if needed > max(log.generation.end, welcome.generation_end):
            raise Refused(f"the log needs a generation up to {needed}; the leader has none")
        durable = min(log.durable_end, point) if has_records else point
        if needed != log.generation.needed_end:
            self._out.append(NeedGeneration(needed))
        if point != log.end:
            self._out.append(Truncate(point))
        if welcome.dropped:
            # After the cut, which may remove later entries.
            self._out.append(Drop(welcome.dropped))
        self._welcomed, self._leader_end = True, welcome.leader_end
        self._acked = Ack(
            durable, 0, needed > log.generation.end, self.writes_fail, self.is_damaged
        )
        self._out += [Sync(), Acknowledge(session, self._acked)]
        return True

    def chunk(self, session: int, chunk: RecordChunk) -> None:
        """Write the leader's records, then commit up to the end that the leader reported."""
        if session != self._session or not self._welcomed or self._target is None:
            return
        if (chunk.leader, chunk.epoch) != self._target:
            return
        if chunk.data:
            if chunk.offset != self._log.end:
                self._connect_again()
                return
            self._out += [WriteRecords(chunk.offset, chunk.data), Sync()]
        if chunk.committed_end > self._log.committed_end:
            self._out.append(CommitUpTo(chunk.committed_end))
        self.leader_generation = chunk.generation
        if chunk.min_offset > self._allowed and chunk.generation == self._log.generation.identity:
            self._allowed = chunk.min_offset
            self._out.append(AllowDeletion(chunk.min_offset))
        if chunk.round > self._acked.round or not chunk.data:
            self._acknowledge(chunk.round)

    def synced(self) -> None:
        """More records are durable: acknowledge them to the leader."""
        if self._welcomed and self._log.durable_end > self._acked.durable_end:
            self._acknowledge(self._acked.round)

    def report_damage(self, *, is_damaged: bool) -> None:
        """Report to the leader that this log is damaged, or no longer is."""
        if is_damaged != self.is_damaged:
            self.is_damaged = is_damaged
            if self._welcomed:
                self._acknowledge(self._acked.round)

    def _acknowledge(self, number: int) -> None:
        assert self._session is not None, "no session is open"
        log = self._log
        number = max(number, self._acked.round)
        self._acked = Ack(
            log.durable_end, number, log.generation.is_lacking, self.writes_fail, self.is_damaged
        )
        self._out.append(Acknowledge(self._session, self._acked))
