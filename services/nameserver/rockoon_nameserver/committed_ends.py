"""Committed ends: how far leaders recorded their log as committed, and the check of elections.

Pure. Committed records are on a quorum of the voters, and each set of voters that elects a leader
overlaps each quorum. So the winner of a regular election has at least the recorded end, in the
recorded epoch or a later one. A winner with less shows that voters lost acknowledged records
without detecting it, for example because a disk was restored from an older snapshot.

A record is valid for the losses that operators had accepted when it was written: after another
accepted loss, the log may end before it.
"""

from typing import NamedTuple

from rockoon_nameserver.elections import leads
from rockoon_proto.v1.logs_pb2 import LogState, Rank, ReplicaCall


class CommittedEnd(NamedTuple):
    """A log's committed end.

    Attributes:
        epoch: of the leader that recorded it.
        end: position in the log.
        losses: `LogState.losses` at that time.
    """

    epoch: int
    end: int
    losses: int


def next_record(
    state: LogState, before: CommittedEnd | None, caller: ReplicaCall, end: int
) -> CommittedEnd | None:
    """Return the record to write for a leader's call; None if it changes nothing.

    Args:
        state: of the log.
        before: the record so far; None: there is none.
        caller: the replica that calls as the leader, with its epoch.
        end: position up to which its log is committed.
    """
    if not leads(state, caller) or state.frozen or end <= 0:
        return None
    record = CommittedEnd(caller.epoch, end, state.losses)
    if before is not None and before.losses == state.losses:
        # Both ends were committed.
        record = record._replace(end=max(before.end, end))
    return None if record == before else record


def missing_records(state: LogState, record: CommittedEnd | None, winner: str, rank: Rank) -> str:
    """Return why the winner of an election must not lead: its log ends before the committed end.
    Empty if it may lead.

    Args:
        state: of the log, with the winner among its replicas.
        record: the committed end; None: no leader has recorded one.
        winner, rank: id and rank of the best replica that reported.
    """
    if record is None or record.losses != state.losses:
        return ""
    if rank.epoch >= record.epoch and rank.end >= record.end:
        return ""
    names = {each.replica_id: each.name for each in state.replicas}
    return (
        f"of the replicas that reported, {names.get(winner) or winner} has the most records: up to "
        f"{rank.end} in epoch {rank.epoch}. But the log was committed up to {record.end} in epoch "
        f"{record.epoch}, as its leader recorded: acknowledged records are missing"
    )
