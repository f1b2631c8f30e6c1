"""A cluster's life, drawn by chance: members, operators, brokers, crashes around an offset service.

One seed gives one life, operation by operation. The service's coroutines are driven by hand: one
that would wait gives way, and chance decides what happens before it goes on. So an answer of a
broker can be old when it arrives, a commit overtake a reset, a crash cut anything in two.
"""

import random
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from offset.simulated.service import HANDOVER_SECONDS, HEARTBEAT_SECONDS, LEASE_SECONDS, Service
from offset.simulated.witness import LEASE_NS, Call, Holding, Member, Witness
from offset.simulated.world import SECOND_NS, World

from rockoon.allocation import STRATEGIES, allocate
from rockoon.message import MessageQueue
from rockoon_offset.commits import Outcome, Release
from rockoon_offset.ledger import Commit
from rockoon_offset.membership import CLUSTERING
from rockoon_offset.queues import Queue
from rockoon_offset.records import Member as KnownMember
from rockoon_offset.resets import Target, TargetKind
from rockoon_offset.resolver import Start
from rockoon_offset.start_position import QueueState, StartPolicy
from rockoon_proto.errors import (
    Fenced,
    GroupNotFound,
    InvalidOffset,
    MemberIdTaken,
    OffsetBeyondEnd,
    RockoonError,
)
from rockoon_proto.v1 import nameserver_pb2 as ns

BROKERS = ("broker-a", "broker-b", "broker-c")
TOPICS = ("orders", "payments", "%RETRY%first")
QUEUES_PER_TOPIC_MAX = 14
MEMBERS_PER_GROUP_MAX = 6
CALLS_MAX = 40
KEPT_MAX = 50
HISTORY_MAX = 400
CALM_EVERY = 4000

GROUPS = {
    "first": ns.GroupConfig(
        name="first", start_policy=ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    ),
    "last": ns.GroupConfig(name="last", above_max=ns.OUT_OF_RANGE_FIRST),
    "timestamp": ns.GroupConfig(
        name="timestamp",
        start_policy=ns.StartPolicy(
            consume_from=ns.CONSUME_FROM_TIMESTAMP, timestamp_ms=1_700_000_100_000
        ),
        below_min=ns.OUT_OF_RANGE_LAST,
    ),
    "classic": ns.GroupConfig(name="classic", new_queue_rule=ns.CLASSIC),
    "failing": ns.GroupConfig(
        name="failing", below_min=ns.OUT_OF_RANGE_FAIL, above_max=ns.OUT_OF_RANGE_FAIL
    ),
}
STRATEGY_OF = dict(
    zip(GROUPS, ("AVG", "AVG_BY_CIRCLE", "STICKY", "CONSISTENT_HASH", "AVG"), strict=True)
)


class Simulation:
    """One life.

    Args:
        seed: of all that chance decides.
        directory: for the journal's files; empty.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.operations = 0
        self.world = World(self.chance)
        self.witness = Witness(self.world)
        self.counts: dict[str, int] = {}
        self._directory = directory
        self._calls: list[Call] = []
        self._instances = 0
        # Commits made before, and resets planned or applied: to be repeated out of turn.
        self._old_commits: list[Commit] = []
        self._resets: list[tuple[str, str]] = []
        self._shares: dict[object, frozenset[Queue]] = {}
        for topic in TOPICS:
            self.world.add_queues(topic, BROKERS[0], 3)
        for config in GROUPS.values():
            self.world.set_group(config)
        self.service = self._start_service(lag=0)

    # One life.

    def run(self, operations: int) -> None:
        """Do so many operations; what does not hold raises AssertionError."""
        for _ in range(operations):
            (name,) = self.chance.choices(NAMES, cum_weights=WEIGHTS)
            self.operations += 1
            self.counts[name] = self.counts.get(name, 0) + 1
            getattr(self, "_do_" + name)()
            self._let_calls_go_on()
            if self.operations % CALM_EVERY == 0:
                self._calm_down()
        self._calm_down()

    def _let_calls_go_on(self) -> None:
        chance = self.chance
        if chance.random() < 0.5:
            self.service.store.sync()
        if self._calls:
            for _ in range(chance.randrange(4)):
                if self._calls:
                    self._step(chance.choice(self._calls))
            if len(self._calls) > CALLS_MAX:
                self._finish_calls()

    def _step(self, call: Call) -> None:
        self.witness.cause = call
        assert call.coroutine is not None
        try:
            call.coroutine.send(None)
        except StopIteration as end:
            self._calls.remove(call)
            call.on_done(end.value)
        except RockoonError:
            self._calls.remove(call)
            call.on_done(None)
        finally:
            self.witness.cause = None

    def _finish_calls(self) -> None:
        while self._calls:
            self.service.store.sync()
            for call in list(self._calls):
                self._step(call)
            # Some wait for routes, for a bounded time.
            self.world.advance(SECOND_NS // 20)

    def _call(
        self, call: Call, coroutine: Coroutine[Any, Any, Any], on_done: Callable[..., None]
    ) -> None:
        call.coroutine, call.on_done = coroutine, on_done
        self._calls.append(call)
        self._step(call)

    # The service's life.

    def _start_service(self, lag: int) -> Service:
        views = self.world.history
        self.witness.told_view = views[max(0, len(views) - 1 - lag)]
        service = Service(
            self.world,
            self._directory,
            self.witness.told_view,
            self._written,
            self.witness.on_durable,
            self._told,
            self.witness.asks,
        )
        return service

    def _written(self, records: list[Any]) -> None:
        self.witness.on_written(records)

    def _told(self, queue: Queue, state: QueueState) -> None:
        self.witness.told(queue, state)

    def _do_crash(self) -> None:
        self.service.store.crash(self.chance)
        for call in self._calls:
            assert call.coroutine is not None
            call.coroutine.close()
        calls, self._calls = self._calls, []
        for call in calls:
            call.on_done(None)
        self.witness.crashed()
        # The nameserver that it asks first may lag behind what it knew before.
        lag = 0 if self.chance.random() < 0.5 else int(self.chance.expovariate(0.1))
        self.service = self._start_service(lag)

    def _do_pass_time(self) -> None:
        self.service.groups.pass_time()

    def _do_routes(self) -> None:
        history, told = self.world.history, self.witness.told_view.revision
        behind = history[-1].revision - told
        if behind > 0:
            view = self.world.at(told + self.chance.randint(1, behind))
            self.witness.told_view = view
            self.service.follow(view, from_nothing=self.chance.random() < 0.1)
        self.world.forget_history(history[-1].revision - HISTORY_MAX)

    # Time.

    def _do_advance(self) -> None:
        seconds = self.chance.choice((0.001, 0.05, 0.3, 1.0, 3.0))
        self.world.advance(round(seconds * SECOND_NS))
        if self.chance.random() < 0.3:
            self.service.groups.pass_time()

    def _do_long_pause(self) -> None:
        """The whole machine slept: every lease is over, and nobody was there to see it."""
        self.world.advance(round(self.chance.uniform(1, 60) * SECOND_NS))

    def _do_wall_jump(self) -> None:
        self.world.wall_ms += self.chance.randint(-3_600_000, 3_600_000)

    # etcd and the brokers.

    def _do_append(self) -> None:
        topic = self.chance.choice(TOPICS)
        for queue, birth in self.world.view.topics.get(topic, {}).items():
            self.world.logs[queue, birth].append(self.chance.randrange(30))

    def _some_queue(self) -> Queue | None:
        topic = self.chance.choice(TOPICS)
        queues = list(self.world.view.topics.get(topic, {}))
        return self.chance.choice(queues) if queues else None

    def _do_retention(self) -> None:
        queue = self._some_queue()
        if queue is not None and (log := self.world.log(queue)) is not None:
            log.min += self.chance.randint(0, log.max - log.min)

    def _do_lose_tail(self) -> None:
        queue = self._some_queue()
        if queue is not None and (log := self.world.log(queue)) is not None:
            log.max -= self.chance.randint(0, min(20, log.max - log.min))

    def _do_broker_away(self) -> None:
        broker = self.chance.choice(BROKERS)
        self.world.away[broker] = not self.world.away.get(broker)

    def _do_expand(self) -> None:
        topic = self.chance.choice(TOPICS)
        count = self.chance.randint(1, 3)
        if len(self.world.view.topics.get(topic, {})) + count <= QUEUES_PER_TOPIC_MAX:
            self.world.add_queues(topic, self.chance.choice(BROKERS), count)

    def _do_delete_topic(self) -> None:
        topic = self.chance.choice(TOPICS)
        if topic in self.world.view.topics:
            self.world.delete_topic(topic)
        if self.chance.random() < 0.7:
            self.world.add_queues(topic, self.chance.choice(BROKERS), self.chance.randint(1, 4))

    def _do_delete_group(self) -> None:
        group = self.chance.choice(tuple(GROUPS))
        if group in self.world.view.groups:
            self.world.delete_group(group)
        if self.chance.random() < 0.7:
            self.world.set_group(GROUPS[group])

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
        # Under the id of one that is gone, or sleeps: then that one never wakes.
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
        # It closes: lets go of everything, then leaves.
        self._let_go(member, list(member.owns))
        member.running, member.left = False, True
        if self.chance.random() < 0.9:
            self.service.groups.leave(member.group, member.member_id, member.instance)

    def _do_sleep(self) -> None:
        """Killed, or stopped and perhaps continued later."""
        if (member := self._some_member()) is not None:
            member.running = False

    def _do_wake(self) -> None:
        key = self.chance.choice(tuple(self.witness.members) or ("",))
        member = self.witness.members.get(key)  # type: ignore[arg-type]
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
        known = KnownMember(member.member_id, member.instance, CLUSTERING, subscriptions, "peer", 0)
        try:
            if groups.heartbeat(member.group, known):
                # Who joins is answered when that is durable.
                self.service.store.sync()
        except MemberIdTaken:
            return
        except GroupNotFound:
            # Its group was deleted; it starts anew as another process.
            member.running, member.left = False, True
            member.owns.clear()
            return
        if lapsed:
            # Others may have its queues by now.
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
            if queue not in mine or view.birth(queue) != held.birth
        ]
        if lost and not member.stuck:
            self._let_go(member, lost)
        gained = sorted(mine - member.owns.keys() - member.asking - member.leaving)
        if gained:
            self._resolve(member, gained)

    def _share(self, member: Member) -> frozenset[Queue]:
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
            found = frozenset(Queue(q.topic, q.broker, q.queue_id) for q in share)
            if len(self._shares) > 10_000:
                self._shares.clear()
            self._shares[key] = found
        return found

    def _let_go(self, member: Member, queues: list[Queue]) -> None:
        commits = {
            queue: Commit(
                member.group, queue, held.offset, held.epoch, member.member_id, "", force=False
            )
            for queue in queues
            if (held := member.owns.pop(queue, None)) is not None
        }
        member.leaving.update(queues)
        self._commit(Call("commit", member.group, member.member_id), commits, queues, member)

    def _resolve(self, member: Member, queues: list[Queue]) -> None:
        member.asking.update(queues)
        view = self.world.at(member.revision)
        births = {queue: view.birth(queue) for queue in queues}
        call = Call("resolve", member.group, member.member_id)
        coroutine = self.service.resolver.resolve(
            member.group, member.member_id, queues, StartPolicy(), member.revision
        )
        self._call(call, coroutine, partial(self._resolved, member, births))

    def _resolved(
        self,
        member: Member,
        births: dict[Queue, int | None],
        answers: dict[Queue, Start | RockoonError] | None,
    ) -> None:
        member.asking.difference_update(births)
        if answers is None or not member.running or self.chance.random() < 0.02:
            return
        for queue, birth in births.items():
            start = answers[queue]
            if isinstance(start, RockoonError):
                continue
            self.witness.started(member.group, queue, start.epoch)
            entry = self.witness.written.progress.get((member.group, queue))
            if entry is None or entry.epoch != start.epoch or entry.owner != member.member_id:
                # Overtaken on the way; the next commit tells it.
                continue
            holding = Holding(
                start.epoch,
                start.decision.offset,
                birth or 0,
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
        commits: dict[Queue, Commit] = {}
        for queue, held in member.owns.items():
            log = self.world.log(queue)
            if log is not None and self.world.view.birth(queue) == held.birth:
                ahead = max(0, log.max - held.offset)
                held.offset += self.chance.randint(0, min(20, ahead))
            force = self.chance.random() < 0.002
            back = self.chance.randrange(30) if force else 0
            commits[queue] = Commit(
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
        """A commit of long ago, or one beyond the end, arrives."""
        if self._old_commits:
            commit = self.chance.choice(self._old_commits)
            if self.chance.random() < 0.2:
                commit = commit._replace(offset=commit.offset + self.chance.randrange(100))
            call = Call("commit", commit.group, commit.member_id)
            self._commit(call, {commit.queue: commit}, [])

    def _commit(
        self,
        call: Call,
        commits: dict[Queue, Commit],
        releases: list[Queue],
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
        outcomes: list[Outcome] | None,
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
        """A reader outside membership asks where to start, and owns nothing."""
        queues = list(self.world.view.topics.get(self.chance.choice(TOPICS), {}))
        if queues:
            group = self.chance.choice(tuple(GROUPS))
            coroutine = self.service.resolver.resolve(group, "", queues, StartPolicy(), 0)
            self._call(Call("resolve", group), coroutine, lambda _: None)

    # Operators.

    def _do_plan(self) -> None:
        group, topic = self.chance.choice(tuple(GROUPS)), self.chance.choice(TOPICS)
        kinds = (TargetKind.EARLIEST, TargetKind.LATEST, TargetKind.OFFSET, TargetKind.SHIFT)
        kind = self.chance.choice(kinds)
        value = self.chance.randrange(200)
        target = Target(kind, -value if kind is TargetKind.SHIFT else value)
        coroutine = self.service.plans.plan(group, topic, [], target)

        def planned(plan: Any) -> None:
            if plan is not None:
                self._resets.append((plan.reset_id, group))
                del self._resets[:-KEPT_MAX]

        self._call(Call("plan", group), coroutine, planned)

    def _do_apply_reset(self) -> None:
        if self._resets:
            # The newest, mostly: an old one is stale.
            index = -1 if self.chance.random() < 0.7 else self.chance.randrange(len(self._resets))
            reset_id, group = self._resets[index]
            coroutine = self.service.plans.apply(reset_id, "operator")
            self._call(Call("reset", group), coroutine, partial(self._reset, group))

    def _do_undo_reset(self) -> None:
        if self._resets:
            reset_id, group = self.chance.choice(self._resets)
            coroutine = self.service.plans.undo(reset_id, "operator")
            self._call(Call("undo", group), coroutine, partial(self._reset, group))

    def _reset(self, group: str, applied: Any) -> None:
        """Members hear of it, or find out at their next commit."""
        if applied is None or self.chance.random() < 0.3:
            return
        for member in self.witness.members.values():
            if member.group == group and member.running:
                for step in applied.steps:
                    member.owns.pop(step.queue, None)

    # What must come of it.

    def _calm_down(self) -> None:
        """Nothing happens any more: in bounded time every queue has its owner, and only that."""
        self._finish_calls()
        world = self.world
        world.away.clear()
        for topic in TOPICS:
            if topic not in world.view.topics:
                world.add_queues(topic, BROKERS[0], 2)
        for config in GROUPS.values():
            if config.name not in world.view.groups:
                world.set_group(config)
        while self.witness.told_view.revision < world.view.revision:
            self._do_routes()
        for member in self.witness.members.values():
            member.stuck = False
        # Leases of the dead run out, then whoever asked for a stuck or forgotten queue gets it.
        seconds = 2 * LEASE_SECONDS + 2 * HANDOVER_SECONDS + 4 * HEARTBEAT_SECONDS
        for _ in range(round(seconds / HEARTBEAT_SECONDS)):
            world.advance(round(HEARTBEAT_SECONDS * SECOND_NS))
            self.service.groups.pass_time()
            for member in self.witness.members.values():
                if member.running:
                    self._heartbeat(member)
            for member in self.witness.members.values():
                if member.running and member.heard_ns:
                    member.revision = world.view.revision
                    self._commit_all(member)
                    self._rebalance(member)
            self._finish_calls()
        self._check_owners()

    def _check_owners(self) -> None:
        written, view = self.witness.written.progress, self.world.view
        for group in GROUPS:
            members = [
                member
                for member in self.witness.members.values()
                if member.group == group and member.in_lease(self.world.now_ns)
            ]
            for topic in TOPICS:
                if not any(topic in member.topics for member in members):
                    continue
                for queue in view.topics[topic]:
                    owners = [member for member in members if queue in member.owns]
                    if group == "failing" and not owners:
                        assert self._is_refused(group, queue), f"{queue} of {group} has no owner"
                        continue
                    assert len(owners) == 1, (
                        f"{queue} of {group} is owned by {[m.member_id for m in owners]} when all "
                        f"is calm; stored {written.get((group, queue))}, members "
                        f"{[m.member_id for m in members]}"
                    )
                    (owner,) = owners
                    assert queue in self._share(owner), f"{queue} is not {owner.member_id}'s"
                    entry = written[group, queue]
                    assert entry.owner == owner.member_id, f"{entry}, read by {owner.member_id}"
                    assert entry.epoch == owner.owns[queue].epoch, f"{entry}, {owner}"
                    assert entry.incarnation == view.birth(queue), f"{entry} of {queue}"

    def _is_refused(self, group: str, queue: Queue) -> bool:
        """Whether the group's policy is to fail on this queue."""
        answer: list[Any] = []
        coroutine = self.service.resolver.resolve(group, "", [queue], StartPolicy(), 0)
        self._call(Call("resolve", group), coroutine, lambda found: answer.append(found))
        self._finish_calls()
        return isinstance(answer[0][queue], InvalidOffset | OffsetBeyondEnd)


# What happens, and how often beside the rest.
DOINGS = {
    "heartbeat": 220,
    "rebalance": 220,
    "commit": 260,
    "append": 80,
    "advance": 60,
    "routes": 40,
    "pass_time": 30,
    "commit_again": 30,
    "join": 12,
    "plan": 10,
    "apply_reset": 8,
    "leave": 6,
    "sleep": 6,
    "wake": 6,
    "retention": 6,
    "outsider": 10,
    "undo_reset": 4,
    "stick": 3,
    "broker_away": 3,
    "wall_jump": 2,
    "expand": 2,
    "lose_tail": 1,
    "long_pause": 0.5,
    "delete_topic": 0.5,
    "delete_group": 0.4,
    "crash": 0.5,
}
NAMES = tuple(DOINGS)
WEIGHTS = tuple(accumulate(DOINGS.values()))
