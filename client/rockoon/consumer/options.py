"""Keyword arguments of pull and push consumers, for functions that pass them on."""

from typing import TypedDict

from rockoon.allocation import AllocationStrategy
from rockoon.consumer.consume_result import Order
from rockoon.consumer.process_queue import FlowLimits
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.pull_consumer import OnOutOfRange
from rockoon.consumer.push_consumer import OnDamaged, Timing
from rockoon.consumer.queue_revocation import QueuesFunction
from rockoon.consumer.redelivery import Redelivery
from rockoon.consumer.retry import RetryPolicy
from rockoon.offsets.local_offsets import Mode
from rockoon.offsets.offset_store import OffsetStore
from rockoon.offsets.start import ConsumeFrom, StartName
from rockoon.subscription import MissingTopicsRule


class ReadOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.pull_consumer` without those of group and start position."""

    on_out_of_range: OnOutOfRange
    limits: PullLimits | None
    prefetch_batches: int
    check_crcs: bool
    missing_topics: MissingTopicsRule


class PushOptions(TypedDict, total=False):
    """Keyword arguments of `Cluster.push_consumer` except `batch_max`, which decides the handler's
    type."""

    mode: Mode
    consume_from: ConsumeFrom | StartName
    concurrency: int
    orderly: bool | Order
    allocation: AllocationStrategy
    member_id: str | None
    offset_store: OffsetStore | None
    redelivery: Redelivery | RetryPolicy | None
    pull_limits: PullLimits | None
    flow_limits: FlowLimits | None
    timing: Timing | None
    create_group: bool
    check_crcs: bool
    on_damaged: OnDamaged
    missing_topics: MissingTopicsRule
    on_assigned: QueuesFunction | None
    on_revoked: QueuesFunction | None
