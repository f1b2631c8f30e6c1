"""Register: the key in etcd with a log's state, and the nameservers' changes of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rockoon_core import replication_rules
from rockoon_core.replication_rules import Config, Rank, Report, election_size
from rockoon_replica import actions
from rockoon_replica.actions import Action
from rockoon_replica.log_state import NO_RUN, CopiesWish, LogState, Move, ProcessRun, StateVersion
from rockoon_replica.replica_facts import ReplicaFacts

EPOCHS_LEFT_OUT = 65_536


def first_state(voters: list[str], others: list[str], quorum: int, copies: int) -> LogState:
    """Return the state of a new log, which waits for its first election."""
    return LogState(
        log="broker-a",
        version=StateVersion(0, 1),
        epoch=1,
        leader=None,
        at_least=Rank(0, 0),
        config=Config(frozenset(voters), quorum),
        replicas=(*voters, *others),
        copies=copies,
    )


class Register:
    """One key; every change is conditional on the former value.

    Args:
        state: the first one.
        bugs: names of broken rules.
    """

    def __init__(self, state: LogState, bugs: frozenset[str]) -> None:
        self.state = state
        self.past = [state]
        self.suspects: set[str] = set()
        self._bugs = bugs
        # The newest committed end that a leader recorded, with its epoch.
        self.recorded = Rank(0, 0)

    def _put(self, **changes: Any) -> None:
        version = self.state.version
        after = StateVersion(version.history, version.number + 1)
        self.state = replace(self.state, **{"version": after, **changes})
        self.past.append(self.state)

    def _next_epoch(self, leader: str | None, at_least: Rank) -> None:
        vain = 0 if self.state.confirmed else self.state.vain_epochs + 1
        self.suspects.clear()
        self._put(
            epoch=self.state.epoch + 1,
            leader=leader,
            at_least=at_least,
            reports={},
            confirmed=False,
            vain_epochs=vain,
            held="",
        )

    def call(self, who: str, action: Action) -> None:
        """Run one transaction for a replica."""
        state = self.state
        if state.frozen or getattr(action, "epoch", state.epoch) != state.epoch:
            return
        leads = state.leader == who
        if isinstance(action, actions.ReportLog):
            self._report(who, action.report)
        elif isinstance(action, actions.SuspectLeader):
            if state.leader is not None and who in state.config.in_sync:
                self.suspects.add(who)
                if len(self.suspects) >= election_size(state.config):
                    self.depose()
        elif isinstance(action, actions.RetractSuspicion):
            self.suspects.discard(who)
        elif isinstance(action, actions.Resign) and leads:
            self.depose()
        elif isinstance(action, actions.ConfirmEpoch) and leads and not state.confirmed:
            self._put(confirmed=True, vain_epochs=0)
        elif isinstance(action, actions.RecordCommittedEnd) and leads:
            self.recorded = Rank(action.epoch, max(self.recorded.end, action.end))
        elif isinstance(action, actions.ChangeInSync) and leads:
            if action.version == state.version:
                self._put(config=action.config, moves=self._moves_left(action.config))
        elif isinstance(action, actions.HandOver) and leads:
            known = action.version == state.version or "hand_over_unversioned" in self._bugs
            if known and action.successor in state.config.in_sync:
                self._next_epoch(action.successor, action.rank)

    def _moves_left(self, config: Config) -> tuple[Move, ...]:
        return tuple(
            each
            for each in self.state.moves
            if each.leaves in config.in_sync and each.joins not in config.in_sync
        )

    def _report(self, who: str, report: Report) -> None:
        state = self.state
        if state.leader is not None:
            return
        reports: Mapping[str, Report] = {**state.reports, who: report}
        # By the module's name, so that a broken rule is broken here too.
        leader = replication_rules.elected(state.config, reports, state.replicas)
        if leader is None:
            self._put(reports=reports)
        elif self._lacks(reports[leader].rank):
            self._put(reports=reports, held="the winner lacks committed records")
        else:
            self._put(leader=leader, at_least=reports[leader].rank, reports={}, held="")
            if self._bugs & {"elect_first", "elect_longest"}:
                self._put(at_least=Rank(0, 0))

    def _lacks(self, rank: Rank) -> bool:
        return rank.epoch < self.recorded.epoch or rank.end < self.recorded.end

    def come(self, replica: str, run: ProcessRun) -> None:
        """A replica registers a start of its process."""
        known = self.state.runs.get(replica, NO_RUN)
        if replica in self.state.replicas and run.starts > known.starts:
            self._put(runs={**self.state.runs, replica: run})

    def depose(self) -> None:
        """End the epoch, because of a suspicion or an operator."""
        if not self.state.frozen:
            self._next_epoch(None, self.state.at_least)

    def assign(self, replica: str) -> None:
        """A replica registers."""
        if not self.state.frozen and replica not in self.state.replicas:
            self._put(replicas=(*self.state.replicas, replica))

    def move(self, leaves: str, joins: str) -> None:
        """An operator requests a change."""
        if not self.state.frozen:
            self._put(moves=(Move(leaves, joins),))

    def set_copies(self, copies: int, stays: str | None) -> None:
        """An operator requests a change."""
        wish = None if copies == self.state.copies else CopiesWish(copies, stays)
        if not self.state.frozen and wish != self.state.wish:
            self._put(wish=wish)

    def go_on_alone(self, who: str, _facts: ReplicaFacts) -> bool:
        """A replica requests the log for itself; return whether it got it."""
        state = self.state
        if state.frozen or state.config.in_sync != {who}:
            return False
        if "alone_in_its_epoch" in self._bugs:
            self._put(leader=who, copies=1, wish=None)
            return True
        self._next_epoch(who, Rank(0, 0))
        self._put(replicas=(who,), copies=1, wish=None, moves=(), confirmed=True)
        return True

    def come_back(self, who: str, copies: int) -> None:
        """The broker of a log of one copy is started as a replica."""
        if not self.state.frozen and who in self.state.config.in_sync:
            self._put(copies=max(copies, self.state.copies))

    def write_quorum(self, quorum: int) -> None:
        """An operator writes a field that only the leader may change (broken)."""
        self._put(config=self.state.config._replace(quorum=quorum))

    def restore(self, past: LogState, *, frozen: bool) -> None:
        """Etcd is restored from a backup; its cluster id shows this, and the log is frozen."""
        self.suspects.clear()
        self.state = replace(past, frozen=frozen)
        if not frozen:
            # No nameserver detects that it is older: its numbers are greater.
            newest = max(each.version for each in self.past)
            self.state = replace(past, version=StateVersion(newest.history, newest.number + 1))
        self.past.append(self.state)

    def adopt(self, told: list[ReplicaFacts]) -> None:
        """An operator lets the log continue, with the reports of all its replicas."""
        newest = max(told, key=lambda facts: facts.version)
        assert newest.config is not None, "a replica has seen a state"
        versions = [self.state.version, *(facts.version for facts in told)]
        epoch = max(self.state.epoch, *(facts.promised for facts in told)) + EPOCHS_LEFT_OUT
        known = (*self.state.replicas, *newest.config.in_sync)
        self.state = replace(
            self.state,
            version=StateVersion(max(versions).history + 1, max(v.number for v in versions) + 1),
            epoch=epoch,
            leader=None,
            config=newest.config,
            replicas=tuple(dict.fromkeys(known)),
            reports={},
            moves=(),
            frozen=False,
        )
        self.past.append(self.state)

    adopt_by_name = adopt
