"""Receive queue: waiting receivers with equal options, in the order of their calls.

Messages acquired for a receive queue are delivered to its first receivers. The module makes no
calls and reads no clock.

Lost calls are acquire calls without a reply. The offset service may have granted messages in a
lost call. If a gateway reports their holders, the service would extend messages that no receiver
has. So a later call names each failed call, and the service releases its messages.

Receivers report their filters to the offset service, which knows all receivers of a group. A
message that a filter excludes is acknowledged, so receivers of one group with different filters
lose messages. The service compares the filters; if they differ, it replies with a text, which is
logged here.
"""

import asyncio
import logging
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rockoon.offsets.start import ConsumeFrom
from rockoon.receiving.received import ReceivedMessages
from rockoon.receiving.tail_reader import TrackedTopic
from rockoon.subscription import Subscription
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX, REPORTED_FILTER_BYTES_MAX
from rockoon_core.repeated_lines import limited
from rockoon_format.names import lite_topic_of
from rockoon_proto.v1.in_flight_pb2 import AcquireRequest, ClientName, LostCall
from rockoon_proto.v1.offset_pb2 import TopicSubscription

# Maximum time between acquire calls that name all message queues.
FULL_CALL_SECONDS = 1.0
# Limits of one entry of an acquire call: messages, and receiver names.
MESSAGES_MAX = 1024
SHARES_MAX = 64


class ReceiverName(NamedTuple):
    """Name of a holder of messages. Receivers with the same name share their messages."""

    receiver: str
    key_id: str = ""
    """Access key of the client for which a gateway receives; empty without a gateway."""


class ReceiveKey(NamedTuple):
    """Options that all receivers of a receive queue share."""

    group: str
    subscriptions: tuple[Subscription, ...]
    """Sorted by topic."""
    visible_after_ms: int
    consume_from: ConsumeFrom
    held_ms_max: int = 0
    """Above 0: maximum time, milliseconds, for which reports of gateways extend the acquisition;
    see `Wanted` in `in_flight.proto`."""


class WaitingReceiver:
    """A receiver that waits for messages.

    Args:
        messages_max: maximum number of messages.
        name: the holder of the messages.
        attempt_id: see `ReceivingEngine.receive`.
        message_group_max: limit of messages of one message group, in a FIFO group; 0: no limit.
    """

    __slots__ = (
        "attempt_id",
        "first_call",
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
        self.first_call = 0
        """Number of the first acquire call that requests messages for this receiver."""


@dataclass(slots=True, eq=False)
class ReceiveQueue:
    """Receivers with equal options, and the state of the acquire calls for them."""

    key: ReceiveKey
    waiting: dict[WaitingReceiver, None] = field(default_factory=dict)
    by_name: dict[ReceiverName, dict[WaitingReceiver, None]] = field(default_factory=dict)
    """Waiting receivers by name."""
    pending: Counter[ReceiverName] = field(default_factory=Counter)
    """Number of acquired messages that are being read, by name; no entry is 0."""
    timer: asyncio.TimerHandle | None = None
    """Starts a call at `timer_at`, loop time."""
    timer_at: float = 0.0
    is_calling: bool = False
    is_due_again: bool = False
    """It became due while a call was running."""
    has_own_call: bool = True
    """It gets a separate call: a new or failing receive queue must not delay other receivers."""
    topics_used: list[TrackedTopic] = field(default_factory=list)
    """Topics in which it is counted as a user."""
    topics_tracked: list[TrackedTopic] = field(default_factory=list)
    """Topics in which it is counted as waiting for new messages."""
    calls_started: int = 0
    """Number of calls started."""
    calls_done: int = 0
    exhausted_at: float = float("-inf")
    """Loop time of the last call that returned too few messages; -inf if a later event may have
    made messages available."""
    exhausted_grown: int = 0
    """Sum of `TrackedTopic.grown` at the start of that call."""
    visible_at: float = float("inf")
    """Loop time at which the next message in flight becomes visible."""
    full_call_at: float = float("-inf")
    """Loop time of the last call that named all message queues."""
    report_at: float = float("-inf")
    """Loop time of the next report of its filters."""
    full_until: float = float("-inf")
    """Until this loop time each call names all message queues, because other processes acquire the
    messages known here."""
    factor: int = 1
    """Messages to acquire per requested message, because a filter excludes some."""
    expired: dict[WaitingReceiver, None] = field(default_factory=dict)
    """Receivers whose wait time is over and for which no call was made yet."""
    backoff: Backoff = field(default_factory=Backoff)
    was_idle: bool = False
    """It was idle at the last cleaning."""

    @property
    def topics(self) -> list[str]:
        return [each.topic for each in self.key.subscriptions]

    def shares(self) -> dict[ReceiverName, int]:
        """Return the number of messages to acquire for each name, at most 1024 in total. Names
        whose receivers have waited longest come first."""
        wanted: dict[ReceiverName, int] = {}
        left = MESSAGES_MAX + self.pending.total()
        for each in self.waiting:
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

    def may_be_partial(self, now: float) -> bool:
        """Return True if a call may name only message queues that are known to have enough
        messages.

        Once per second the result is False and all queues are named, because released messages and
        messages acquired by other processes show in the reply only then. `now`: loop time; stored
        if the result is False.
        """
        if now >= self.full_until and now - self.full_call_at < FULL_CALL_SECONDS:
            return True
        self.full_call_at = now
        return False

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.pending or self.is_calling)

    def add(self, receiver: WaitingReceiver) -> None:
        receiver.first_call = self.calls_started + 1
        self.was_idle = False
        self.waiting[receiver] = None
        self.by_name.setdefault(receiver.name, {})[receiver] = None

    def remove(self, receiver: WaitingReceiver) -> None:
        """Remove a receiver; no effect if it does not wait."""
        if receiver in self.waiting:
            del self.waiting[receiver]
            self.expired.pop(receiver, None)
            by_name = self.by_name[receiver.name]
            del by_name[receiver]
            if not by_name:
                del self.by_name[receiver.name]

    def start_reading(self, name: ReceiverName, count: int) -> None:
        """Count acquired messages of a name that are being read."""
        self.pending[name] += count

    def end_reading(self, name: ReceiverName, count: int) -> None:
        self.pending[name] -= count
        if not self.pending[name]:
            del self.pending[name]

    def deliver(self, name: ReceiverName, messages: ReceivedMessages) -> ReceivedMessages:
        """Deliver messages to the receivers of the name that holds them, in the order of waiting.
        Returns the messages for which no receiver waits."""
        while messages and name in self.by_name:
            receiver = next(iter(self.by_name[name]))
            self.remove(receiver)
            if not receiver.messages.done():
                receiver.messages.set_result(messages[: receiver.messages_max])
                messages = messages[receiver.messages_max :]
        return messages

    def deliver_to(self, receiver: WaitingReceiver, messages: ReceivedMessages) -> ReceivedMessages:
        """Deliver messages to one receiver; return them if it no longer waits."""
        if receiver not in self.waiting or receiver.messages.done():
            return messages
        self.remove(receiver)
        receiver.messages.set_result(messages)
        return ReceivedMessages()

    def expire(self, receiver: WaitingReceiver) -> None:
        """The wait time of a receiver is over: remove it once a call was made for it."""
        if self.calls_done >= receiver.first_call:
            self.end_wait(receiver)
        else:
            self.expired[receiver] = None

    def call_done(self, number: int) -> None:
        """The messages of a call were delivered: remove receivers whose wait time is over."""
        self.calls_done = max(self.calls_done, number)
        for receiver in [each for each in self.expired if each.first_call <= self.calls_done]:
            self.end_wait(receiver)

    def fail(self, error: Exception, receivers: Iterable[WaitingReceiver] | None = None) -> None:
        """Fail the given receivers, or all."""
        for receiver in list(self.waiting if receivers is None else receivers):
            self.remove(receiver)
            if not receiver.messages.done():
                receiver.messages.set_exception(error)

    def end_wait(self, receiver: WaitingReceiver) -> None:
        self.remove(receiver)
        if not receiver.messages.done():
            receiver.messages.set_result(ReceivedMessages())


# Pairs of call and receiver. Messages of further lost calls stay invisible until their holders end.
LOST_MAX = 100_000


class LostCalls:
    """Failed calls of one connection that are not reported yet."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._calls = 0
        # Call, group and receiver, in the order of the failures.
        self._lost: dict[tuple[str, str, ReceiverName], None] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    def register(self, request: AcquireRequest) -> None:
        """Set the id of a call, and add reports of lost calls to it."""
        self._calls += 1
        request.call_id = f"{self._process}-{self._calls}"
        for call_id, group, name in list(self._lost)[:QUEUES_PER_CALL_MAX]:
            receiver = ClientName(group=group, client_id=name.receiver, key_id=name.key_id)
            request.lost.append(LostCall(call_id=call_id, receiver=receiver))

    def answered(self, request: AcquireRequest) -> None:
        """Delete the lost calls that a successful call has reported."""
        for each in request.lost:
            of = each.receiver
            name = ReceiverName(of.client_id, of.key_id)
            self._lost.pop((each.call_id, of.group, name), None)

    def failed(self, request: AcquireRequest, held_by: Iterable[tuple[str, ReceiverName]]) -> None:
        """Add a call that failed.

        Args:
            request: the request of the call.
            held_by: group and name of each receiver that may hold messages of the call.
        """
        for group, name in held_by:
            if len(self._lost) < LOST_MAX:
                self._lost[request.call_id, group, name] = None


log = limited(logging.getLogger(__name__))


REPORT_SECONDS = 10.0
LOGGED_AGAIN_SECONDS = 600.0
SENTENCES_MAX = 64
CHECKSUM_BYTES = 16


def to_report(subscriptions: Sequence[Subscription]) -> list[TopicSubscription]:
    """Return the filters of a receiver. Lite topics have no filters and are omitted."""
    return [
        TopicSubscription(topic=each.topic, expression=cut(each.expression))
        for each in subscriptions
        if lite_topic_of(each.topic) is None
    ]


def cut(expression: str) -> str:
    """Return an expression that fits a report. Different expressions stay different."""
    data = expression.encode()
    if len(data) <= REPORTED_FILTER_BYTES_MAX:
        return expression
    kept = data[: REPORTED_FILTER_BYTES_MAX - CHECKSUM_BYTES].decode(errors="ignore")
    return f"{kept}... #{zlib.crc32(data):08x}"


class FilterConflicts:
    """Logs the offset service's texts about different filters, each at most every ten minutes."""

    def __init__(self) -> None:
        # Group and sentence → loop time at which it was logged.
        self._logged: dict[tuple[str, str], float] = {}

    def log(self, group: str, sentence: str, now_seconds: float) -> None:
        """Log a text, unless it was logged recently.

        Args:
            sentence: from the offset service; empty if filters agree.
            now_seconds: monotonic.
        """
        if not sentence:
            return
        last = self._logged.get((group, sentence))
        if last is not None and now_seconds - last < LOGGED_AGAIN_SECONDS:
            return
        if len(self._logged) >= SENTENCES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[group, sentence] = now_seconds
        log.warning("group %s: %s", group, sentence)
