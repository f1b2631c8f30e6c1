"""Limits of ReceiveMessage: conversion of a request to bounded options. Pure.

Source: ReceiveMessageActivity#receiveMessage, and requests that clients were seen to send: push
consumers of C++ send no polling time, those of Rust one of 40 s that is also their deadline.
"""

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from rockoon.errors import InvalidExpression
from rockoon.subscription import Subscription
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import Refusal
from rockoon_gateway.names import duration_ms
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
"""Invisible time of a push consumer's messages, if the offset service cannot extend it."""
HELD_MS_MAX = 3 * 3_600_000
"""Maximum time for which a push consumer may hold a message, even if it stays connected."""
POLL_SECONDS_MIN = 5.0
POLL_SECONDS_MAX = 20.0
REQUEST_TIMEOUT_SECONDS = 3.0
"""Request timeout of a client whose settings are unknown."""
ANSWER_SECONDS = 0.5
"""Seconds of a call's deadline that are reserved for sending the reply."""
WAITING_LANGUAGES = frozenset({"java", "python", "cpp"})
"""Words of x-mq-language of the libraries whose push consumers retry a failed message before they
handle the next one of its message group. Those of Go and Node.js do not wait."""
FILTER_CHARACTERS_MAX = 16_384
"""The limit of a tag. SQL92 expressions have another limit. A filter is kept while a receiver uses
it."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """Options of a ReceiveMessage call, within the gateway's limits."""

    messages_max: int
    visible_after_ms: int
    held_ms_max: int
    """Maximum time for which the offset service extends the lease while the client is connected; 0:
    it does not extend the lease.
    """
    wait_seconds: float


def receive_options(
    request: ReceiveMessageRequest,
    remaining_seconds: float | None,
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> ReceiveOptions:
    """Convert a ReceiveMessage request to options within the gateway's limits.

    Args:
        remaining_seconds: until the call's deadline; None without one.
        request_timeout_seconds: request timeout in the client's settings, seconds.

    Raises:
        Refusal: the invisible duration, or the polling time, is out of range.
    """
    return ReceiveOptions(
        messages_max=min(max(request.batch_size, 1), BATCH_SIZE_MAX),
        visible_after_ms=_visible_after_ms(request),
        held_ms_max=HELD_MS_MAX if request.auto_renew else 0,
        wait_seconds=_wait_seconds(request, remaining_seconds, request_timeout_seconds),
    )


def message_group_max(language: str, *, is_push: bool) -> int:
    """Return the maximum number of messages of one message group that a client of a FIFO group
    receives; 0: no limit.

    Args:
        language: its header x-mq-language.
        is_push: whether it may be a push consumer.
    """
    return 1 if is_push and language.lower() not in WAITING_LANGUAGES else 0


def _visible_after_ms(request: ReceiveMessageRequest) -> int:
    if request.auto_renew:
        # Some requests have a duration too; it is ignored, because the offset service extends it.
        return RENEWED_MS
    return invisible_ms(request.invisible_duration, INVISIBLE_MS_MIN)


def invisible_ms(duration: Duration, lowest_ms: int) -> int:
    """Return an invisible duration in milliseconds; raises Refusal if it is out of range.

    The text begins with the words of RocketMQ's proxy, which programs compare.
    """
    found_ms = duration_ms(duration, "invisible_duration", Code.ILLEGAL_INVISIBLE_TIME)
    if not lowest_ms <= found_ms <= INVISIBLE_MS_MAX:
        size = "small" if found_ms < lowest_ms else "large"
        reason = f"{found_ms} ms, expected {lowest_ms} to {INVISIBLE_MS_MAX} ms"
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {size}: {reason}")
    return found_ms


def polling_ms(duration: Duration) -> int:
    """Return a long polling timeout in milliseconds; raises Refusal if it is invalid."""
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


def require_reader(call: GatewayCall, group: str, topic: str) -> None:
    """Raise NotPermitted if a caller's key may not read a topic in a group."""
    call.require("read", f"group:{group}")
    call.require_topic("read", topic)


def subscription_of(topic: str, expression: FilterExpression) -> Subscription:
    """Return a request's subscription. Raises Refusal for a bad or too long expression.

    Args:
        expression: tags joined by `||` (none, or `*`: everything), or SQL92 on properties.
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
