"""Member: one replica's decisions about one log. Pure: events in, actions out.

It uses no clock, network or disk. Comments name the rules of `docs/understand/replication.md` by
number.

Invariants
- `facts` are those of the last `Persist`: later actions of the same list may rely on them.
- A promise precedes all other actions of a higher epoch, and ends those of lower ones.
- No state of a leadership survives it: its last action is `Reopen`, and a new member begins.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any

from rockoon_core.replication_rules import Config, Rank, Report, rank_of
from rockoon_replica.actions import (
    Action,
    Alarm,
    CompareCopies,
    EndSession,
    Halt,
    OpenEpoch,
    Persist,
    Remake,
    Reopen,
    ReportLog,
    Resign,
    RetractSuspicion,
    SuspectLeader,
    Sync,
)
from rockoon_replica.copying import CommittedCut, Copying, OtherBytes, Refused
from rockoon_replica.events import (
    AckArrived,
    ChunkArrived,
    DamageFound,
    DamageRepaired,
    Event,
    HandOverAbandoned,
    HandOverAsked,
    HelloArrived,
    LeaderHeard,
    LeaderLost,
    LogStalled,
    RepeatDue,
    RetentionHeld,
    RoundAsked,
    SessionClosed,
    SessionOpened,
    Started,
    StateSeen,
    Synced,
    WelcomeArrived,
    WritesChecked,
)
from rockoon_replica.leadership import Leadership
from rockoon_replica.log import LogView, WriteCheck
from rockoon_replica.log_state import NO_RUN, LogState, ProcessRun
from rockoon_replica.replica_facts import ANY_EPOCH, ReplicaFacts

# 16 times the patience is enough for any two replicas to settle.
DOUBLINGS_MAX = 4


class Role(enum.Enum):
    """Role of a replica: follower, leader before or after its epoch's record is committed, or
    ended.
    """

    # Copies the leader's log, as a voter or a learner.
    FOLLOWER = "follower"
    # Leads, and its epoch's record is not committed yet.
    OPENING = "opening"
    LEADING = "leading"
    # Has ended: it has returned `Reopen`, `Remake` or `Halt`, and returns no further action.
    OVER = "over"


class Member:
    """Decides for one replica of one log: receives events, returns actions.

    Args:
        facts: as read at the start.
        log: read here, never written.
        lag_max: bytes that a learner may lag behind the committed end when it becomes a voter.
    """

    def __init__(
        self, replica: str, facts: ReplicaFacts, log: LogView, *, lag_max: int = 1 << 20
    ) -> None:
        self.replica = replica
        self.facts = facts
        self._log = log
        self._lag_max = lag_max
        self._out: list[Action] = []
        self._seen: LogState | None = None
        self._copying = Copying(replica, log, self._out)
        self._copying.is_damaged = bool(facts.damaged)
        self._leadership: Leadership | None = None
        self._is_over = False
        # Epoch whose leader this replica has lost.
        self._suspected = 0
        # Position at which it becomes sound: the leader's end in its last Welcome.
        self._heals_at: int | None = None
        # Whether a nameserver has shown this start of the process (rule 13).
        self._run_is_known = False
        # Why its log cannot be made equal to the leader's.
        self._refused: str | None = None
        # Newest state of the log if it is frozen; None otherwise. This replica has answered it with
        # a report.
        self._frozen: LogState | None = None
        # Whether the own log can be written.
        self.writes = WriteCheck()
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: self._started,
            StateSeen: self._state_seen,
            SessionOpened: self._session_opened,
            SessionClosed: self._session_closed,
            WelcomeArrived: self._welcome_arrived,
            ChunkArrived: self._chunk_arrived,
            HelloArrived: self._hello_arrived,
            AckArrived: self._ack_arrived,
            Synced: self._synced,
            LeaderLost: self._leader_lost,
            LeaderHeard: self._leader_heard,
            RepeatDue: self._repeat_due,
            RoundAsked: self._round_asked,
            HandOverAsked: self._hand_over_asked,
            HandOverAbandoned: self._hand_over_abandoned,
            RetentionHeld: self._retention_held,
            DamageFound: self._damage_found,
            DamageRepaired: self._damage_repaired,
            LogStalled: self._log_stalled,
            WritesChecked: self._writes_checked,
        }

    # Read by the caller

    @property
    def role(self) -> Role:
        """The replica's present role."""
        if self._is_over:
            return Role.OVER
        if self._leadership is None:
            return Role.FOLLOWER
        return Role.LEADING if self._leadership.is_established else Role.OPENING

    @property
    def epoch(self) -> int:
        """The epoch in which this replica leads; 0 if it does not lead."""
        return self._leadership.epoch if self._leadership else 0

    @property
    def round(self) -> int:
        """Number of the latest round (a question whether this replica still leads, which a quorum
        confirms) in this epoch.
        """
        return self._leadership.round if self._leadership else 0

    @property
    def is_matched(self) -> bool:
        """True if the replica's log is a prefix of the leader's log in the present session."""
        return self._copying.is_matched

    @property
    def is_ready(self) -> bool:
        """True if the replica leads and has committed records, or has all records of a leader that
        has.

        A follower is ready once it has committed the leader's log up to the end in the Welcome.
        This end includes the record of the leader's epoch, so all earlier records are committed as
        well. A replica whose disk refuses writes is not ready.
        """
        if self.writes.failure:
            return False
        is_level = self._copying.is_current and not self._log.generation.is_lacking
        return is_level or self.role is Role.LEADING

    @property
    def has_successor(self) -> bool:
        """Whether this replica leads and a connected, undamaged voter can replace it as leader."""
        leads = self._leadership is not None and self.role is Role.LEADING
        return leads and bool(self._leadership and self._leadership.successors)

    @property
    def leader_generation(self) -> int:
        """Generation that the leader has in use, as last reported; 0: none."""
        return self._copying.leader_generation

    @property
    def is_registered(self) -> bool:
        """True if the replica may participate: it leads, or etcd has recorded this start of its
        process (rule 13).
        """
        return self._run_is_known or self._leadership is not None

    @property
    def refused(self) -> str | None:
        """Reason why the replica's log cannot be made equal to the leader's log; None if it can."""
        return self._refused

    def patience(self, seconds: float) -> float:
        """Seconds without a message after which a follower counts its leader as lost.

        Doubles with each vain election: two replicas that reach the nameservers and not each other
        would depose each other forever.
        """
        vain = self._seen.vain_epochs if self._seen else 0
        return seconds * (1 << min(vain, DOUBLINGS_MAX))

    def retention_end(self) -> int:
        """Position up to which a leader may delete its log: voters must not lack later records."""
        return self._leadership.retention_end() if self._leadership else 0

    def handle(self, event: Event) -> Sequence[Action]:
        """Handle an event. The caller carries out all actions, in order, before the next event."""
        if self._is_over:
            return ()
        self._handlers[type(event)](event)
        if self.role is Role.LEADING and not self.facts.sound:
            # Rule 10: it was elected because it has the records of all voters, now committed.
            self._persist(sound=True)
        actions = self._out[:]
        self._out.clear()
        return actions

    def _persist(self, **changes: Any) -> None:
        self.facts = self.facts._replace(**changes)
        self._out.append(Persist(self.facts))

    def _end(self, action: Reopen | Remake | Halt) -> None:
        self._is_over = True
        self._out.append(action)

    # States

    def _started(self, _event: Started) -> None:
        """Resume leading without nameservers if no other replica can have records or a vote."""
        log = self._log
        for position in self.facts.damaged:
            if not log.min_offset <= position < log.end:
                self._damage_repaired(DamageRepaired(position))
        facts = self.facts
        if facts.config is not None and facts.is_alone(self.replica):
            self._lead(facts.led, Rank(0, 0), facts.config)

    def _state_seen(self, event: StateSeen) -> None:
        state = event.state
        self._see_frozen(state)
        if not self._knows_run(state):
            return
        facts = self.facts
        if state.version < facts.version or (self._seen and state.version <= self._seen.version):
            return
        if self._leadership is not None:
            self._leader_sees(state, self._leadership)
            return
        self._seen = state
        promises = state.epoch > facts.promised
        if promises or state.config != facts.config:
            promised = max(state.epoch, facts.promised)
            self._persist(promised=promised, version=state.version, config=state.config)
        if promises or state.leader is None:
            self._copying.leave()
        if promises:
            self._refused, self._suspected = None, 0
        if self._refused is not None and self.replica not in state.config.in_sync:
            self._end(Remake(self._refused))
        elif state.epoch == self.facts.promised:
            self._join_epoch(state)

    def _see_frozen(self, state: LogState) -> None:
        """Report this replica's log to the nameservers if the log is frozen: an operator needs the
        reports.

        One report for each version of the state: the reply to a report is the state again, which
        must not cause another report. `RepeatDue` repeats the report.
        """
        before, self._frozen = self._frozen, state if state.frozen else None
        is_new = before is None or (before.version, before.epoch) != (state.version, state.epoch)
        if state.frozen and is_new:
            self._report(state)

    def _knows_run(self, state: LogState) -> bool:
        """True if etcd has recorded this start of the process, or this replica leads (rule 13).

        If etcd has a later start, or another one of the same count, the store is an older snapshot:
        it lacks later acknowledgements, promises and epochs. It is unsound, and resigns any epoch
        that it was given before. Its count is raised above etcd's, so that its next registration
        is a later start.
        """
        own, known = self.facts.run, state.runs.get(self.replica, NO_RUN)
        if own in (known, NO_RUN):
            self._run_is_known = True
            if not self.facts.run_seen and own != NO_RUN:
                # A store that is an older snapshot (ANY_EPOCH) may lead only epochs that begin
                # after this state: their elections count a report of this process.
                led = state.epoch if self.facts.led == ANY_EPOCH else self.facts.led
                self._persist(run_seen=True, led=led)
        elif known.starts >= own.starts:
            self._run_is_known = False
            reason = f"its store counts {own.starts} starts with this one, etcd {known.starts}"
            self._out.append(Alarm(f"the disk was restored from an older snapshot: {reason}"))
            # The only voter has no other copy to lose records to.
            is_only = state.config.in_sync == {self.replica}
            doubts = {} if is_only else {"sound": False, "alone": False, "led": ANY_EPOCH}
            self._persist(run=ProcessRun(known.starts + 1, own.number), run_seen=False, **doubts)
            self._copying.leave()
            if self._leadership is not None and not is_only:
                # It resumed as the only voter. Other replicas may have records of its epoch.
                self._end(Reopen())
                return False
        elif self.replica in state.runs and set(state.runs.values()) == {NO_RUN}:
            # A nameserver of a former version discards the starts of all copies.
            self._run_is_known = True
        return self.is_registered

    def _join_epoch(self, state: LogState) -> None:
        """Participate in the promised epoch: vote, lead, or follow the leader."""
        if not state.epoch:
            # The log waits for its first replicas.
            return
        if state.leader is None:
            if not state.frozen:
                self._report(state)
        elif state.leader == self.replica:
            self._lead(state.epoch, state.at_least, state.config)
        elif self._refused is None:
            self._copying.follow(state.leader, state.epoch)

    def _report(self, state: LogState) -> None:
        """Vote in an election: report the durable records to the nameservers (rule 2).

        Replicas that are no voters report too: an operator may have no other one to elect.
        """
        rank = rank_of(self._log.boundaries(), self._log.durable_end)
        report = Report(rank, self.facts.sound, bool(self.facts.damaged))
        if self._log.generation.is_lacking:
            # Without its generation it must not lead, whatever its log has.
            report = Report(Rank(0, 0), sound=False, damaged=report.damaged)
        self._out.append(ReportLog(state.epoch, report, self.facts))

    def _leader_sees(self, state: LogState, leadership: Leadership) -> None:
        self._seen = state
        if (state.epoch, state.leader) != (leadership.epoch, self.replica):
            # Appended records may be cut, and derived state cannot be reverted. The promise comes
            # first: a replica that was alone would resume its epoch otherwise.
            self._persist(promised=state.epoch, version=state.version, config=state.config)
            self._end(Reopen())
            return
        if state.config != self.facts.config:
            self._persist(version=state.version, config=state.config)
        leadership.state_seen(state)

    # Leading

    def _lead(self, epoch: int, at_least: Rank, config: Config) -> None:
        resumes = self.facts.led == epoch and self.facts.alone
        if self.facts.led >= epoch and not resumes:
            # Leadership does not survive the process (rule 4): followers may have records that
            # this log lost in a crash.
            self._resign(epoch)
            return
        boundaries = self._log.boundaries()
        if rank_of(boundaries, self._log.end) < at_least:
            self._out.append(Alarm("records are lost that this log had when it was elected"))
            self._resign(epoch)
            return
        if self._log.generation.is_lacking:
            self._out.append(Alarm("a copy was elected that does not have its generation yet"))
            self._resign(epoch)
            return
        self._copying.leave()
        if not resumes:
            self._persist(promised=epoch, led=epoch, alone=True)
        self._leadership = Leadership(
            self.replica, epoch, config, self._log, self._out, self._lag_max
        )
        if not boundaries or boundaries[-1].epoch != epoch:
            self._out.append(OpenEpoch(epoch))
        self._out.append(Sync())
        if self._seen is not None:
            self._leadership.state_seen(self._seen)

    def _resign(self, epoch: int) -> None:
        self._out.append(Resign(epoch, self.facts.version))

    def _hello_arrived(self, event: HelloArrived) -> None:
        leadership, hello = self._leadership, event.hello
        leads = leadership is not None and hello.epoch == leadership.epoch
        if leadership is None or not leads:
            reason = f"does not lead epoch {hello.epoch}"
        elif not leadership.knows(hello.replica):
            reason = f"{hello.replica} is not another replica of this log"
        else:
            if self.facts.alone:
                # After the first Welcome a follower may have records that a crash deletes here.
                self._persist(alone=False)
            leadership.hello(event.session, hello)
            return
        self._out.append(EndSession(event.session, reason, leads))

    def _ack_arrived(self, event: AckArrived) -> None:
        if self._leadership is not None:
            self._leadership.acked(event.session, event.ack, event.sent_end)

    def _round_asked(self, _event: RoundAsked) -> None:
        if self._leadership is not None:
            self._leadership.ask_round()

    def _hand_over_asked(self, event: HandOverAsked) -> None:
        if self._leadership is not None:
            self._leadership.begin_hand_over(event.successor)

    def _hand_over_abandoned(self, _event: HandOverAbandoned) -> None:
        if self._leadership is not None:
            self._leadership.abandon_hand_over()

    def _retention_held(self, event: RetentionHeld) -> None:
        if self._leadership is not None:
            self._leadership.retention_held(event.end)

    def _log_stalled(self, _event: LogStalled) -> None:
        if self._leadership is not None:
            self._resign(self._leadership.epoch)

    def _writes_checked(self, event: WritesChecked) -> None:
        is_new = not self.writes.failure
        self.writes = event.check
        fail = bool(event.check.reason)
        self._copying.writes_fail = fail
        if self._leadership is not None:
            self._leadership.writes_checked(fail=fail)
            if is_new:
                # Later `RepeatDue` repeats this: while no other replica can win an election,
                # resigning immediately would be a fast loop.
                self._open_or_resign(self._leadership)

    def _open_or_resign(self, leadership: Leadership) -> None:
        """Append the record that opens the epoch again if the disk refused it, or resign."""
        config = self.facts.config
        if leadership.epoch_start() is not None:
            return
        if not self.writes.failure:
            self._out += [OpenEpoch(leadership.epoch), Sync()]
        elif config is not None and config.in_sync != {self.replica}:
            self._resign(leadership.epoch)

    # Following

    def _session_opened(self, event: SessionOpened) -> None:
        self._copying.opened(event.session)

    def _session_closed(self, event: SessionClosed) -> None:
        self._copying.closed(event.session)
        if self._leadership is not None:
            self._leadership.closed(event.session)

    def _welcome_arrived(self, event: WelcomeArrived) -> None:
        try:
            is_usable = self._copying.welcome(event.session, event.welcome)
        except CommittedCut as error:
            if self._was_given_up():
                self._refuse(str(error))
            else:
                self._end(Halt(str(error)))
        except OtherBytes as error:
            # It is not known yet which of the two copies is damaged.
            target = self._copying.end_session()
            self._out += [Alarm(str(error)), CompareCopies(target, error.begin, error.end)]
        except Refused as error:
            self._refuse(str(error))
        else:
            if is_usable and not self.facts.sound:
                self._heals_at = event.welcome.leader_end

    def _was_given_up(self) -> bool:
        """True if this log has records that an operator has accepted as lost."""
        loss = self._seen.loss if self._seen else None
        if loss is None or self._log.end <= loss.end:
            return False
        return all(each.epoch != loss.epoch for each in self._log.boundaries())

    def _refuse(self, reason: str) -> None:
        self._copying.leave()
        config = self.facts.config
        if config is not None and self.replica in config.in_sync:
            # Other replicas may have fewer records: a voter's log is never discarded.
            self._refused = reason
            self._out.append(Alarm(reason))
        else:
            self._end(Remake(reason))

    # Damage

    def _damage_found(self, event: DamageFound) -> None:
        if event.position not in self.facts.damaged:
            self._persist(damaged=(*self.facts.damaged, event.position))
            self._copying.report_damage(is_damaged=True)

    def _damage_repaired(self, event: DamageRepaired) -> None:
        if event.position in self.facts.damaged:
            left = tuple(each for each in self.facts.damaged if each != event.position)
            self._persist(damaged=left)
            self._copying.report_damage(is_damaged=bool(left))

    def _chunk_arrived(self, event: ChunkArrived) -> None:
        self._copying.chunk(event.session, event.chunk)

    def _synced(self, _event: Synced) -> None:
        if self._leadership is not None:
            self._leadership.advance()
            return
        heals_at = self._heals_at
        if heals_at is not None and self._copying.is_matched and self._log.durable_end >= heals_at:
            # Rule 10: it has all records again that it can have acknowledged.
            self._heals_at = None
            self._persist(sound=True)
        self._copying.synced()

    def _leader_lost(self, _event: LeaderLost) -> None:
        seen = self._seen
        if seen is None or self._leadership or seen.leader in (None, self.replica):
            return
        if self.replica in seen.config.in_sync:
            self._suspected = seen.epoch
            self._out.append(SuspectLeader(seen.epoch, seen.version))

    def _leader_heard(self, _event: LeaderHeard) -> None:
        if self._suspected and self._seen is not None:
            self._out.append(RetractSuspicion(self._suspected, self._seen.version))
            self._suspected = 0

    def _repeat_due(self, _event: RepeatDue) -> None:
        seen = self._seen
        if self._frozen is not None:
            self._report(self._frozen)
        if self._leadership is not None:
            self._open_or_resign(self._leadership)
            self._leadership.repeat()
        elif seen is None or seen.epoch != self.facts.promised:
            return
        elif seen.leader is None:
            if not seen.frozen:
                self._report(seen)
        elif seen.leader == self.replica:
            self._resign(seen.epoch)
        elif self._suspected == seen.epoch:
            self._out.append(SuspectLeader(seen.epoch, seen.version))
