"""Rockoon's Python SDK.

    async with rockoon.connect("127.0.0.1:9876") as cluster:
        producer = cluster.producer()
        result = await producer.send("orders", b"one")

Names are loaded when they are first used: the `rockoon` command starts with this module, and must
not wait for gRPC and NumPy to print its help.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet

if TYPE_CHECKING:
    from rockoon import errors, sync
    from rockoon.access import AccessKey
    from rockoon.connection import Cluster, connect
    from rockoon.consume_result import ConsumeResult
    from rockoon.errors import RockoonError
    from rockoon.kept_offset_store import Keeper, Kept, KeptOffsetStore
    from rockoon.local_offsets import LocalFileOffsetStore
    from rockoon.message import Batch, Message, MessageQueue, SendResult
    from rockoon.offset_store import OffsetStore
    from rockoon.own_start import Place
    from rockoon.process_queue import FlowLimits
    from rockoon.producer import Producer
    from rockoon.pull_consumer import PullConsumer
    from rockoon.pulling import PullLimits
    from rockoon.push_consumer import PushConsumer
    from rockoon.receipt import Receipt, SendResults
    from rockoon.redelivery import LocalRedelivery
    from rockoon.retry import RetryPolicy
    from rockoon.routes import TopicRoute
    from rockoon.start import ConsumeFrom, Start
    from rockoon.subscription import Sql
    from rockoon.tls import Tls
    from rockoon.transaction import Resolution, Transaction
    from rockoon.transactional_producer import TransactionalProducer

# gRPC reads this when it is imported, which is after this module. Without it gRPC stops and starts
# its threads around forks; where code runs between fork and exec (`preexec_fn`, by which PySpark
# starts Java), the child aborts now and then. No asyncio client goes on in a forked child anyway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "AccessKey",
    "Batch",
    "Cluster",
    "ConsumeFrom",
    "ConsumeResult",
    "FlowLimits",
    "Keeper",
    "Kept",
    "KeptOffsetStore",
    "LocalFileOffsetStore",
    "LocalRedelivery",
    "Message",
    "MessageQueue",
    "OffsetStore",
    "Place",
    "Producer",
    "PullConsumer",
    "PullLimits",
    "PushConsumer",
    "Receipt",
    "Resolution",
    "RetryPolicy",
    "RockoonError",
    "SendResult",
    "SendResults",
    "Sql",
    "Start",
    "Tls",
    "TopicRoute",
    "Transaction",
    "TransactionalProducer",
    "connect",
    "errors",
    "sync",
]

_HOMES = {
    "AccessKey": "rockoon.access",
    "Batch": "rockoon.message",
    "Cluster": "rockoon.connection",
    "ConsumeFrom": "rockoon.start",
    "ConsumeResult": "rockoon.consume_result",
    "FlowLimits": "rockoon.process_queue",
    "Keeper": "rockoon.kept_offset_store",
    "Kept": "rockoon.kept_offset_store",
    "KeptOffsetStore": "rockoon.kept_offset_store",
    "LocalFileOffsetStore": "rockoon.local_offsets",
    "LocalRedelivery": "rockoon.redelivery",
    "Message": "rockoon.message",
    "MessageQueue": "rockoon.message",
    "OffsetStore": "rockoon.offset_store",
    "Place": "rockoon.own_start",
    "Producer": "rockoon.producer",
    "PullConsumer": "rockoon.pull_consumer",
    "PullLimits": "rockoon.pulling",
    "PushConsumer": "rockoon.push_consumer",
    "Receipt": "rockoon.receipt",
    "Resolution": "rockoon.transaction",
    "RetryPolicy": "rockoon.retry",
    "RockoonError": "rockoon.errors",
    "SendResult": "rockoon.message",
    "SendResults": "rockoon.receipt",
    "Sql": "rockoon.subscription",
    "Start": "rockoon.start",
    "Tls": "rockoon.tls",
    "TopicRoute": "rockoon.routes",
    "Transaction": "rockoon.transaction",
    "TransactionalProducer": "rockoon.transactional_producer",
    "connect": "rockoon.connection",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "sync"):
        return import_module(f"rockoon.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rockoon' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
