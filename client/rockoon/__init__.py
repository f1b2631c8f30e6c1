"""Rockoon's Python SDK.

    async with rockoon.connect("127.0.0.1:9876") as cluster:
        producer = cluster.producer()
        result = await producer.send("orders", b"one")

Public names are imported on first use: the `rockoon` command imports this module, and its help must
not wait for gRPC and NumPy.
"""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet

if TYPE_CHECKING:
    from rockoon import errors as errors
    from rockoon import sync as sync
    from rockoon.cluster import Cluster as Cluster
    from rockoon.cluster import connect as connect
    from rockoon.consumer.consume_result import ConsumeResult as ConsumeResult
    from rockoon.consumer.consume_result import Order as Order
    from rockoon.consumer.process_queue import FlowLimits as FlowLimits
    from rockoon.consumer.pull import PullLimits as PullLimits
    from rockoon.consumer.pull_consumer import PullConsumer as PullConsumer
    from rockoon.consumer.push_consumer import PushConsumer as PushConsumer
    from rockoon.consumer.push_consumer import Timing as Timing
    from rockoon.consumer.redelivery import LocalRedelivery as LocalRedelivery
    from rockoon.consumer.retry import RetryPolicy as RetryPolicy
    from rockoon.errors import RockoonError as RockoonError
    from rockoon.message import Batch as Batch
    from rockoon.message import Message as Message
    from rockoon.message import SendResult as SendResult
    from rockoon.net.access import AccessKey as AccessKey
    from rockoon.net.routes import TopicRoute as TopicRoute
    from rockoon.net.tls import Tls as Tls
    from rockoon.offsets.custom_offset_store import CustomOffsetStore as CustomOffsetStore
    from rockoon.offsets.custom_offset_store import OffsetBackend as OffsetBackend
    from rockoon.offsets.custom_offset_store import OffsetSnapshot as OffsetSnapshot
    from rockoon.offsets.local_offsets import LocalFileOffsetStore as LocalFileOffsetStore
    from rockoon.offsets.offset_store import OffsetStore as OffsetStore
    from rockoon.offsets.start import ConsumeFrom as ConsumeFrom
    from rockoon.offsets.start import Position as Position
    from rockoon.offsets.start import Start as Start
    from rockoon.producer.producer import Producer as Producer
    from rockoon.producer.receipt import Receipt as Receipt
    from rockoon.producer.receipt import SendResults as SendResults
    from rockoon.receiving.received import ReceiptHandle as ReceiptHandle
    from rockoon.receiving.received import ReceivedMessage as ReceivedMessage
    from rockoon.receiving.simple_consumer import SimpleConsumer as SimpleConsumer
    from rockoon.subscription import Sql as Sql
    from rockoon.transactions.producer import TransactionalProducer as TransactionalProducer
    from rockoon.transactions.transaction import Resolution as Resolution
    from rockoon.transactions.transaction import Transaction as Transaction
    from rockoon_core.message_queue import MessageQueue as MessageQueue

# gRPC reads this variable when it is imported, which is after this module. Without it, gRPC stops
# and restarts its threads around each fork. If code runs between fork and exec (`preexec_fn`, which
# PySpark uses to start Java), the child sometimes aborts. No asyncio client works in a forked child
# anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_HOMES = {
    "AccessKey": "rockoon.net.access",
    "Batch": "rockoon.message",
    "Cluster": "rockoon.cluster",
    "ConsumeFrom": "rockoon.offsets.start",
    "ConsumeResult": "rockoon.consumer.consume_result",
    "CustomOffsetStore": "rockoon.offsets.custom_offset_store",
    "FlowLimits": "rockoon.consumer.process_queue",
    "LocalFileOffsetStore": "rockoon.offsets.local_offsets",
    "LocalRedelivery": "rockoon.consumer.redelivery",
    "Message": "rockoon.message",
    "MessageQueue": "rockoon.message",
    "OffsetBackend": "rockoon.offsets.custom_offset_store",
    "OffsetSnapshot": "rockoon.offsets.custom_offset_store",
    "OffsetStore": "rockoon.offsets.offset_store",
    "Order": "rockoon.consumer.consume_result",
    "Position": "rockoon.offsets.start",
    "Producer": "rockoon.producer.producer",
    "PullConsumer": "rockoon.consumer.pull_consumer",
    "PullLimits": "rockoon.consumer.pull",
    "PushConsumer": "rockoon.consumer.push_consumer",
    "Receipt": "rockoon.producer.receipt",
    "ReceiptHandle": "rockoon.receiving.received",
    "ReceivedMessage": "rockoon.receiving.received",
    "Resolution": "rockoon.transactions.transaction",
    "RetryPolicy": "rockoon.consumer.retry",
    "RockoonError": "rockoon.errors",
    "SendResult": "rockoon.message",
    "SendResults": "rockoon.producer.receipt",
    "SimpleConsumer": "rockoon.receiving.simple_consumer",
    "Sql": "rockoon.subscription",
    "Start": "rockoon.offsets.start",
    "Timing": "rockoon.consumer.push_consumer",
    "Tls": "rockoon.net.tls",
    "TopicRoute": "rockoon.net.routes",
    "Transaction": "rockoon.transactions.transaction",
    "TransactionalProducer": "rockoon.transactions.producer",
    "connect": "rockoon.cluster",
}

__all__ = [*sorted(_HOMES), "errors", "sync"]

# Former names; they work for one version, with a warning.
_FORMER = {
    "Keeper": "OffsetBackend",
    "Kept": "OffsetSnapshot",
    "KeptOffsetStore": "CustomOffsetStore",
    "Place": "Position",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "sync"):
        return import_module(f"rockoon.{name}")
    if now := _FORMER.get(name):
        warnings.warn(f"rockoon.{name} is now rockoon.{now}", DeprecationWarning, stacklevel=2)
        name = now
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rockoon' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
