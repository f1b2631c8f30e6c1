"""Keyword arguments of producers and their sends, for functions that pass them on."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from rockoon.compression import Compression, CompressionName
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
