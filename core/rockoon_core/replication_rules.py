"""Rules of a replicated log. Pure: no clock, no network, no disk.

Nameservers and replicas decide by the same functions; `docs/understand/replication.md` has the
reasons.

Why this is safe: each set of replicas that commits overlaps each set that elects
(`election_size`), a replica that votes accepts no more records from earlier leaders (its promise),
and the replica with the highest `Rank` leads.

Positions are integers that grow by the bytes of the records. The id of a replica is the id of its
store: if the disk of a replica was emptied, it is a new replica.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Boundary(NamedTuple):
    """One epoch in a log: the position of its first record, and the end of its last record.

    `first` is the epoch's original position, even if retention has deleted the record there.
    """

    epoch: int
    first: int
    end: int


class Rank(NamedTuple):
    """Order of logs in an election: epoch of the last record, then the end. Promised epochs do not
    count."""

    epoch: int
    end: int


class Report(NamedTuple):
    """A replica's report in an election, sent after its promise.

    Attributes:
        rank: rank of the replica's durable records.
        sound: the replica has all records that it ever acknowledged.
        damaged: the bytes of some record are proven wrong and were not rewritten yet. The rank is
            still right: a damaged log lacks no record.
    """

    rank: Rank
    sound: bool
    damaged: bool = False


class Config(NamedTuple):
    """Configuration of a log: the replicas that vote (the in-sync set), and how many voters commit
    a record."""

    in_sync: frozenset[str]
    quorum: int


def quorum_of(size: int, min_in_sync: int) -> int:
    """Return the number of `size` voters that commits a record."""
    return max(min_in_sync, size // 2 + 1)


def election_size(config: Config) -> int:
    """Return the number of voters that an election needs, so that each committed record is in the
    log of at least one voter."""
    return len(config.in_sync) - config.quorum + 1


def rank_of(boundaries: Sequence[Boundary], end: int) -> Rank:
    """Return the rank of a log, counting only its records up to a position.

    Args:
        boundaries: epochs of the whole log, in order.
        end: end of the records that count, for example the durable end.
    """
    epochs = [each.epoch for each in boundaries if each.first < end]
    return Rank(epochs[-1] if epochs else 0, end)


def elected(
    config: Config, reports: Mapping[str, Report], preference: Sequence[str] = ()
) -> str | None:
    """Return the replica that leads; None while too few have reported.

    A replica that may lack acknowledged records does not count towards the size of the election. If
    all voters have reported, this size is not required.

    The rank decides first: a replica with a higher rank may be the only one with some acknowledged
    records, even if one of its records is damaged. Among equal ranks an undamaged replica wins,
    then a sound one, then the preferred one.

    Args:
        config: the current one; replicas outside it do not count.
        reports: reports of this election's epoch.
        preference: for equal ranks, the earlier wins; replicas outside it come last.
    """
    voters = {who: report for who, report in reports.items() if who in config.in_sync}
    sound = sum(report.sound for report in voters.values())
    if not voters or (sound < election_size(config) and len(voters) < len(config.in_sync)):
        return None
    place = {who: -at for at, who in enumerate(preference)}
    last = -len(preference)

    def order(who: str) -> tuple[Rank, bool, bool, int, str]:
        report = voters[who]
        return report.rank, not report.damaged, report.sound, place.get(who, last), who

    return max(voters, key=order)


def consistent_point(leader: Sequence[Boundary], follower: Sequence[Boundary]) -> int | None:
    """Return the end of the records that the logs of a leader and a follower share, by epochs.

    Args:
        leader, follower: boundaries of their logs; the oldest may be missing.

    Returns:
        The end of the last common epoch, in the log in which this epoch ends first.
        0: no epoch is common, and both logs have all their epochs. One log belongs to a first
        leader without followers.
        None: no record is known to be common, because old epochs are missing. Also None if the
        follower would have to cut records of its epoch 0: they were committed as the only copy.
    """
    ends = {(each.epoch, each.first): each.end for each in leader}
    for each in reversed(follower):
        if (each.epoch, each.first) in ends:
            end = ends[each.epoch, each.first]
            return min(each.end, end) if each.epoch or each.end <= end else None
    both_whole = leader and follower and leader[0].first == follower[0].first == 0
    return 0 if both_whole and follower[0].epoch else None


def common_end(one: Sequence[Boundary], other: Sequence[Boundary]) -> int:
    """Return the end of the records that two logs have in common, by their epochs; 0 if unknown."""
    ends = {(each.epoch, each.first): each.end for each in one}
    same = (each for each in other if (each.epoch, each.first) in ends)
    return max((min(each.end, ends[each.epoch, each.first]) for each in same), default=0)


def quorum_end(config: Config, ends: Mapping[str, int]) -> int:
    """Return the end that `quorum` voters have reached; a voter missing in `ends` has 0.

    Rounds (`Ack.round`) are counted the same way.
    """
    reached = sorted((ends.get(who, 0) for who in config.in_sync), reverse=True)
    return reached[config.quorum - 1]


def committed_end(
    configs: Collection[Config], ends: Mapping[str, int], epoch_start: int, before: int
) -> int:
    """Return the end of the committed records.

    Args:
        configs: each configuration that may be valid: while a change is requested from the
            nameservers, or its reply is lost, the old one and the new one.
        ends: durable end of each replica that has matched this leader in this epoch, and its own.
        epoch_start: start of the first record of the leader's epoch. Earlier records are only
            committed together with this record (Raft, figure 8).
        before: the former result; it never decreases.
    """
    agreed = min(quorum_end(config, ends) for config in configs)
    return max(before, agreed) if agreed > epoch_start else before


def may_propose(config: Config, ends: Mapping[str, int], committed: int, epoch_start: int) -> bool:
    """Return whether a leader may propose another configuration.

    A quorum of the voters must have all records that may be committed: the records that this leader
    has committed, all records of earlier epochs, and the first record of this epoch. The leader
    need not have committed a record: if voters are lost permanently, it must first replace them.
    """
    return quorum_end(config, ends) >= max(committed, epoch_start + 1)
