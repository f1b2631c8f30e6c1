"""Conversion of a log's state, and of a replica's report, from and to the wire."""

from rockoon_core.replication_rules import Config, Rank, Report
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_replica.actions import ReportLog
from rockoon_replica.log_state import CopiesWish, LogState, Loss, Move, Run, Version


def state_from_wire(told: pb.LogState) -> LogState:
    """Convert the state of a log that a nameserver sent."""
    return LogState(
        log=told.log,
        version=Version(told.history, told.version),
        epoch=told.epoch,
        leader=told.leader or None,
        at_least=_rank(told.at_least),
        config=Config(frozenset(told.in_sync), told.quorum),
        replicas=tuple(each.replica_id for each in told.replicas),
        reports={
            who: Report(_rank(report.rank), report.sound, report.damaged)
            for who, report in told.reports.items()
        },
        copies=told.copies,
        wish=_wish(told.copies_wish),
        moves=tuple(Move(each.leaves, each.joins) for each in told.moves),
        confirmed=told.confirmed,
        vain_epochs=told.vain_epochs,
        loss=Loss(told.loss_epoch, told.loss_end) if told.loss_epoch else None,
        frozen=bool(told.frozen),
        runs={each.replica_id: Run(each.starts, each.run) for each in told.replicas},
        held=told.held,
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


def _wish(told: pb.CopiesWish) -> CopiesWish | None:
    return CopiesWish(told.copies, told.stays or None) if told.copies else None


def _rank(told: pb.Rank) -> Rank:
    return Rank(told.epoch, told.end)
