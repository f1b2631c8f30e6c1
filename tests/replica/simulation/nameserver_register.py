"""Register that uses the nameserver's own functions for changes of a log's state."""

from functools import partial

from rockoon_core.errors import RockoonError
from rockoon_nameserver import elections, log_membership
from rockoon_nameserver.elections import CommittedEnd, LogDecision, missing_records, next_record
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import BROKER, Node
from rockoon_proto.v1.nameserver_pb2 import ReplicaFacts as FactsOnTheWire
from rockoon_replica import actions
from rockoon_replica.actions import Action
from rockoon_replica.log_state import LogState, ProcessRun
from rockoon_replica.nameserver_link import report_to_wire, state_from_wire
from rockoon_replica.replica_facts import ReplicaFacts


class NameserverRegister:
    """As `Register`; no rule can be broken in it.

    Args:
        first: the first state.
    """

    def __init__(self, first: LogState) -> None:
        config = first.config
        self._wire = pb.LogState(kind=BROKER, log=first.log, version=first.version.number)
        self._wire.epoch, self._wire.copies = first.epoch, first.copies
        self._wire.in_sync.extend(sorted(config.in_sync))
        self._wire.quorum = config.quorum
        for replica in first.replicas:
            self._wire.replicas.add(replica_id=replica, name=replica)
        self.recorded: CommittedEnd | None = None
        self.past: list[LogState] = []
        self._past: list[pb.LogState] = []
        self._put(self._wire)

    @property
    def state(self) -> LogState:
        return self.past[-1]

    def _put(self, after: pb.LogState) -> None:
        if self.past and after == self._wire:
            return
        self._wire = after
        self._past.append(after)
        self.past.append(state_from_wire(after))

    def call(self, who: str, action: Action) -> None:
        """Run one transaction for a replica; a refusal changes nothing."""
        if isinstance(action, actions.ReportLog):
            version = action.facts.version
        elif isinstance(action, actions.ChangeInSync | actions.HandOver):
            version = action.version
        else:
            assert isinstance(
                action,
                actions.SuspectLeader
                | actions.RetractSuspicion
                | actions.Resign
                | actions.ConfirmEpoch
                | actions.RecordCommittedEnd,
            )
            version = action.seen
        caller = pb.ReplicaCall(kind=BROKER, log=self._wire.log, replica_id=who)
        caller.epoch, caller.version, caller.history = action.epoch, version.number, version.history
        known = (caller.history, caller.version)
        doubt = log_membership.newer_state_known(self._wire, who, action.epoch, *known)
        frozen = bool(self._wire.frozen)
        if doubt and not frozen:
            self._put(log_membership.frozen(self._wire, doubt))
        elif not frozen or isinstance(action, actions.ReportLog):
            try:
                self._put(self._decide(caller, action).state)
            except RockoonError:
                return

    def _decide(self, caller: pb.ReplicaCall, action: Action) -> LogDecision:
        state = self._wire
        match action:
            case actions.ReportLog():
                report = report_to_wire(action)
                if state.frozen:
                    return log_membership.report_frozen(state, caller, report)
                return elections.report(
                    state, caller, report, partial(missing_records, state, self.recorded)
                )
            case actions.RecordCommittedEnd(_, _, end):
                self.recorded = next_record(state, self.recorded, caller, end) or self.recorded
                return LogDecision(state, done=True)
            case actions.SuspectLeader():
                return elections.suspect(state, caller)
            case actions.RetractSuspicion():
                return elections.suspect(state, caller, retract=True)
            case actions.Resign():
                return elections.resign(state, caller)
            case actions.ConfirmEpoch():
                return elections.confirm(state, caller)
            case actions.ChangeInSync(config=config):
                voters = sorted(config.in_sync)
                return elections.change_in_sync(state, caller, voters, config.quorum)
            case actions.HandOver(successor=successor, rank=rank):
                told = pb.Rank(epoch=rank.epoch, end=rank.end)
                return elections.hand_over(state, caller, successor, told)
        raise AssertionError(action)

    def depose(self) -> None:
        """An operator starts an election."""
        if not self._wire.frozen:
            self._put(elections.elect(self._wire, 0, accept_loss=False).state)

    def assign(self, replica: str) -> None:
        """An empty replica registers."""
        if replica in self.state.replicas or self._wire.frozen:
            return
        node = Node(kind=BROKER, name=self._wire.log, store_id=replica, replica=replica)
        facts = FactsOnTheWire(empty=True, copies=self._wire.copies)
        known = {"is_new": True, "name_exists": True}
        self._put(log_membership.registered(self._wire, node, facts, **known))

    def come(self, replica: str, run: ProcessRun) -> None:
        """A replica registers a start of its process."""
        if replica in self.state.replicas:
            node = Node(kind=BROKER, name=self._wire.log, store_id=replica, replica=replica)
            facts = FactsOnTheWire(starts=run.starts, run=run.number)
            known = {"is_new": False, "name_exists": True}
            self._put(log_membership.registered(self._wire, node, facts, **known))

    def move(self, leaves: str, joins: str) -> None:
        """An operator requests a number of copies, and withdraws the former request."""
        asked = pb.Move(leaves=leaves, joins=joins)
        try:
            for former in list(self._wire.moves):
                self._put(log_membership.move(self._wire, former, withdraw=True).state)
            self._put(log_membership.move(self._wire, asked, withdraw=False).state)
        except RockoonError:
            return

    def set_copies(self, copies: int, stays: str | None) -> None:
        """An operator requests a change."""
        try:
            self._put(log_membership.set_copies(self._wire, copies, stays or "").state)
        except RockoonError:
            return

    def go_on_alone(self, who: str, facts: ReplicaFacts) -> bool:
        """A replica requests the log for itself; return whether it got it."""
        caller = pb.ReplicaCall(kind=BROKER, log=self._wire.log, replica_id=who)
        caller.epoch, caller.version = facts.promised, facts.version.number
        caller.history = facts.version.history
        known = (caller.history, caller.version)
        if self._wire.frozen or log_membership.newer_state_known(
            self._wire, who, caller.epoch, *known
        ):
            return False
        outcome = log_membership.go_on_alone(self._wire, caller)
        self._put(outcome.state)
        return outcome.done

    def come_back(self, who: str, copies: int) -> None:
        """The broker of a log of one copy is started as a replica."""
        node = Node(kind=BROKER, name=self._wire.log, store_id=who, replica=who)
        facts = FactsOnTheWire(copies=copies)
        if not self._wire.frozen and who in self.state.replicas:
            known = {"is_new": True, "name_exists": True}
            self._put(log_membership.registered(self._wire, node, facts, **known))

    def restore(self, past: LogState, *, frozen: bool) -> None:
        """Etcd is restored from a backup, and a nameserver detects that it went back."""
        assert frozen
        at = next(at for at, each in enumerate(self.past) if each is past)
        self._put(log_membership.frozen(self._past[at], "its revisions went back"))

    def adopt(self, _told: list[ReplicaFacts]) -> None:
        """An operator lets the log continue, with the reports of its replicas so far."""
        try:
            self._put(log_membership.adopt(self._wire, [], accept_loss=False).state)
        except RockoonError:
            return

    def adopt_by_name(self, told: list[ReplicaFacts]) -> None:
        """As `adopt`, with the newest known set of replicas, although some are lost."""
        newest = max(told, key=lambda facts: facts.version).config
        assert newest is not None
        try:
            adopted = log_membership.adopt(self._wire, sorted(newest.in_sync), accept_loss=True)
            self._put(adopted.state)
        except RockoonError:
            return
