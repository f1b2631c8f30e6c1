"""A random life of a cluster: members, operators, brokers and crashes around an offset service.

One seed gives one life, operation by operation. The service's coroutines are advanced by hand: one
that would wait yields, and a random choice decides which events happen before it continues. So a
broker's reply can be old when it arrives, a commit can overtake a reset, and a crash can come
between any two steps.
"""

from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from offset.simulated.account import Call
from offset.simulated.driver import (
    BROKERS,
    CALLS_MAX,
    GROUPS,
    KEPT_MAX,
    TOPICS,
)
from offset.simulated.members import MemberDoings
from offset.simulated.service import HANDOVER_SECONDS, HEARTBEAT_SECONDS, LEASE_SECONDS
from offset.simulated.world import SECOND_NS

from rockoon_core.errors import (
    InvalidOffset,
    OffsetBeyondEnd,
)
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import StartPolicy
from rockoon_offset.progress.reset_plans import ResetOrder
from rockoon_offset.progress.resets import Target, TargetKind

CALM_EVERY = 4000
HISTORY_MAX = 400
QUEUES_PER_TOPIC_MAX = 14


class Simulation(MemberDoings):
    """One life.

    Args:
        seed: of all random choices.
        directory: for the journal's files; empty.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.counts: dict[str, int] = {}
        often = self.chance.choice
        weights = (
            weight * often(FREQUENT_TIMES if weight >= FREQUENT else RARE_TIMES)
            for weight in DOINGS.values()
        )
        self._cum_weights = tuple(accumulate(weights))
        # Resets planned or applied: (reset id, group).
        self._resets: list[tuple[str, str]] = []

    # One life.

    def run(self, operations: int) -> None:
        """Run this number of operations; a violated rule raises AssertionError."""
        for _ in range(operations):
            (name,) = self.chance.choices(NAMES, cum_weights=self._cum_weights)
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

    # The service's life.

    def _do_pass_time(self) -> None:
        self.service.groups.expire_due()

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
            self.service.groups.expire_due()

    def _do_long_pause(self) -> None:
        """The whole machine slept: every lease has expired, and no process saw it."""
        self.world.advance(round(self.chance.uniform(1, 60) * SECOND_NS))

    def _do_wall_jump(self) -> None:
        self.world.wall_ms += self.chance.randint(-3_600_000, 3_600_000)

    # etcd and the brokers.

    def _do_append(self) -> None:
        topic = self.chance.choice(TOPICS)
        for queue, create_revision in self.world.view.topics.get(topic, {}).items():
            self.world.logs[queue, create_revision].append(self.chance.randrange(30))

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

    # Operators.

    def _wanted(self) -> ResetOrder:
        group, topic = self.chance.choice(tuple(GROUPS)), self.chance.choice(TOPICS)
        kinds = (TargetKind.EARLIEST, TargetKind.LATEST, TargetKind.OFFSET, TargetKind.SHIFT)
        kind = self.chance.choice(kinds)
        value = self.chance.randrange(200)
        target = Target(kind, -value if kind is TargetKind.SHIFT else value)
        return ResetOrder(group, topic, [], target)

    def _do_plan(self) -> None:
        wanted = self._wanted()
        coroutine = self.service.plans.plan(wanted)
        self._call(Call("plan", wanted.group), coroutine, partial(self._reset_known, wanted.group))

    def _reset_known(self, group: str, plan: Any) -> None:
        if plan is not None:
            self._resets.append((plan.reset_id, group))
            del self._resets[:-KEPT_MAX]

    def _do_reset(self) -> None:
        wanted = self._wanted()
        coroutine = self.service.plans.reset(wanted, "", "operator")

        def applied(reset: Any) -> None:
            self._reset_known(wanted.group, reset)
            self._reset(wanted.group, reset)

        self._call(Call("reset", wanted.group), coroutine, applied)

    def _do_apply_reset(self) -> None:
        if self._resets:
            # The newest in most cases: an old one is stale.
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
        """Notify members of it, or let them find out at their next commit."""
        if applied is None or self.chance.random() < 0.3:
            return
        for member in self.witness.members.values():
            if member.group == group and member.running:
                for step in applied.steps:
                    member.owns.pop(step.queue, None)

    # Rules of the end.

    def _calm_down(self) -> None:
        """Without further events, every queue has exactly one owner in bounded time."""
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
        # Leases of dead members expire; then members that request a stuck or released queue get it.
        seconds = 2 * LEASE_SECONDS + 2 * HANDOVER_SECONDS + 4 * HEARTBEAT_SECONDS
        for _ in range(round(seconds / HEARTBEAT_SECONDS)):
            world.advance(round(HEARTBEAT_SECONDS * SECOND_NS))
            self.service.groups.expire_due()
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
                    assert entry.incarnation == view.create_revision(queue), f"{entry} of {queue}"

    def _is_refused(self, group: str, queue: MessageQueue) -> bool:
        """Return whether the group's policy is to fail on this queue."""
        answer: list[Any] = []
        coroutine = self.service.resolver.resolve(group, "", [queue], StartPolicy(), 0)
        self._call(Call("resolve", group), coroutine, lambda found: answer.append(found))
        self._finish_calls()
        return isinstance(answer[0][queue], InvalidOffset | OffsetBeyondEnd)


# Operations and their average frequencies. Each life has some of them more often and some less, so
# that rare operations also meet in some lives.
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
    "reset": 5,
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
FREQUENT = 50
FREQUENT_TIMES = (0.5, 1, 1, 2)
RARE_TIMES = (0.2, 1, 1, 5, 25)
