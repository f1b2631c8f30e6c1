"""The keyword arguments of pull consumers, for functions that pass them on."""

from typing import TypedDict

from rockoon.consumer.pull import PullLimits
from rockoon.consumer.pull_consumer import OnOutOfRange


class ReadOptions(TypedDict, total=False):
    """Of `Cluster.pull_consumer`, those that say how to read and not where."""

    on_out_of_range: OnOutOfRange
    limits: PullLimits | None
    prefetch_batches: int
    check_crcs: bool
