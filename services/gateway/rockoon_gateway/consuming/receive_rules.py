"""Bounds of ReceiveMessage: what it may ask for, and what it gets. Pure.

Source: ReceiveMessageActivity#receiveMessage, and what clients were seen to send: push consumers of
C++ send no polling time, those of Rust one of 40 s that is also their deadline.
"""

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from rockoon.errors import InvalidExpression
from rockoon.subscription import Subscription
from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import Refusal
from rockoon_gateway.times import duration_ms
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    SQL,
    Code,
    FilterExpression,
    FilterType,
)
from rockoon_proto.apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest

BATCH_SIZE_MAX = 32
INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3_600_000
RENEWED_MS = 60_000
"""How long messages of push consumers are invisible, if the offset service cannot extend that."""
HELD_MS_MAX = 3 * 3_600_000
"""How long a push consumer may have a message, however long it lives."""
POLL_SECONDS_MIN = 5.0
POLL_SECONDS_MAX = 20.0
REQUEST_TIMEOUT_SECONDS = 3.0
"""Of a client whose settings are not known."""
ANSWER_SECONDS = 0.5
"""What of the deadline is left to the answer's way."""
WAITING_LANGUAGES = frozenset({"java", "python", "cpp"})
"""Words of x-mq-language of the libraries whose push consumers retry a failed message before they
handle the next one of its message group. Those of Go and Node.js do not wait."""
FILTER_CHARACTERS_MAX = 16_384
"""As long as a tag may be. SQL92 expressions have a bound of their own. A filter is kept while a
receiver uses it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a receiver gets at most."""

    messages_max: int
    visible_after_ms: int
    held_ms_max: int
    """Above 0: the offset service extends that time while the client is heard, at most so long."""
    wait_seconds: float


def wish_of(
    request: ReceiveMessageRequest,
    remaining_seconds: float | None,
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> Wish:
    """Read a request.

    Args:
        request: the client's.
        remaining_seconds: to the call's deadline; None when it has none.
        request_timeout_seconds: of the client's settings.

    Raises:
        Refusal: the invisible duration, or the time to poll, is out of its bounds.
    """
    return Wish(
        messages_max=min(max(request.batch_size, 1), BATCH_SIZE_MAX),
        visible_after_ms=_visible_after_ms(request),
        held_ms_max=HELD_MS_MAX if request.auto_renew else 0,
        wait_seconds=_wait_seconds(request, remaining_seconds, request_timeout_seconds),
    )


def message_group_max(language: str, *, is_push: bool) -> int:
    """How many messages of one message group a client of a FIFO group gets at a time; 0: no limit.

    Args:
        language: the word of its header x-mq-language.
        is_push: whether it may be a push consumer.
    """
    return 1 if is_push and language.lower() not in WAITING_LANGUAGES else 0


def _visible_after_ms(request: ReceiveMessageRequest) -> int:
    if request.auto_renew:
        # Some name a duration all the same; it is the offset service's to choose.
        return RENEWED_MS
    return invisible_ms(request.invisible_duration, INVISIBLE_MS_MIN)


def invisible_ms(duration: Duration, lowest_ms: int) -> int:
    """Return an invisible duration in milliseconds; raises Refusal if it is out of its bounds.

    The text begins with the words of RocketMQ's proxy, which programs compare.
    """
    found_ms = duration_ms(duration, "invisible_duration", Code.ILLEGAL_INVISIBLE_TIME)
    if not lowest_ms <= found_ms <= INVISIBLE_MS_MAX:
        size = "small" if found_ms < lowest_ms else "large"
        reason = f"{found_ms} ms, expected {lowest_ms} to {INVISIBLE_MS_MAX} ms"
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {size}: {reason}")
    return found_ms


def polling_ms(duration: Duration) -> int:
    """A long polling timeout in milliseconds; raises Refusal for one that is no duration."""
    return duration_ms(duration, "long_polling_timeout", Code.ILLEGAL_POLLING_TIME)


def _wait_seconds(
    request: ReceiveMessageRequest, remaining_seconds: float | None, timeout_seconds: float
) -> float:
    if request.HasField("long_polling_timeout"):
        wanted = polling_ms(request.long_polling_timeout) / 1000
        if wanted <= 0:
            return 0.0
    elif remaining_seconds is None:
        wanted = POLL_SECONDS_MAX
    else:
        wanted = remaining_seconds - timeout_seconds / 2
    poll = min(max(wanted, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
    if remaining_seconds is None:
        return poll
    if poll > remaining_seconds < POLL_SECONDS_MIN:
        reason = f"{remaining_seconds:.1f} s are left, less than {POLL_SECONDS_MIN:.0f} s to poll"
        raise Refusal(Code.ILLEGAL_POLLING_TIME, reason)
    return min(poll, remaining_seconds - ANSWER_SECONDS)


def require_reader(call: ClientCall, group: str, topic: str) -> None:
    """Raises NotPermitted where a caller's key must not read a topic in a group."""
    call.require("read", f"group:{group}")
    call.require_topic("read", topic)


def subscription_of(topic: str, expression: FilterExpression) -> Subscription:
    """What a receiver wants of a topic.

    Args:
        topic: its name.
        expression: tags joined by `||` (none, or `*`: everything), or SQL92 on properties.

    Raises:
        Refusal: it cannot be compiled, or is too long.
    """
    if expression.type not in FilterType.values():
        reason = f"{expression.type} is not a type of filters"
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, reason)
    if len(expression.expression) > FILTER_CHARACTERS_MAX:
        reason = f"{len(expression.expression)} characters, more than {FILTER_CHARACTERS_MAX}"
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, reason)
    text = expression.expression.strip()
    try:
        if expression.type == SQL:
            return Subscription.sql(topic, text)
        return Subscription.parse(topic, text or "*")
    except InvalidExpression as failure:
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, str(failure)) from failure
