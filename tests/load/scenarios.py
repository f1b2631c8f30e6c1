"""The scenarios: their users, default numbers, and allowed copies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from load.checker import Allowed
from load.plan import Plan
from rockoon.consumer.process_queue import FlowLimits
from rockoon.consumer.pull import PullLimits

DEFAULTS: Mapping[str, Any] = {
    "users": 4,
    "rate": 0.0,
    "window": 10_000,
    "body_bytes": 200,
    "topics": 1,
    "queues": 8,
    "groups": 1,
    "handle_ms": 0.0,
    "stay_seconds": 3.0,
    "hot_share": 0.9,
}


HELD_MAX = FlowLimits().span_max + PullLimits().messages_max
"""Messages of a queue that a member can have handled ahead of its commits."""


def nothing_twice(_: Plan) -> Allowed:
    return Allowed()


def handed_over_in_haste(plan: Plan) -> Allowed:
    """Members leave and join all the time: messages that a member has handled and not committed
    before it loses a queue are handled again. Leaving commits, so this allows for handler calls
    that take longer than a hand-over may: one batch of each queue for each member that leaves."""
    leaves = plan.users * (plan.seconds / plan.stay_seconds + 1)
    return Allowed(
        given_twice=round(leaves * plan.queues * 256),
        reason="members that leave: up to a batch of 256 for each queue and each leave",
    )


def after_kills(plan: Plan) -> Allowed:
    """Messages whose replies were lost with a broker are sent again: at most those in flight. And a
    member whose queues go to another one while the offset service is away cannot commit handled
    messages: at most the limit of a process queue, for each queue."""
    if not plan.kill_seconds:
        return Allowed()
    kills = plan.seconds / plan.kill_seconds + 1
    stored_twice = round(kills * plan.users * plan.window)
    handled = round(kills * plan.topics * plan.queues * HELD_MAX)
    return Allowed(
        stored_twice=stored_twice,
        given_twice=plan.groups * (stored_twice + handled),
        reason=f"a kill each {plan.kill_seconds:g} s: what was on its way then, or not committed",
    )


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Args:
        purpose: its purpose, as a sentence.
        users: classes of `load.users`, each with its weight.
        numbers: numbers that differ from DEFAULTS.
        allowed: computes the number of allowed copies.
    """

    purpose: str
    users: Mapping[str, int]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    allowed: Callable[[Plan], Allowed] = nothing_twice

    def number(self, name: str) -> Any:
        """Return a number of the scenario by its name in `Plan`."""
        return self.numbers.get(name, DEFAULTS[name])


SCENARIOS: Mapping[str, Scenario] = {
    "produce": Scenario(
        "What the cluster takes in: senders only, as fast as they are acknowledged.",
        {"SendingUser": 1},
        {"groups": 0},
    ),
    "consume": Scenario(
        "What push consumers take out: a quarter of the time fills the queues, then readers read.",
        {"FillingUser": 1, "LateReadingUser": 1},
    ),
    "mixed": Scenario(
        "Latency at a set rate: senders and the readers of one group side by side.",
        {"SendingUser": 1, "ReadingUser": 1},
        {"rate": 2000.0},
    ),
    "many-groups": Scenario(
        "What groups cost: every message goes to each of many groups.",
        {"SendingUser": 1, "ReadingUser": 20},
        {"users": 42, "groups": 40, "rate": 100.0},
    ),
    "many-topics": Scenario(
        "What topics cost: few messages to each of many topics, read by one group.",
        {"SendingUser": 1, "ReadingUser": 1},
        {"topics": 100, "queues": 2, "rate": 500.0},
    ),
    "large": Scenario(
        "Large messages: bytes instead of counts.",
        {"SendingUser": 1, "ReadingUser": 1},
        {"body_bytes": 1 << 20, "rate": 10.0, "window": 16},
    ),
    "hot-key": Scenario(
        "One key gets most messages: its queue and that queue's reader are the limit.",
        {"SendingUser": 1, "ReadingUser": 1},
        {"rate": 2000.0},
    ),
    "rebalance-storm": Scenario(
        "Members join and leave all the time while messages flow.",
        {"SendingUser": 1, "ReadingUser": 1, "PassingUser": 2},
        {"users": 8, "rate": 500.0},
        handed_over_in_haste,
    ),
    "slow-consumers": Scenario(
        "Handlers are slower than senders: lag grows, and neither memory nor senders may mind.",
        {"SendingUser": 1, "SlowReadingUser": 1},
        {"rate": 2000.0, "handle_ms": 20.0},
    ),
}


def allowed_in(plan: Plan) -> Allowed:
    """Return the number of allowed copies in a run: the scenario's, and those of kills."""
    own, kills = SCENARIOS[plan.scenario].allowed(plan), after_kills(plan)
    if not plan.kill_seconds:
        return own
    return Allowed(
        stored_twice=own.stored_twice + kills.stored_twice,
        given_twice=own.given_twice + kills.given_twice,
        reason=kills.reason if own == Allowed() else f"{own.reason}; {kills.reason}",
    )
