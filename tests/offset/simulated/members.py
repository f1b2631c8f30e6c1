"""Operations of members in a simulated life: as the SDK makes them, and also others."""

from functools import partial
from pathlib import Path

from offset.simulated.account import LEASE_NS, Call, Holding, Member
from offset.simulated.driver import (
    GROUPS,
    KEPT_MAX,
    TOPICS,
    Driver,
)

from rockoon.allocation import STRATEGIES, allocate
from rockoon_core.errors import (
    Fenced,
    GroupNotFound,
    MemberIdTaken,
    OffsetBeyondEnd,
    RockoonError,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartPolicy
from rockoon_offset.members.membership import CLUSTERING
from rockoon_offset.progress.commits import CommitResult, Release
from rockoon_offset.progress.ledger import OffsetCommit
from rockoon_offset.progress.records import GroupMember as KnownMember
from rockoon_offset.start.resolver import ResolvedStart

MEMBERS_PER_GROUP_MAX = 6
STRATEGY_OF = dict(
    zip(GROUPS, ("AVG", "AVG_BY_CIRCLE", "STICKY", "CONSISTENT_HASH", "AVG"), strict=True)
)


class MemberDoings(Driver):
    """Members that join, leave, sleep, share queues, read and commit."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._instances = 0
        # Former commits, which are repeated later.
        self._old_commits: list[OffsetCommit] = []
        self._shares: dict[object, frozenset[MessageQueue]] = {}

    # Members.

    def _some_member(self) -> Member | None:
        members = self.witness.members
        member = members[self.chance.choice(tuple(members))] if members else None
        return member if member is not None and member.running else None

    def _do_join(self) -> None:
        group = self.chance.choice(tuple(GROUPS))
        member_id = f"m{self.chance.randrange(MEMBERS_PER_GROUP_MAX)}"
        known = self.witness.members.get((group, member_id))
        if known is not None and known.running:
            return
        # With the id of a member that is gone or sleeps: then this one never wakes.
        topics = TOPICS if self.chance.random() < 0.9 else TOPICS[:1]
        self._instances += 1
        known_group = self.world.view.groups.get(group)
        if known_group is None:
            return
        incarnation = known_group.incarnation
        member = Member(group, member_id, f"i{self._instances}", topics, incarnation)
        self.witness.members[group, member_id] = member
        self._heartbeat(member)

    def _do_leave(self) -> None:
        member = self._some_member()
        if member is None:
            return
        # It closes: it releases all queues, then leaves.
        self._let_go(member, list(member.owns))
        member.running, member.left = False, True
        if self.chance.random() < 0.9:
            self.service.groups.leave(member.group, member.member_id, member.instance)

    def _do_sleep(self) -> None:
        """Killed, or stopped and perhaps continued later."""
        if (member := self._some_member()) is not None:
            member.running = False

    def _do_wake(self) -> None:
        members = self.witness.members
        member = members[self.chance.choice(tuple(members))] if members else None
        if member is not None and not member.left:
            member.running = True

    def _do_stick(self) -> None:
        if (member := self._some_member()) is not None:
            member.stuck = not member.stuck

    def _do_heartbeat(self) -> None:
        if (member := self._some_member()) is not None:
            self._heartbeat(member)

    def _heartbeat(self, member: Member) -> None:
        now_ns, groups = self.world.now_ns, self.service.groups
        lapsed = member.heard_ns > 0 and now_ns - member.heard_ns > LEASE_NS
        subscriptions = tuple(sorted((topic, "*") for topic in member.topics))
        known = KnownMember(
            member.member_id,
            member.instance,
            CLUSTERING,
            subscriptions,
            "peer",
            0,
            group_incarnation=member.group_incarnation,
        )
        try:
            if groups.heartbeat(member.group, known):
                # A join gets its reply when it is durable.
                self.service.store.sync()
        except MemberIdTaken:
            return
        except GroupNotFound:
            # Its group was deleted; it starts again as another process.
            group = self.world.view.groups.get(member.group)
            exists = group is not None and group.incarnation == member.group_incarnation
            assert not exists, f"{member} is out of a group that exists"
            member.running, member.left = False, True
            member.owns.clear()
            return
        if lapsed:
            # Other members may have its queues by now.
            self._let_go(member, list(member.owns))
        member.heard_ns = now_ns
        member.topics_of = {
            lease.member.member_id: tuple(topic for topic, _ in lease.member.subscriptions)
            for lease in groups.membership.leases(member.group)
        }

    def _do_rebalance(self) -> None:
        member = self._some_member()
        if member is not None and member.heard_ns:
            if self.chance.random() < 0.7:
                member.revision = self.world.view.revision
            self._rebalance(member)

    def _rebalance(self, member: Member) -> None:
        view = self.world.at(member.revision)
        mine = self._share(member)
        lost = [
            queue
            for queue, held in member.owns.items()
            if queue not in mine or view.create_revision(queue) != held.create_revision
        ]
        if lost and not member.stuck:
            self._let_go(member, lost)
        gained = sorted(mine - member.owns.keys() - member.asking - member.leaving)
        if gained:
            self._resolve(member, gained)

    def _share(self, member: Member) -> frozenset[MessageQueue]:
        view = self.world.at(member.revision)
        key = (
            member.group,
            member.member_id,
            tuple(member.topics_of.items()),
            tuple(view.modified.get(topic, 0) for topic in TOPICS if topic in view.topics),
            tuple(view.topics),
        )
        found = self._shares.get(key)
        if found is None:
            queues = [MessageQueue(*queue) for topic in view.topics.values() for queue in topic]
            strategy = STRATEGIES[STRATEGY_OF[member.group]]
            share = allocate(strategy, member.member_id, member.topics_of, queues)
            found = frozenset(MessageQueue(q.topic, q.broker, q.queue_id) for q in share)
            if len(self._shares) > 10_000:
                self._shares.clear()
            self._shares[key] = found
        return found

    def _let_go(self, member: Member, queues: list[MessageQueue]) -> None:
        commits = {
            queue: OffsetCommit(
                member.group, queue, held.offset, held.epoch, member.member_id, "", force=False
            )
            for queue in queues
            if (held := member.owns.pop(queue, None)) is not None
        }
        member.leaving.update(queues)
        self._commit(Call("commit", member.group, member.member_id), commits, queues, member)

    def _resolve(self, member: Member, queues: list[MessageQueue]) -> None:
        member.asking.update(queues)
        view = self.world.at(member.revision)
        create_revisions = {queue: view.create_revision(queue) for queue in queues}
        call = Call("resolve", member.group, member.member_id)
        coroutine = self.service.resolver.resolve(
            member.group, member.member_id, queues, StartPolicy(), member.revision
        )
        self._call(call, coroutine, partial(self._resolved, member, create_revisions))

    def _resolved(
        self,
        member: Member,
        create_revisions: dict[MessageQueue, int | None],
        answers: dict[MessageQueue, ResolvedStart | RockoonError] | None,
    ) -> None:
        member.asking.difference_update(create_revisions)
        if answers is None or not member.running or self.chance.random() < 0.02:
            return
        for queue, create_revision in create_revisions.items():
            start = answers[queue]
            if isinstance(start, RockoonError):
                continue
            self.witness.started(member.group, queue, start.epoch)
            entry = self.witness.written.progress.get((member.group, queue))
            if entry is None or entry.epoch != start.epoch or entry.owner != member.member_id:
                # Another call overtook it; the next commit reports this.
                continue
            holding = Holding(
                start.epoch,
                start.decision.offset,
                create_revision or 0,
                entry.incarnation,
                entry.group_incarnation,
            )
            if member.in_lease(self.world.now_ns):
                self.witness.owns(member, queue, holding)
            member.owns[queue] = holding

    def _do_commit(self) -> None:
        if (member := self._some_member()) is not None:
            self._commit_all(member)

    def _commit_all(self, member: Member) -> None:
        if not member.owns:
            return
        commits: dict[MessageQueue, OffsetCommit] = {}
        for queue, held in member.owns.items():
            log = self.world.log(queue)
            if log is not None and self.world.view.create_revision(queue) == held.create_revision:
                ahead = max(0, log.max - held.offset)
                held.offset += self.chance.randint(0, min(20, ahead))
            force = self.chance.random() < 0.002
            back = self.chance.randrange(30) if force else 0
            commits[queue] = OffsetCommit(
                member.group,
                queue,
                max(0, held.offset - back),
                held.epoch,
                member.member_id,
                "",
                force,
            )
        if self.chance.random() < 0.05:
            kept = self.chance.choice(tuple(commits.values()))
            self._old_commits.append(kept)
            del self._old_commits[:-KEPT_MAX]
        self._commit(Call("commit", member.group, member.member_id), commits, [], member)

    def _do_commit_again(self) -> None:
        """An old commit, or one beyond the end, arrives."""
        if self._old_commits:
            commit = self.chance.choice(self._old_commits)
            if self.chance.random() < 0.2:
                commit = commit._replace(offset=commit.offset + self.chance.randrange(100))
            call = Call("commit", commit.group, commit.member_id)
            self._commit(call, {commit.queue: commit}, [])

    def _commit(
        self,
        call: Call,
        commits: dict[MessageQueue, OffsetCommit],
        releases: list[MessageQueue],
        member: Member | None = None,
    ) -> None:
        call.commits, call.releases = commits, frozenset(releases)
        coroutine = self.service.commits.commit(
            list(commits.values()),
            [Release(call.group, queue, call.member_id) for queue in releases],
        )
        self._call(call, coroutine, partial(self._committed, call, member))

    def _committed(
        self,
        call: Call,
        member: Member | None,
        outcomes: list[CommitResult] | None,
    ) -> None:
        if member is not None:
            member.leaving -= call.releases
        if outcomes is None:
            return
        for (queue, commit), outcome in zip(call.commits.items(), outcomes, strict=True):
            if outcome.error is None:
                self.witness.committed(call, queue, outcome.offset)
                continue
            self.witness.refused(call, queue)
            if member is not None and isinstance(outcome.error, Fenced | OffsetBeyondEnd):
                held = member.owns.get(queue)
                if held is not None and held.epoch == commit.epoch:
                    del member.owns[queue]

    def _do_outsider(self) -> None:
        """A reader outside membership asks for its start, and owns nothing."""
        queues = list(self.world.view.topics.get(self.chance.choice(TOPICS), {}))
        if queues:
            group = self.chance.choice(tuple(GROUPS))
            coroutine = self.service.resolver.resolve(group, "", queues, StartPolicy(), 0)
            self._call(Call("resolve", group), coroutine, lambda _: None)

    def _some_queue(self) -> MessageQueue | None:
        topic = self.chance.choice(TOPICS)
        queues = list(self.world.view.topics.get(topic, {}))
        return self.chance.choice(queues) if queues else None
