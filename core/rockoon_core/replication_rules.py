"""Rules of a log with several copies. Pure: no clock, no network, no disk.

Nameservers and replicas decide by the same functions; `docs/understand/replication.md` has the
reasons.

Why it is safe, in one sentence: every set of replicas that commits meets every set that elects
(`election_size`), a replica that takes part in an election takes nothing from earlier leaders any
more (its promise), and the one with the highest `Rank` leads.

Positions are opaque integers that grow by the bytes of the records: streams count them as such. A
replica is known by its id, which is the id of its store: an emptied disk is another replica.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Boundary(NamedTuple):
    """One epoch in a log: its first position, and the end of its last record.

    `first` is what the epoch began with, also where retention has deleted that.
    """

    epoch: int
    first: int
    end: int


class Rank(NamedTuple):
    """Order of logs: the epoch of the last record, then the end. The epoch is not one heard of."""

    epoch: int
    end: int


class Report(NamedTuple):
    """A replica's report in an election, sent after its promise.

    Attributes:
        rank: of its durable records.
        sound: all records that it ever acknowledged are among them.
        damaged: the bytes of some record are proven wrong and were not rewritten yet. The rank is
            still right: no record is missing in a damaged log.
    """

    rank: Rank
    sound: bool
    damaged: bool = False


class Config(NamedTuple):
    """The replicas that vote (the in-sync set), and how many of them make a record committed."""

    in_sync: frozenset[str]
    quorum: int


def quorum_of(size: int, min_in_sync: int) -> int:
    """How many of `size` voters make a record committed."""
    return max(min_in_sync, size // 2 + 1)


def election_size(config: Config) -> int:
    """How many voters an election takes, so that one of them has each committed record."""
    return len(config.in_sync) - config.quorum + 1


def rank_of(boundaries: Sequence[Boundary], end: int) -> Rank:
    """Rank of a log's records up to a position.

    Args:
        boundaries: of the whole log, in its order.
        end: where the records that count end, for example those that are durable.
    """
    epochs = [each.epoch for each in boundaries if each.first < end]
    return Rank(epochs[-1] if epochs else 0, end)


def elected(
    config: Config, reports: Mapping[str, Report], preference: Sequence[str] = ()
) -> str | None:
    """The replica that leads, None while too few have reported.

    A replica that may lack records it acknowledged does not count towards the size. If all voters
    have reported, the election ends without them.

    The rank decides first: a replica with a higher rank may alone hold acknowledged records, even
    if one of its records is damaged. Among equal ranks an undamaged replica wins, then a sound one,
    then the preferred one.

    Args:
        config: the current one; replicas outside it do not count.
        reports: of this election's epoch.
        preference: among equals, the earlier the better; replicas outside it come last.
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
    """How far a follower's log is the leader's: by epochs, never by what was heard to be committed.

    Args:
        leader, follower: boundaries of their logs; the oldest may be missing.

    Returns:
        0 where all their epochs are known and they have none in common: one of them is of a first
        leader that nobody followed. None where they have none in common that is known: nothing says
        that a single record is the same. So too where some of the follower's epoch 0 would be cut,
        which is of a time with one copy and was committed whole.
    """
    ends = {(each.epoch, each.first): each.end for each in leader}
    for each in reversed(follower):
        if (each.epoch, each.first) in ends:
            end = ends[each.epoch, each.first]
            return min(each.end, end) if each.epoch or each.end <= end else None
    both_whole = leader and follower and leader[0].first == follower[0].first == 0
    return 0 if both_whole and follower[0].epoch else None


def common_end(one: Sequence[Boundary], other: Sequence[Boundary]) -> int:
    """Up to where two logs have the same records, by their epochs; 0 where nothing says so."""
    ends = {(each.epoch, each.first): each.end for each in one}
    same = (each for each in other if (each.epoch, each.first) in ends)
    return max((min(each.end, ends[each.epoch, each.first]) for each in same), default=0)


def quorum_end(config: Config, ends: Mapping[str, int]) -> int:
    """The end that `quorum` of the voters have reached; who is not in `ends` has nothing.

    Rounds of questions (`Ack.round`) are counted alike.
    """
    reached = sorted((ends.get(who, 0) for who in config.in_sync), reverse=True)
    return reached[config.quorum - 1]


def committed_end(
    configs: Collection[Config], ends: Mapping[str, int], epoch_start: int, before: int
) -> int:
    """How far the log is committed.

    Args:
        configs: every configuration that may be in force: while a change is on its way to the
            nameservers, or its answer is lost, the old one and the new one.
        ends: durable end of each replica that has matched this leader in this epoch, with its own.
        epoch_start: of the record that opened the epoch. Until that one is committed nothing is
            (Raft, figure 8).
        before: how far was known before; it never goes back.
    """
    agreed = min(quorum_end(config, ends) for config in configs)
    return max(before, agreed) if agreed > epoch_start else before


def may_propose(config: Config, ends: Mapping[str, int], committed: int, epoch_start: int) -> bool:
    """Whether a leader may propose another configuration.

    As many of its voters as commit must have everything that may be committed: what this leader has
    committed, and all before its epoch with the record that opened it. It need not have committed
    anything: a leader whose voters are gone for good has to replace them first.
    """
    return quorum_end(config, ends) >= max(committed, epoch_start + 1)
