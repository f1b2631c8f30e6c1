"""The nameservers of one log, in memory: a state that changes by compare-and-swap."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rockoon_core.errors import NameserverUnavailable
from rockoon_core.replication_rules import Config, Rank, Report, elected, election_size
from rockoon_replica import actions
from rockoon_replica.log_state import LogState, StateVersion
from rockoon_replica.replica import LogStateCall


class FakeRegister:
    """Holds a log's state, and sends it to its watchers.

    Args:
        log: name of the log.
        replicas: ids; all of them vote, a majority of them commits.

    Attributes:
        state: as etcd stores it.
        unreachable: ids of replicas that get no reply and no update from any nameserver.
        calls: all calls, with the id of the caller.
        lost: types of calls to which the next nameserver does not reply, once each.
    """

    def __init__(self, log: str, replicas: tuple[str, ...]) -> None:
        config = Config(frozenset(replicas), len(replicas) // 2 + 1)
        self.state = LogState(
            log=log,
            version=StateVersion(1, 1),
            epoch=1,
            leader=None,
            at_least=Rank(0, 0),
            config=config,
            replicas=replicas,
            copies=len(replicas),
        )
        self.suspects: set[str] = set()
        self.unreachable: set[str] = set()
        self.watchers: dict[str, Callable[[LogState], None]] = {}
        self.calls: list[tuple[str, LogStateCall]] = []
        self.lost: list[type[LogStateCall]] = []

    def watch(self, who: str, tell: Callable[[LogState], None]) -> None:
        self.watchers[who] = tell
        if who not in self.unreachable:
            tell(self.state)

    def reconnect(self, who: str) -> None:
        self.unreachable.discard(who)
        self.watchers[who](self.state)

    def of(self, who: str) -> "RegisterOf":
        return RegisterOf(self, who)

    def change(self, **values: Any) -> None:
        version = self.state.version
        version = version._replace(number=version.number + 1)
        self.state = replace(self.state, version=version, **values)
        for who, tell in list(self.watchers.items()):
            if who not in self.unreachable:
                tell(self.state)

    def depose(self) -> None:
        self.suspects.clear()
        vain = 0 if self.state.confirmed else self.state.vain_epochs + 1
        self.change(
            epoch=self.state.epoch + 1, leader=None, reports={}, confirmed=False, vain_epochs=vain
        )

    def asked(self, who: str, call: LogStateCall) -> None:
        self.calls.append((who, call))
        state = self.state
        match call:
            case actions.ReportLog(epoch, report):
                if epoch == state.epoch and state.leader is None:
                    self._report(who, report)
            case actions.SuspectLeader(epoch):
                if epoch == state.epoch and state.leader is not None:
                    self.suspects.add(who)
                    if len(self.suspects & state.config.in_sync) >= election_size(state.config):
                        self.depose()
            case actions.RetractSuspicion(epoch):
                if epoch == state.epoch:
                    self.suspects.discard(who)
            case actions.ConfirmEpoch(epoch):
                if (epoch, who) == (state.epoch, state.leader) and not state.confirmed:
                    self.change(confirmed=True, vain_epochs=0)
            case actions.Resign(epoch):
                if (epoch, who) == (state.epoch, state.leader):
                    self.depose()
            case actions.ChangeInSync(_, version, config):
                if (version, who) == (state.version, state.leader):
                    self.change(config=config)
            case actions.HandOver(epoch, version, successor, rank):
                if (version, who) == (state.version, state.leader):
                    self.suspects.clear()
                    self.change(
                        epoch=epoch + 1,
                        leader=successor,
                        at_least=rank,
                        reports={},
                        confirmed=False,
                    )

    def _report(self, who: str, report: Report) -> None:
        reports = {**self.state.reports, who: report}
        leader = elected(self.state.config, reports, self.state.replicas)
        rank = reports[leader].rank if leader is not None else self.state.at_least
        self.change(reports=reports, leader=leader, at_least=rank)


class RegisterOf:
    """Calls of one replica."""

    def __init__(self, register: FakeRegister, who: str) -> None:
        self._register = register
        self._who = who

    async def ask(self, call: LogStateCall) -> LogState | None:
        if self._who in self._register.unreachable:
            raise NameserverUnavailable(address="nowhere")
        if type(call) in self._register.lost:
            self._register.lost.remove(type(call))
            raise NameserverUnavailable(address="nowhere")
        self._register.asked(self._who, call)
        return self._register.state
