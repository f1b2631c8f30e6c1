"""Checks of the settings that a client sends by Telemetry. Pure."""

import re
from collections.abc import Mapping

from rockoon_gateway.codes import Refusal
from rockoon_gateway.times import duration_ms
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import ClientType, Code, Settings

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
