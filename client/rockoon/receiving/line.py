"""Line: the receivers that want the same, in the order in which they came.

What is acquired for a line goes to its first receivers. Nothing here knows a clock or a wire.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.received import ReceivedMessages
from rockoon.receiving.tails import TopicTails
from rockoon.subscription import Subscription
from rockoon_core.backoff import Backoff

# How often an ask names all queues, at least.
LOOK_SECONDS = 1.0
# The wire's bounds of one wish.
MESSAGES_MAX = 1024
SHARES_MAX = 64


class ReceiverName(NamedTuple):
    """The name under which receivers hold messages. Receivers of one name share their messages."""

    receiver: str
    key_id: str = ""
    """Of the access key, where a gateway receives for a client."""


class Wanting(NamedTuple):
    """What the receivers of a line have in common."""

    group: str
    subscriptions: tuple[Subscription, ...]
    """Sorted by topic."""
    visible_after_ms: int
    consume_from: ConsumeFrom
    held_ms_max: int = 0
    """As of `Wanted` on the wire."""


class ParkedReceiver:
    """One that waits.

    Args:
        messages_max: how many it takes.
        name: under which it holds messages.
        attempt_id: of a FIFO group's receiver.
        message_group_max: limit of messages of one message group, in a FIFO group; 0: no limit.
    """

    __slots__ = (
        "attempt_id",
        "first_ask",
        "is_over",
        "message_group_max",
        "messages",
        "messages_max",
        "name",
    )

    def __init__(
        self,
        messages_max: int,
        name: ReceiverName,
        attempt_id: str,
        message_group_max: int = 0,
    ) -> None:
        self.messages_max = messages_max
        self.name = name
        self.attempt_id = attempt_id
        self.message_group_max = message_group_max
        self.messages: asyncio.Future[ReceivedMessages] = asyncio.get_running_loop().create_future()
        self.first_ask = 0
        """Number of the line's first ask that is made for it too."""
        self.is_over = False
        """Its time is over: it leaves with the answer to that ask."""


@dataclass(slots=True, eq=False)
class Line:
    """Receivers with one wish, and when it is to be asked for."""

    wanting: Wanting
    parked: dict[ParkedReceiver, None] = field(default_factory=dict)
    named: dict[ReceiverName, dict[ParkedReceiver, None]] = field(default_factory=dict)
    """The same receivers by their names."""
    pending: Counter[ReceiverName] = field(default_factory=Counter)
    """Messages that are acquired and being read; of names that have some."""
    timer: asyncio.TimerHandle | None = None
    """Asks at the latest at `timer_at`, loop time."""
    timer_at: float = 0.0
    is_asking: bool = False
    is_due_again: bool = False
    """Something has happened while it was asked for."""
    is_alone: bool = True
    """It is asked for in a call of its own: nothing is known of how long that takes."""
    used: list[TopicTails] = field(default_factory=list)
    """What it has told that it has receivers."""
    fed: list[TopicTails] = field(default_factory=list)
    """What it has told that they wait for more than there is."""
    asks: int = 0
    """How many were begun."""
    asks_done: int = 0
    exhausted_at: float = float("-inf")
    """When it got less than it wanted, and has heard of nothing new since: loop time."""
    exhausted_grown: int = 0
    """How often its queues had grown before that."""
    visible_at: float = float("inf")
    """When something that is in flight becomes visible, loop time."""
    looked_at: float = float("-inf")
    """When an ask last named all of its queues, loop time."""
    report_at: float = float("-inf")
    """When its filters are reported next, loop time."""
    narrow_from: float = float("-inf")
    """Before that every ask names all of them: others take what is known here."""
    factor: int = 1
    """How many messages are acquired for each that is wanted: a filter leaves some out."""
    over: dict[ParkedReceiver, None] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    was_idle: bool = False
    """When it was looked at last."""

    @property
    def topics(self) -> list[str]:
        return [each.topic for each in self.wanting.subscriptions]

    def shares(self) -> dict[ReceiverName, int]:
        """How many messages to acquire for each name, those that have waited longest first;
        together 1024 at most."""
        wanted: dict[ReceiverName, int] = {}
        left = MESSAGES_MAX + self.pending.total()
        for each in self.parked:
            if left <= 0 or (len(wanted) == SHARES_MAX and each.name not in wanted):
                break
            wanted[each.name] = wanted.get(each.name, 0) + each.messages_max * self.factor
            left -= each.messages_max * self.factor
        shares: dict[ReceiverName, int] = {}
        left = MESSAGES_MAX
        for name, count in wanted.items():
            share = min(count - self.pending[name], left)
            if share > 0:
                shares[name] = share
                left -= share
        return shares

    def may_be_narrow(self, now: float) -> bool:
        """Whether an ask may name only queues that are known to hold enough. What was given back,
        and what others took, shows when all are named: once a second. Notes that, if it may not."""
        if now >= self.narrow_from and now - self.looked_at < LOOK_SECONDS:
            return True
        self.looked_at = now
        return False

    @property
    def is_idle(self) -> bool:
        return not (self.parked or self.pending or self.is_asking)

    def park(self, receiver: ParkedReceiver) -> None:
        receiver.first_ask = self.asks + 1
        self.was_idle = False
        self.parked[receiver] = None
        self.named.setdefault(receiver.name, {})[receiver] = None

    def leave(self, receiver: ParkedReceiver) -> None:
        """It waits no longer; does nothing when it does not wait."""
        if receiver in self.parked:
            del self.parked[receiver]
            self.over.pop(receiver, None)
            named = self.named[receiver.name]
            del named[receiver]
            if not named:
                del self.named[receiver.name]

    def begin_reading(self, name: ReceiverName, count: int) -> None:
        """Messages of a name are read from now on."""
        self.pending[name] += count

    def end_reading(self, name: ReceiverName, count: int) -> None:
        """As many are read no more."""
        self.pending[name] -= count
        if not self.pending[name]:
            del self.pending[name]

    def offer(self, name: ReceiverName, messages: ReceivedMessages) -> ReceivedMessages:
        """Give messages to receivers of the name that holds them, the first ones first; returns the
        rest."""
        while messages and name in self.named:
            receiver = next(iter(self.named[name]))
            self.leave(receiver)
            if not receiver.messages.done():
                receiver.messages.set_result(messages[: receiver.messages_max])
                messages = messages[receiver.messages_max :]
        return messages

    def offer_to(self, receiver: ParkedReceiver, messages: ReceivedMessages) -> ReceivedMessages:
        """Give messages to one; returns them when it has gone."""
        if receiver not in self.parked or receiver.messages.done():
            return messages
        self.leave(receiver)
        receiver.messages.set_result(messages)
        return ReceivedMessages()

    def time_over(self, receiver: ParkedReceiver) -> None:
        """A receiver's time is over: it leaves, as soon as it was asked for once."""
        if self.asks_done >= receiver.first_ask:
            self.dismiss(receiver)
        else:
            receiver.is_over = True
            self.over[receiver] = None

    def ask_done(self, number: int) -> None:
        """The answer to an ask was given out."""
        self.asks_done = max(self.asks_done, number)
        for receiver in [each for each in self.over if each.first_ask <= self.asks_done]:
            self.dismiss(receiver)

    def fail(self, error: Exception, receivers: Iterable[ParkedReceiver] | None = None) -> None:
        """Some of its receivers, or all, get nothing."""
        for receiver in list(self.parked if receivers is None else receivers):
            self.leave(receiver)
            if not receiver.messages.done():
                receiver.messages.set_exception(error)

    def dismiss(self, receiver: ParkedReceiver) -> None:
        """It gets nothing."""
        self.leave(receiver)
        if not receiver.messages.done():
            receiver.messages.set_result(ReceivedMessages())
