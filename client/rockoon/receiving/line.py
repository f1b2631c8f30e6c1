"""Receive queue: waiting receivers with equal options, in the order of their calls.

Messages acquired for a receive queue are delivered to its first receivers. The module makes no
calls and reads no clock.
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

# Maximum time between acquire calls that name all message queues.
LOOK_SECONDS = 1.0
# Limits of one entry of an acquire call: messages, and receiver names.
MESSAGES_MAX = 1024
SHARES_MAX = 64


class ReceiverName(NamedTuple):
    """Name of a holder of messages. Receivers with the same name share their messages."""

    receiver: str
    key_id: str = ""
    """Access key of the client for which a gateway receives; empty without a gateway."""


class Wanting(NamedTuple):
    """Options that all receivers of a receive queue share."""

    group: str
    subscriptions: tuple[Subscription, ...]
    """Sorted by topic."""
    visible_after_ms: int
    consume_from: ConsumeFrom
    held_ms_max: int = 0
    """See `Wanted` in `in_flight.proto`."""


class ParkedReceiver:
    """A receiver that waits for messages.

    Args:
        messages_max: maximum number of messages.
        name: the holder of the messages.
        attempt_id: see `ReceivingEngine.receive`.
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
        """Number of the first acquire call that asks for messages of this receiver."""
        self.is_over = False
        """Its wait time is over: it is removed when that call is done."""


@dataclass(slots=True, eq=False)
class Line:
    """Receivers with equal options, and the state of the acquire calls for them."""

    wanting: Wanting
    parked: dict[ParkedReceiver, None] = field(default_factory=dict)
    named: dict[ReceiverName, dict[ParkedReceiver, None]] = field(default_factory=dict)
    """Waiting receivers by name."""
    pending: Counter[ReceiverName] = field(default_factory=Counter)
    """Number of acquired messages that are being read, by name; no entry is 0."""
    timer: asyncio.TimerHandle | None = None
    """Starts a call at `timer_at`, loop time."""
    timer_at: float = 0.0
    is_asking: bool = False
    is_due_again: bool = False
    """It became due while a call was running."""
    is_alone: bool = True
    """It gets a separate call: a new or failing receive queue must not delay the others."""
    used: list[TopicTails] = field(default_factory=list)
    """Topics in which it is counted as a user."""
    fed: list[TopicTails] = field(default_factory=list)
    """Topics in which it is counted as waiting for new messages."""
    asks: int = 0
    """Number of calls started."""
    asks_done: int = 0
    exhausted_at: float = float("-inf")
    """Loop time of the last call that returned too few messages; -inf if a later event may have
    made messages available."""
    exhausted_grown: int = 0
    """Sum of `TopicTails.grown` at the start of that call."""
    visible_at: float = float("inf")
    """Loop time at which the next message in flight becomes visible."""
    looked_at: float = float("-inf")
    """Loop time of the last call that named all message queues."""
    report_at: float = float("-inf")
    """Loop time of the next report of its filters."""
    narrow_from: float = float("-inf")
    """Until this loop time each call names all message queues, because other processes acquire the
    messages known here."""
    factor: int = 1
    """Messages to acquire per requested message, because a filter excludes some."""
    over: dict[ParkedReceiver, None] = field(default_factory=dict)
    """Receivers whose wait time is over and that no call has asked for yet."""
    backoff: Backoff = field(default_factory=Backoff)
    was_idle: bool = False
    """It was idle at the last cleaning."""

    @property
    def topics(self) -> list[str]:
        return [each.topic for each in self.wanting.subscriptions]

    def shares(self) -> dict[ReceiverName, int]:
        """Return the number of messages to acquire for each name, at most 1024 in total. Names
        whose receivers have waited longest come first."""
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
        """Return True if a call may name only message queues that are known to have enough
        messages.

        Once per second the result is False and all queues are named, because released messages and
        messages acquired by other processes show in the reply only then.

        Args:
            now: loop time; stored if the result is False.
        """
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
        """Remove a receiver; no effect if it does not wait."""
        if receiver in self.parked:
            del self.parked[receiver]
            self.over.pop(receiver, None)
            named = self.named[receiver.name]
            del named[receiver]
            if not named:
                del self.named[receiver.name]

    def begin_reading(self, name: ReceiverName, count: int) -> None:
        """Count acquired messages of a name that are being read."""
        self.pending[name] += count

    def end_reading(self, name: ReceiverName, count: int) -> None:
        """Undo `begin_reading`."""
        self.pending[name] -= count
        if not self.pending[name]:
            del self.pending[name]

    def offer(self, name: ReceiverName, messages: ReceivedMessages) -> ReceivedMessages:
        """Deliver messages to the receivers of the name that holds them, in the order of waiting.

        Returns:
            Messages for which no receiver waits.
        """
        while messages and name in self.named:
            receiver = next(iter(self.named[name]))
            self.leave(receiver)
            if not receiver.messages.done():
                receiver.messages.set_result(messages[: receiver.messages_max])
                messages = messages[receiver.messages_max :]
        return messages

    def offer_to(self, receiver: ParkedReceiver, messages: ReceivedMessages) -> ReceivedMessages:
        """Deliver messages to one receiver; return them if it no longer waits."""
        if receiver not in self.parked or receiver.messages.done():
            return messages
        self.leave(receiver)
        receiver.messages.set_result(messages)
        return ReceivedMessages()

    def time_over(self, receiver: ParkedReceiver) -> None:
        """The wait time of a receiver is over: remove it once a call has asked for it."""
        if self.asks_done >= receiver.first_ask:
            self.dismiss(receiver)
        else:
            receiver.is_over = True
            self.over[receiver] = None

    def ask_done(self, number: int) -> None:
        """The messages of a call were delivered: remove receivers whose wait time is over."""
        self.asks_done = max(self.asks_done, number)
        for receiver in [each for each in self.over if each.first_ask <= self.asks_done]:
            self.dismiss(receiver)

    def fail(self, error: Exception, receivers: Iterable[ParkedReceiver] | None = None) -> None:
        """Fail the given receivers, or all."""
        for receiver in list(self.parked if receivers is None else receivers):
            self.leave(receiver)
            if not receiver.messages.done():
                receiver.messages.set_exception(error)

    def dismiss(self, receiver: ParkedReceiver) -> None:
        """End the wait of a receiver without messages."""
        self.leave(receiver)
        if not receiver.messages.done():
            receiver.messages.set_result(ReceivedMessages())
