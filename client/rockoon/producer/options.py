"""Keyword arguments of producers and their sends, for functions that pass them on; former names of
arguments, which work for one version, with a DeprecationWarning.
"""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from rockoon.compression import Compression, CompressionName
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue


class SendOptions(TypedDict, total=False):
    """Keyword arguments of `Producer.send`."""

    keys: str | Sequence[str] | None
    tags: str | None
    properties: Mapping[str, str] | None
    queue: MessageQueue | None
    ordering_key: str | None
    delay_level: int | None
    delay_seconds: float | None
    deliver_at: datetime | float | None
    key: str | None


class SendManyOptions(TypedDict, total=False):
    """Keyword arguments of `Producer.send_many`."""

    keys: Iterable[str | Sequence[str] | None] | None
    tags: str | None
    ordering_key: str | None
    queue: MessageQueue | None
    key: str | None


class HalfMessageOptions(TypedDict, total=False):
    """Keyword arguments of `TransactionalProducer.begin`."""

    keys: str | Sequence[str] | None
    tags: str | None
    properties: Mapping[str, str] | None
    queue: MessageQueue | None
    ordering_key: str | None
    check_after_seconds: int | None
    key: str | None


class TransactionalProducerOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.transactional_producer`, without its functions."""

    delivery_timeout_seconds: float
    open_max: int
    checks_max: int
    check_seconds_max: float


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.producer`, without its functions; see `ProducerSettings`."""

    idempotent: bool
    linger_ms: float
    delivery_timeout_seconds: float
    reply_timeout_seconds: float
    batch_bytes_max: int
    batch_messages_max: int
    in_flight_max: int
    buffer_bytes_max: int
    drain_bytes: int
    compression: Compression | CompressionName
    compression_bytes_min: int
    compression_level: int


# Modules that may be between the program and the use of a former name on the stack.
_NOT_HIS = ("rockoon", "contextlib")


def renamed_key(key: str, ordering_key: str | None) -> str:
    """Return the ordering key of a call that uses its former name `key`.

    Raises:
        InvalidArgument: both names are used.
    """
    if ordering_key is not None:
        raise InvalidArgument(reason="key is the former name of ordering_key: use only the latter")
    warnings.warn("key= is now ordering_key=", DeprecationWarning, stacklevel=_caller_level())
    return key


def rename_key(options: SendOptions | SendManyOptions | HalfMessageOptions) -> None:
    """Rename `key` in options for another thread, whose stack does not contain the caller."""
    key = options.pop("key", None)
    if key is not None:
        options["ordering_key"] = renamed_key(key, options.get("ordering_key"))


def _caller_level() -> int:
    """Return the stack level of the program's code, for which Python shows the warning."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_HIS:
        level, frame = level + 1, frame.f_back
    return level - 1
