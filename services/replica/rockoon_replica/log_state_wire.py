"""Conversion of a log's state, and of a replica's report, from and to the wire."""

from rockoon_core.replication_rules import Config, Rank, Report
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_replica.actions import ReportLog
from rockoon_replica.log_state import (
    AcceptedLoss,
    CopiesWish,
    LogState,
    Move,
    ProcessRun,
    StateVersion,
)


def state_from_wire(message: pb.LogState) -> LogState:
    """Convert the state of a log that a nameserver sent."""
    return LogState(
        log=message.log,
        version=StateVersion(message.history, message.version),
        epoch=message.epoch,
        leader=message.leader or None,
        at_least=_rank(message.at_least),
        config=Config(frozenset(message.in_sync), message.quorum),
        replicas=tuple(each.replica_id for each in message.replicas),
        reports={
            who: Report(_rank(report.rank), report.sound, report.damaged)
            for who, report in message.reports.items()
        },
        copies=message.copies,
        wish=_wish(message.copies_wish),
        moves=tuple(Move(each.leaves, each.joins) for each in message.moves),
        confirmed=message.confirmed,
        vain_epochs=message.vain_epochs,
        loss=AcceptedLoss(message.loss_epoch, message.loss_end) if message.loss_epoch else None,
        frozen=bool(message.frozen),
        runs={each.replica_id: ProcessRun(each.starts, each.run) for each in message.replicas},
        held=message.held,
    )


def report_to_wire(action: ReportLog) -> pb.Report:
    """Convert a replica's report, for an election or for an operator."""
    rank, facts = action.report.rank, action.facts
    return pb.Report(
        rank=rank_to_wire(rank),
        sound=action.report.sound,
        damaged=action.report.damaged,
        promised=facts.promised,
        version=facts.version.number,
        history=facts.version.history,
        in_sync=sorted(facts.config.in_sync) if facts.config else (),
        quorum=facts.config.quorum if facts.config else 0,
    )


def rank_to_wire(rank: Rank) -> pb.Rank:
    return pb.Rank(epoch=rank.epoch, end=rank.end)


def _wish(message: pb.CopiesWish) -> CopiesWish | None:
    return CopiesWish(message.copies, message.stays or None) if message.copies else None


def _rank(message: pb.Rank) -> Rank:
    return Rank(message.epoch, message.end)
