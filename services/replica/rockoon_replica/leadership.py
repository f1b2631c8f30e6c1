"""Leadership: a leader's state of its followers in one epoch, and its decisions. Pure.

Invariants
- Only acknowledgements of the present session count, up to the end of the sent records (rule 7).
- From the proposal of a configuration until a state of a later version is seen, both the old and
  the new one must agree (rule 8): a missing reply is not a refusal.
- From the request of a hand-over until a state of a later version is seen, this leader appends no
  records: the nameservers may still execute the request.
"""

from collections.abc import Callable
from typing import NamedTuple

from rockoon_core.replication_rules import (
    Config,
    committed_end,
    consistent_point,
    may_propose,
    quorum_end,
    quorum_of,
    rank_of,
)
from rockoon_replica.actions import (
    Action,
    Alarm,
    AllowAppends,
    ChangeInSync,
    CommitUpTo,
    ConfirmEpoch,
    EndSession,
    Established,
    HandOver,
    RoundAgreed,
    SayWelcome,
    SendRound,
)
from rockoon_replica.log import LogView
from rockoon_replica.log_state import CopiesWish, LogState, Move, StateVersion
from rockoon_replica.messages import Ack, Hello, Welcome, tail_size

# Minimum of voters to which a leader reduces the in-sync set for retention, so that acknowledged
# records stay on two disks.
VOTERS_MIN = 2


class _Leaving(NamedTuple):
    """A hand-over in progress.

    Attributes:
        wanted: the next leader; None: any successor.
        asked: the call to a nameserver, after it was made.
        is_abandoned: the hand-over was abandoned after that call.
        is_wish: an operator has requested the hand-over. It is abandoned if the request is
            withdrawn or `wanted` disconnects.
        is_forced: the reason is that this leader's disk refuses writes. It is abandoned if the disk
            accepts writes again, or if the other voters cannot commit.
    """

    wanted: str | None = None
    asked: HandOver | None = None
    is_abandoned: bool = False
    is_wish: bool = False
    is_forced: bool = False


class Leadership:
    """Leadership of one replica in one epoch: decides on commits, voters and hand-overs.

    Args:
        epoch: its number.
        config: configuration in the state that gave this replica the epoch.
        log: own log; its last epoch is or will be this one.
        out: receives the actions.
        lag_max: bytes that a learner may lag when it becomes a voter.
    """

    def __init__(
        self,
        replica: str,
        epoch: int,
        config: Config,
        log: LogView,
        out: list[Action],
        lag_max: int,
    ) -> None:
        self.epoch = epoch
        self.round = 0
        self.is_established = False
        self._start: int | None = None
        self._replica = replica
        self._log = log
        self._out = out
        self._lag_max = lag_max
        self._configs = [config]
        self._change: ChangeInSync | None = None
        self._leaving: _Leaving | None = None
        self._version: StateVersion | None = None
        self._moves: tuple[Move, ...] = ()
        self._copies = 1
        self._wish: CopiesWish | None = None
        self._is_frozen = False
        self._confirmed = False
        self._assigned: tuple[str, ...] = ()
        self._sessions: dict[int, str] = {}
        self._ends: dict[str, int] = {}
        # Highest end that each follower acknowledged in this epoch, also before it disconnected.
        self._reached: dict[str, int] = {}
        # Retention deletes records below this position even if voters lack them.
        self._needed = 0
        self._rounds: dict[str, int] = {}
        # Followers without the generation that their log needs.
        self._lacking: set[str] = set()
        # Followers whose disks refuse writes, and whether the own disk does.
        self._failing: set[str] = set()
        self._writes_fail = False
        # Followers with damaged records, which cannot become leader.
        self._damaged: set[str] = set()
        self._agreed = 0
        self._appends = False

    # States of nameservers

    def state_seen(self, state: LogState) -> None:
        """Process a later state of this epoch: earlier requests had an effect, or never will."""
        self._version = state.version
        self._moves = () if state.frozen else state.moves
        self._copies = 1 if state.frozen else state.copies
        self._is_frozen = state.frozen
        self._wish = None if state.frozen else state.wish
        self._confirmed = state.confirmed
        self._assigned = state.replicas
        if self._change is not None:
            self._configs, self._change = [state.config], None
        if self._leaving is not None and (self._leaving.is_wish or self._leaving.is_forced):
            # Started again below, if its reason remains.
            self._leaving = None
        elif self._leaving is not None and self._leaving.asked is not None:
            again = _Leaving(self._leaving.wanted)
            self._leaving = None if self._leaving.is_abandoned else again
        self.advance()

    def repeat(self) -> None:
        """Repeat requests without an effect so far: the call or its reply may be lost."""
        if (asked := self._asked()) is not None:
            self._out.append(asked)
            return
        self.advance()
        if self._asked() is None and self.is_established:
            # Not during a request for a change, which a new version would invalidate.
            self._confirm()

    def _asked(self) -> ChangeInSync | HandOver | None:
        return self._change or (self._leaving.asked if self._leaving else None)

    def _confirm(self) -> None:
        if not self._confirmed and self._version is not None:
            self._out.append(ConfirmEpoch(self.epoch, self._version))

    # Messages of followers

    def knows(self, replica: str) -> bool:
        """True if the id belongs to another replica of this log, according to the newest state."""
        known = {*self._assigned}.union(*(config.in_sync for config in self._configs))
        return replica in known - {self._replica}

    def hello(self, session: int, hello: Hello) -> None:
        """Reply to a follower with the position up to which both logs are equal (rule 6)."""
        follower = hello.replica
        for former, who in list(self._sessions.items()):
            if who == follower:
                self.closed(former)
                self._out.append(EndSession(former, f"{follower} has connected again"))
        log = self._log
        point = self._matching(hello)
        if point is not None:
            self._sessions[session] = follower
        # It may return with fewer records than it had: retention must keep those it lacks.
        self._reached[follower] = min(self._reached.get(follower, 0), point or 0)
        size = 0 if point is None else tail_size(point, hello, log.min_offset)
        crc = 0 if point is None else log.tail_crc(point, size)
        dropped = tuple(log.dropped.items())
        known = (log.end, log.min_offset, dropped, log.generation.end)
        welcome = Welcome(self.epoch, self._replica, point, crc, *known)
        self._out.append(SayWelcome(session, welcome))

    def _matching(self, hello: Hello) -> int | None:
        """Position from which a follower copies the leader's log, because both logs are equal up to
        there; None: the follower must start with an empty log.
        """
        if hello.end == hello.min_offset:
            begin = max(self._log.min_offset, hello.end)
            return begin if begin <= self._log.end else None
        point = consistent_point(self._log.boundaries(), hello.boundaries)
        if point is None or point < max(self._log.min_offset, hello.min_offset):
            # The leader or the follower has deleted the records there.
            return None
        # The leader's file may end with a blank, because the record of its next epoch did not fit.
        # A smaller record of the follower may have fit there, so the common part ends at the blank.
        blank = self._log.blank_at(point)
        return point if blank is None else blank

    def acked(self, session: int, ack: Ack, sent_end: int) -> None:
        """Process a follower's acknowledgement of records (rule 7)."""
        follower = self._sessions.get(session)
        if follower is None:
            return
        if ack.durable_end > sent_end or ack.round > self.round:
            self.closed(session)
            self._out.append(
                EndSession(session, f"{follower} has acknowledged records that were not sent")
            )
            return
        self._ends[follower] = max(self._ends.get(follower, 0), ack.durable_end)
        self._reached[follower] = max(self._reached.get(follower, 0), ack.durable_end)
        self._rounds[follower] = max(self._rounds.get(follower, 0), ack.round)
        for said, followers in (
            (ack.is_lacking, self._lacking),
            (ack.writes_fail, self._failing),
            (ack.is_damaged, self._damaged),
        ):
            (followers.add if said else followers.discard)(follower)
        self.advance()

    def closed(self, session: int) -> None:
        """Remove the acknowledgements of a follower whose connection ended."""
        follower = self._sessions.pop(session, None)
        if follower is not None:
            self._ends.pop(follower, None)
            self._rounds.pop(follower, None)
            self._update_appends()

    # Decisions

    def epoch_start(self) -> int | None:
        """Position of the record that opened the epoch; None before it was written."""
        if self._start is None:
            # Called at each acknowledgement; the position stays, as a leader never cuts its log.
            boundaries = self._log.boundaries()
            if boundaries and boundaries[-1].epoch == self.epoch:
                self._start = boundaries[-1].first
        return self._start

    def advance(self) -> None:
        """Commit the records that a quorum has (rules 5 and 8), and make the next decisions."""
        start = self.epoch_start()
        if start is None:
            return
        log = self._log
        end = committed_end(self._configs, self._durable_ends(), start, log.committed_end)
        if end > log.committed_end:
            self._out.append(CommitUpTo(end))
        if end > start and not self.is_established:
            self.is_established = True
            self._out.append(Established(self.epoch))
            self._confirm()
        if self.is_established:
            self._update_rounds()
        self._change_voters(end, start)
        self._leave_failing_disk()
        self._hand_over(end)
        self._update_appends()

    def _durable_ends(self) -> dict[str, int]:
        return {**self._ends, self._replica: self._log.durable_end}

    def ask_round(self) -> None:
        """Ask all followers whether they still follow (rule 11)."""
        self.round += 1
        self._out.append(SendRound(self.round))
        self.advance()

    def _update_rounds(self) -> None:
        rounds = {**self._rounds, self._replica: self.round}
        agreed = min(quorum_end(config, rounds) for config in self._configs)
        if agreed > self._agreed:
            self._agreed = agreed
            self._out.append(RoundAgreed(agreed))

    def _update_appends(self) -> None:
        """Refuse appends before they are written while too few replicas can commit them."""
        present = {self._replica, *self._sessions.values()}
        enough = all(len(config.in_sync & present) >= config.quorum for config in self._configs)
        allowed = enough and self.is_established and self._leaving is None
        if allowed != self._appends:
            self._appends = allowed
            self._out.append(AllowAppends(allowed))

    def _change_voters(self, committed: int, start: int) -> None:
        """Propose the voters that operators want, once they have almost all records (rule 9)."""
        version, config = self._version, self._configs[0]
        if version is None or self._change or self._leaving:
            return
        in_sync = self._wanted(config.in_sync, committed)
        if in_sync == config.in_sync:
            return
        if self._replica not in in_sync:
            # The leader must be a voter, so the next leader proposes this set. The only voter has
            # no successor: it first waits until there are several voters.
            if len(config.in_sync) > 1:
                successor = self._wish.stays if self._wish and self._wish.stays in in_sync else None
                self._leaving = _Leaving(successor, is_wish=True)
            return
        wanted = Config(in_sync, quorum_of(len(in_sync), 1))
        if may_propose(wanted, self._durable_ends(), committed, start):
            for who in sorted(self._left_behind(config.in_sync) - in_sync):
                reason = f"{who} no longer votes: it lacks records that retention must delete"
                self._out.append(Alarm(reason))
            self._change = ChangeInSync(self.epoch, version, wanted)
            self._configs = [config, wanted]
            self._out.append(self._change)

    def _wanted(self, in_sync: frozenset[str], committed: int) -> frozenset[str]:
        """Return the voters that operators requested and that are able to vote at present."""

        def is_near(who: str) -> bool:
            # Only connected followers: the state of a disconnected one is unknown.
            unable = self._failing | self._damaged
            is_here = who in self._ends and who not in unable and self._is_whole(who)
            return is_here and self._ends[who] + self._lag_max >= committed

        ready = [who for who in self._assigned if who not in in_sync and is_near(who)]
        copies = self._copies if self._wish is None else self._wish.copies
        if self._wish is not None and len(in_sync) > copies:
            return self._fewer(in_sync, self._wish, is_near)
        if len(in_sync) < copies:
            missing = copies - len(in_sync)
            # From one copy to all copies in one step: two voters are worse than one.
            if len(ready) >= missing or (ready and len(in_sync) > 1):
                return in_sync.union(ready[:missing])
            return in_sync - self._left_behind(in_sync)
        for move in self._moves:
            if move.leaves in in_sync and move.joins in ready:
                return in_sync - {move.leaves} | {move.joins}
        return in_sync - self._left_behind(in_sync)

    def _left_behind(self, in_sync: frozenset[str]) -> frozenset[str]:
        """Return the voters that delay retention for too long, those with the fewest records first;
        one other voter stays.

        If retention deleted records that a voter lacks, the voter's log would have to be discarded.
        A voter must never discard its log, so the voter loses its vote first.
        """
        if not self._needed or self._is_frozen:
            return frozenset()
        behind = sorted(
            (self._reached.get(who, 0), who)
            for who in in_sync - {self._replica}
            if self._reached.get(who, 0) < self._needed
        )
        spare = max(0, len(in_sync) - VOTERS_MIN)
        return frozenset(who for _, who in behind[:spare])

    def _is_whole(self, who: str) -> bool:
        """True if a replica has all records of this log's generation, in its log or generation."""
        if not self._log.generation.end:
            return True
        return who in self._ends and who not in self._lacking

    def _fewer(
        self, in_sync: frozenset[str], wish: CopiesWish, is_near: Callable[[str], bool]
    ) -> frozenset[str]:
        """Return fewer voters: the named one, the leader if possible, then the most complete."""
        first = wish.stays if wish.stays in in_sync else self._replica
        if first != self._replica and not is_near(first):
            return in_sync

        def priority(who: str) -> tuple[bool, bool, bool, int, str]:
            preferred = who != first, who != self._replica, who in self._damaged
            return *preferred, -self._ends.get(who, -1), who

        return frozenset(sorted(in_sync, key=priority)[: wish.copies])

    # Handing over

    def begin_hand_over(self, successor: str | None) -> None:
        """Stop appends and hand over to a follower with all records, if there is another voter."""
        if self._leaving is None and self._configs[0].in_sync != {self._replica}:
            self._leaving = _Leaving(successor)
            self.advance()

    def writes_checked(self, *, fail: bool) -> None:
        """Record that this leader's disk refuses writes, or accepts them again."""
        self._writes_fail = fail
        self.advance()

    def _leave_failing_disk(self) -> None:
        """Hand over while this leader's disk refuses writes, if other voters can commit without it.

        If too few other voters can write, the next leader could not open its epoch, and reads would
        end too. If no other voter may lead, for example because all are damaged, the wait for a
        successor would refuse even the broker's own records, for which a full disk has a reserve.
        """
        config, leaving = self._configs[0], self._leaving
        able = (config.in_sync & self._ends.keys()) - self._failing - {self._replica}
        can_leave = len(able) >= config.quorum and bool(self.successors)
        if self._writes_fail and self.is_established and can_leave:
            if leaving is None:
                self._leaving = _Leaving(is_forced=True)
        elif leaving is not None and leaving.is_forced and leaving.asked is None:
            self._leaving = None

    def abandon_hand_over(self) -> None:
        """Abandon the hand-over; if the nameservers were already called, a later state of the log
        decides about it.
        """
        if self._leaving is not None:
            asked = self._leaving.asked is not None
            self._leaving = self._leaving._replace(is_abandoned=True) if asked else None
            self.advance()

    @property
    def successors(self) -> frozenset[str]:
        """Return the connected voters that may lead next, once they have all records."""
        voters = self._configs[0].in_sync.intersection(self._ends) - {self._replica}
        return voters - self._lacking - self._failing - self._damaged

    def _hand_over(self, committed: int) -> None:
        leaving, version, log = self._leaving, self._version, self._log
        if leaving is not None and leaving.is_wish and not leaving.asked and self._is_gone(leaving):
            # Appends would be refused until the successor connects again, possibly for long.
            self._leaving = leaving = None
        if leaving is None or leaving.asked or version is None or self._change:
            return
        if self._appends:
            # Appends are refused from this event on, but the log may grow until it is handled.
            return
        ready = {who for who in self.successors if self._ends.get(who) == log.end == committed}
        if leaving.wanted is not None:
            ready &= {leaving.wanted}
        if ready:
            preferred = [who for who in self._assigned if who in ready] or sorted(ready)
            rank = rank_of(log.boundaries(), log.end)
            asked = HandOver(self.epoch, version, preferred[0], rank)
            self._leaving = leaving._replace(asked=asked)
            self._out.append(asked)

    def _is_gone(self, leaving: _Leaving) -> bool:
        return leaving.wanted is not None and leaving.wanted not in self._ends

    def retention_end(self) -> int:
        """Position up to which each voter has acknowledged the log in this epoch."""
        ends = {**self._reached, self._replica: self._log.durable_end}
        voters = frozenset[str]().union(*(config.in_sync for config in self._configs))
        return min(ends.get(who, 0) for who in voters)

    def retention_held(self, end: int) -> None:
        """Record that records below `end` must be deleted even if a copy lacks them; 0: none."""
        self._needed = end
        self.advance()
