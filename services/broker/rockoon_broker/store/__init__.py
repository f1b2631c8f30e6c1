"""RocketMQ's store directory: CommitLog, ConsumeQueues, recovery, retention.

Synchronous; owned by one thread. The entry point is `Store`. Reading order: `store`, `log`,
`queues`, `recovery`, `reading`, `retention`, `compacted`.
"""

from rockoon_broker.store.appender import Appended
from rockoon_broker.store.reading.reader import GetResult, GetStatus, QueueStatus, TimeBoundary
from rockoon_broker.store.settings import Flush, StoreSettings
from rockoon_broker.store.store import Store

__all__ = [
    "Appended",
    "Flush",
    "GetResult",
    "GetStatus",
    "QueueStatus",
    "Store",
    "StoreSettings",
    "TimeBoundary",
]
