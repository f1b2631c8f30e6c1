"""A client's settings: checks, and the reply, completed by settings of topics and groups. Pure.

Languages need different fields, and some clients stop without theirs: producers of Java and Node.js
need exponential delays, push consumers of Node.js support only those, those of Python only a list.
So the reply depends on the client.

Source: ClientActivity and GrpcClientSettingsManager of RocketMQ's proxy, for the values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from rockoon_format.names import LITE_TOPIC_BYTES_MAX
from rockoon_gateway.codes import Refusal
from rockoon_gateway.names import duration_ms
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    Language,
    RetryPolicy,
    Settings,
)

RETRY_DELAYS_MS = (
    *(1_000, 5_000, 10_000, 30_000),
    *range(60_000, 600_001, 60_000),
    *(1_200_000, 1_800_000, 3_600_000, 7_200_000),
)
"""RocketMQ's delays in milliseconds before each redelivery."""
RECEIVE_BATCH_MAX = 32
POLLING_SECONDS = 20
SEND_ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Settings of a consumer group that its clients need.

    Attributes:
        fifo: whether it reads in order.
        retry_attempts_max: deliveries after the first one.
        retry_delays_ms: before each redelivery; empty: RocketMQ's.
        lite_topics_max: limit of one client's subscriptions.
    """

    fifo: bool = False
    retry_attempts_max: int = 16
    retry_delays_ms: Sequence[int] = ()
    lite_topics_max: int = 0


def answered(
    settings: Settings, body_bytes_max: int, group: GroupFacts, *, is_node: bool
) -> Settings:
    """Return the settings for the reply to a client.

    Args:
        group: not read for a producer.
        is_node: whether the client is written in Node.js, by its user agent.
    """
    answer = Settings()
    answer.CopyFrom(settings)
    answer.metric.on = False
    answer.metric.ClearField("endpoints")
    if settings.HasField("subscription") or settings.client_type != ClientType.PRODUCER:
        answer.backoff_policy.CopyFrom(retry_policy(group, is_node=is_node))
        subscription = answer.subscription
        subscription.fifo = group.fifo
        subscription.receive_batch_size = RECEIVE_BATCH_MAX
        subscription.long_polling_timeout.CopyFrom(Duration(seconds=POLLING_SECONDS))
        subscription.lite_subscription_quota = group.lite_topics_max
        subscription.max_lite_topic_size = LITE_TOPIC_BYTES_MAX
        return answer
    answer.publishing.max_body_size = body_bytes_max
    answer.publishing.validate_message_type = True
    answer.backoff_policy.CopyFrom(
        RetryPolicy(
            max_attempts=SEND_ATTEMPTS_MAX,
            exponential_backoff=exponential(10, 1_000),
        )
    )
    return answer


def retry_policy(group: GroupFacts, *, is_node: bool) -> RetryPolicy:
    """Return how long a consumer must wait before each redelivery."""
    attempts = group.retry_attempts_max + 1
    delays = group.retry_delays_ms or RETRY_DELAYS_MS
    if is_node:
        return RetryPolicy(
            max_attempts=attempts, exponential_backoff=exponential(delays[0], delays[-1])
        )
    each = CustomizedBackoff(next=[milliseconds(delay) for delay in delays])
    return RetryPolicy(max_attempts=attempts, customized_backoff=each)


def exponential(initial_ms: int, max_ms: int) -> ExponentialBackoff:
    return ExponentialBackoff(
        initial=milliseconds(initial_ms), max=milliseconds(max_ms), multiplier=2
    )


def milliseconds(count: int) -> Duration:
    return Duration(seconds=count // 1000, nanos=count % 1000 * 1_000_000)


def is_node(settings: Settings) -> bool:
    return settings.user_agent.language == Language.NODE_JS


# Settings are kept as long as the client is known.
SETTINGS_BYTES_MAX = 64 << 10
TOPICS_MAX = 1000
# The protocol's limits of `client_properties`.
CLIENT_PROPERTIES_MAX = 32
CLIENT_PROPERTY_BYTES_MAX = 256
CLIENT_PROPERTIES_BYTES_MAX = 4096
_CLIENT_PROPERTY = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


def check_settings(settings: Settings) -> None:
    """Raise Refusal for settings that are too large, or that have a field out of range."""
    topics = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    size = settings.ByteSize()
    if topics > TOPICS_MAX or size > SETTINGS_BYTES_MAX:
        raise Refusal(
            Code.BAD_REQUEST,
            f"the settings have {size} bytes and {topics} topics, more than {SETTINGS_BYTES_MAX} "
            f"bytes or {TOPICS_MAX} topics",
        )
    check_client_type(settings.client_type)
    request_timeout_ms(settings)
    check_client_properties(settings.client_properties)


def check_client_type(client_type: int) -> None:
    """Raise Refusal for an unknown type."""
    if client_type not in ClientType.values():
        text = f"{client_type} is not a type of clients"
        raise Refusal(Code.UNRECOGNIZED_CLIENT_TYPE, text)


def request_timeout_ms(settings: Settings) -> int:
    """Return a client's request timeout in milliseconds; raises Refusal."""
    return duration_ms(settings.request_timeout, "request_timeout")


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Raise Refusal for properties above the protocol's limits."""
    sizes = {name: len(value.encode()) for name, value in properties.items()}
    if (
        len(sizes) > CLIENT_PROPERTIES_MAX
        or not all(map(_CLIENT_PROPERTY.fullmatch, sizes))
        or max(sizes.values(), default=0) > CLIENT_PROPERTY_BYTES_MAX
        or sum(map(len, sizes)) + sum(sizes.values()) > CLIENT_PROPERTIES_BYTES_MAX
    ):
        raise Refusal(
            Code.INVALID_CLIENT_PROPERTIES,
            f"client properties: at most {CLIENT_PROPERTIES_MAX}, with names of up to 64 letters, "
            f"digits, '_', '.' and '-', values of up to {CLIENT_PROPERTY_BYTES_MAX} bytes, "
            f"{CLIENT_PROPERTIES_BYTES_MAX} bytes together",
        )
