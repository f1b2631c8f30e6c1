"""Broken rules: violations that a seed must find if a member, a node or the nameservers break
one."""

from collections.abc import Callable
from typing import Any

import pytest

from rockoon_core import replication_rules
from rockoon_core.replication_rules import Config
from rockoon_replica import copying, leadership, member
from rockoon_replica.actions import Acknowledge, RoundAgreed
from rockoon_replica.copying import Copying
from rockoon_replica.leadership import Leadership
from rockoon_replica.log import Generation
from rockoon_replica.member import Member
from rockoon_replica.messages import Ack

Patch = pytest.MonkeyPatch

# Rules that the world breaks, not the member.
OF_THE_WORLD = {
    "volatile_promise": "a restart forgets what was promised",
    "identity_by_name": "a replica on an empty disk is the one it was",
    "hand_over_unversioned": "a hand-over that was given up may come late",
    "operator_writes": "operators write the quorum themselves",
    "restored_unfrozen": "etcd is restored, and elections go on by what it says",
    "demotion_in_memory": "a deposed leader keeps what it knew of senders",
    "alone_unasked": "a copy is started as a broker of one, and asks nobody",
    "alone_in_its_epoch": "a copy becomes the only one in its epoch, and learners come again",
    "no_sequences": "a message that is sent again is stored again",
}
# The same, for logs on disks.
OF_STORES = {"own_topics": "a leader goes by the topics that it wrote down when it led last"}
# The same; too rare for seeds, so a script shows it (`test_damaged_end.py`).
OF_SCRIPTS = {"losses_unheard": "a log that ends before what it acknowledged changes nothing"}


def _no_checksum(patch: Patch) -> None:
    """Checksums of tails find many faults that epochs prevent, but too late or by luck."""
    for module in (copying, leadership):
        patch.setattr(module, "tail_size", lambda *_: 0)


def no_fence(patch: Patch) -> None:
    """A follower continues with a leader that it has promised to leave."""
    patch.setattr(Copying, "leave", lambda _: None)


def elect_first(patch: Patch) -> None:
    """The first replica that reports leads."""
    real = replication_rules.elected

    def first(config: Config, reports: Any, preference: Any = ()) -> str | None:
        voters = [who for who in reports if who in config.in_sync]
        return voters[0] if real(config, reports, preference) else None

    patch.setattr(replication_rules, "elected", first)


def elect_longest(patch: Patch) -> None:
    """The longest log leads, whatever its epochs."""
    real = replication_rules.elected

    def longest(config: Config, reports: Any, preference: Any = ()) -> str | None:
        voters = [who for who in reports if who in config.in_sync]
        if real(config, reports, preference) is None:
            return None
        return max(voters, key=lambda who: (reports[who].rank.end, who))

    patch.setattr(replication_rules, "elected", longest)


def small_election(patch: Patch) -> None:
    """An election counts one voter fewer."""
    real = replication_rules.election_size
    patch.setattr(replication_rules, "election_size", lambda config: max(1, real(config) - 1))


def no_epoch_record(patch: Patch) -> None:
    """Records of older epochs are committed by counting, before the epoch has a record there."""
    patch.setattr(Leadership, "epoch_start", lambda _: -1)


def truncate_to_committed(patch: Patch) -> None:
    """A follower truncates its log to its known committed end."""
    _no_checksum(patch)
    real = Copying.welcome

    def welcome(self: Copying, session: int, said: Any) -> bool:
        log = self._log
        if said.truncate_to is not None and log.end > log.min_offset:
            said = said._replace(truncate_to=max(log.committed_end, log.min_offset))
        return real(self, session, said)

    patch.setattr(Copying, "welcome", welcome)


def no_truncation(patch: Patch) -> None:
    """A follower continues after its own end."""
    _no_checksum(patch)
    patch.setattr(Leadership, "_matching", lambda self, hello: max(hello.end, self._log.min_offset))


def config_old_only(patch: Patch) -> None:
    """During a change of the voters, the old ones decide."""
    real = leadership.committed_end
    patch.setattr(
        leadership, "committed_end", lambda configs, *rest: real(list(configs)[:1], *rest)
    )


def config_new_only(patch: Patch) -> None:
    """During a change of the voters, the new ones decide."""
    real = leadership.committed_end
    patch.setattr(
        leadership, "committed_end", lambda configs, *rest: real(list(configs)[-1:], *rest)
    )


def config_given_up(patch: Patch) -> None:
    """A change without a reply counts as not made."""
    real = Leadership.repeat

    def repeat(self: Leadership) -> None:
        if self._change is not None:
            self._configs, self._change = self._configs[:1], None
        real(self)

    patch.setattr(Leadership, "repeat", repeat)


def propose_lagging(patch: Patch) -> None:
    """Voters are proposed that may lack committed records."""
    patch.setattr(leadership, "may_propose", lambda *_: True)


def unsound_counts(patch: Patch) -> None:
    """A replica that lost acknowledged records counts in elections."""
    real = member.Report
    patch.setattr(
        member, "Report", lambda rank, _sound, damaged: real(rank, sound=True, damaged=damaged)
    )


def damaged_may_win(patch: Patch) -> None:
    """A damaged copy may win an election among equals."""
    real = replication_rules.elected

    def elected(config: Config, reports: Any, preference: Any = ()) -> str | None:
        told = {who: report._replace(damaged=False) for who, report in reports.items()}
        return real(config, told, preference)

    patch.setattr(replication_rules, "elected", elected)


def leading_repairs(patch: Patch) -> None:
    """Leadership clears the damage of a copy."""
    real = Member.handle

    def handle(self: Member, event: Any) -> Any:
        decided = real(self, event)
        if self.epoch and self.facts.damaged:
            self._persist(damaged=())
            decided = [*decided, *self._out]
            self._out.clear()
        return decided

    patch.setattr(Member, "handle", handle)


def ack_unsynced(patch: Patch) -> None:
    """Written records are acknowledged as durable."""

    def acknowledge(self: Copying, number: int) -> None:
        assert self._session is not None
        self._acked = Ack(self._log.end, max(number, self._acked.round))
        self._out.append(Acknowledge(self._session, self._acked))

    patch.setattr(Copying, "_acknowledge", acknowledge)


def commit_unsynced(patch: Patch) -> None:
    """A leader counts its own written records."""
    patch.setattr(
        Leadership,
        "_durable_ends",
        lambda self: {**self._ends, self._replica: self._log.end},
    )


def resumed_leader(patch: Patch) -> None:
    """A leader that restarts continues in its epoch."""
    real = Member._lead

    def lead(self: Member, *arguments: Any) -> None:
        self.facts = self.facts._replace(alone=True)
        real(self, *arguments)

    patch.setattr(Member, "_lead", lead)


def alone_for_ever(patch: Patch) -> None:
    """A leader that was the only voter still assumes that it is."""
    real = Member._persist

    def persist(self: Member, **changes: Any) -> None:
        if changes != {"alone": False}:
            real(self, **changes)

    patch.setattr(Member, "_persist", persist)


def early_hand_over(patch: Patch) -> None:
    """Leadership is handed over to a replica without the whole log."""
    real = Leadership._hand_over

    def hand_over(self: Leadership, committed: int) -> None:
        kept = self._ends
        self._ends = dict.fromkeys(kept, self._log.end)
        real(self, self._log.end)
        self._ends = kept

    patch.setattr(Leadership, "_hand_over", hand_over)
    patch.setattr(member, "rank_of", lambda *_: replication_rules.Rank(1 << 30, 0))


def hand_over_resumes(patch: Patch) -> None:
    """A leader that stopped waiting appends again, and its hand-over may come late."""

    def abandon_hand_over(self: Leadership) -> None:
        self._leaving = None
        self.advance()

    patch.setattr(Leadership, "abandon_hand_over", abandon_hand_over)


def unchecked_read(patch: Patch) -> None:
    """A leader replies from memory, without a confirmation that it still leads."""

    def ask(self: Leadership) -> None:
        self.round += 1
        self._out.append(RoundAgreed(self.round))

    patch.setattr(Leadership, "ask_round", ask)


def cut_all(patch: Patch) -> None:
    """Without a common epoch, a follower begins at 0."""
    real = Leadership._matching
    patch.setattr(Leadership, "_matching", lambda self, hello: real(self, hello) or 0)


def deletes_as_the_leader(patch: Patch) -> None:
    """Files that the leader has deleted are deleted, while only its own disk has its generation."""
    real = Copying.chunk

    def chunk(self: Copying, session: int, said: Any) -> None:
        real(self, session, said._replace(generation=self._log.generation.identity))
        self.leader_generation = said.generation

    patch.setattr(Copying, "chunk", chunk)


def joins_without_files(patch: Patch) -> None:
    """A replica that begins after deleted records votes without the leader's generation."""
    patch.setattr(Generation, "is_lacking", False)
    real = Copying.welcome

    def welcome(self: Copying, session: int, said: Any) -> bool:
        return real(self, session, said._replace(generation_end=0))

    patch.setattr(Copying, "welcome", welcome)


def old_disk_counts(patch: Patch) -> None:
    """A replica whose disk was restored from a snapshot counts as the same replica."""

    def knows(self: Member, _state: Any) -> bool:
        if not self.facts.run_seen:
            self._persist(run_seen=True)
        return True

    patch.setattr(Member, "_knows_run", knows)


BROKEN: dict[str, Callable[[Patch], None]] = {
    each.__name__: each
    for each in (
        no_fence,
        elect_first,
        elect_longest,
        small_election,
        no_epoch_record,
        truncate_to_committed,
        no_truncation,
        config_old_only,
        config_new_only,
        config_given_up,
        propose_lagging,
        unsound_counts,
        damaged_may_win,
        leading_repairs,
        ack_unsynced,
        commit_unsynced,
        resumed_leader,
        alone_for_ever,
        early_hand_over,
        hand_over_resumes,
        unchecked_read,
        cut_all,
        deletes_as_the_leader,
        joins_without_files,
        old_disk_counts,
    )
}
# Shown only by runs with flipped bits.
OF_FLIPS = frozenset(("damaged_may_win", "leading_repairs"))
# Shown only by runs in which leaders make generations.
OF_GENERATIONS = frozenset(("deletes_as_the_leader", "joins_without_files"))
# Shown only by runs in which a disk is restored from an older snapshot.
OF_OLD_DISKS = frozenset(("old_disk_counts",))
NAMES = (*BROKEN, *OF_THE_WORLD, *OF_STORES)
