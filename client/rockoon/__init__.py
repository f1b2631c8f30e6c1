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
    from rockoon import errors, sync
    from rockoon.cluster import Cluster, connect
    from rockoon.consumer.consume_result import ConsumeResult
    from rockoon.consumer.order import Order
    from rockoon.consumer.process_queue import FlowLimits
    from rockoon.consumer.pull import PullLimits
    from rockoon.consumer.pull_consumer import PullConsumer
    from rockoon.consumer.push_consumer import PushConsumer
    from rockoon.consumer.redelivery import LocalRedelivery
    from rockoon.consumer.retry import RetryPolicy
    from rockoon.consumer.timing import Timing
    from rockoon.errors import RockoonError
    from rockoon.message import Batch, Message, SendResult
    from rockoon.net.access import AccessKey
    from rockoon.net.routes import TopicRoute
    from rockoon.net.tls import Tls
    from rockoon.offsets.custom_offset_store import CustomOffsetStore, OffsetBackend, OffsetSnapshot
    from rockoon.offsets.local_offsets import LocalFileOffsetStore
    from rockoon.offsets.offset_store import OffsetStore
    from rockoon.offsets.own_start import Position
    from rockoon.offsets.start import ConsumeFrom, Start
    from rockoon.producer.producer import Producer
    from rockoon.producer.receipt import Receipt, SendResults
    from rockoon.receiving.received import ReceiptHandle, ReceivedMessage
    from rockoon.receiving.simple_consumer import SimpleConsumer
    from rockoon.subscription import Sql
    from rockoon.transactions.producer import TransactionalProducer
    from rockoon.transactions.transaction import Resolution, Transaction
    from rockoon_core.message_queue import MessageQueue

# gRPC reads this variable when it is imported, which is after this module. Without it, gRPC stops
# and restarts its threads around each fork. If code runs between fork and exec (`preexec_fn`, which
# PySpark uses to start Java), the child sometimes aborts. No asyncio client works in a forked child
# anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "AccessKey",
    "Batch",
    "Cluster",
    "ConsumeFrom",
    "ConsumeResult",
    "CustomOffsetStore",
    "FlowLimits",
    "LocalFileOffsetStore",
    "LocalRedelivery",
    "Message",
    "MessageQueue",
    "OffsetBackend",
    "OffsetSnapshot",
    "OffsetStore",
    "Order",
    "Position",
    "Producer",
    "PullConsumer",
    "PullLimits",
    "PushConsumer",
    "Receipt",
    "ReceiptHandle",
    "ReceivedMessage",
    "Resolution",
    "RetryPolicy",
    "RockoonError",
    "SendResult",
    "SendResults",
    "SimpleConsumer",
    "Sql",
    "Start",
    "Timing",
    "Tls",
    "TopicRoute",
    "Transaction",
    "TransactionalProducer",
    "connect",
    "errors",
    "sync",
]

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
    "Order": "rockoon.consumer.order",
    "Position": "rockoon.offsets.own_start",
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
    "Timing": "rockoon.consumer.timing",
    "Tls": "rockoon.net.tls",
    "TopicRoute": "rockoon.net.routes",
    "Transaction": "rockoon.transactions.transaction",
    "TransactionalProducer": "rockoon.transactions.producer",
    "connect": "rockoon.cluster",
}

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
