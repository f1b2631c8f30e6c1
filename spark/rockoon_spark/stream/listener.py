"""Commits of a stream's offsets for its consumer group as soon as a batch ends.

Without `BatchEnds`, a stream commits when Spark plans the next batch: within moments, unless the
query has a `Trigger.ProcessingTime` of minutes.
"""

import json
import logging
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from rockoon.errors import RockoonError
from rockoon_spark.endpoint import AnyEndpoint, open_connection
from rockoon_spark.stream.group_progress import (
    AFTER_FENCE,
    GroupFenced,
    GroupInUse,
    GroupProgress,
)
from rockoon_spark.stream.plan import CheckpointError, StreamOffsets

log = logging.getLogger(__name__)


class BatchEnds(StreamingQueryListener):
    """Commits the offsets of finished batches. Spark calls it from one thread.

    Args:
        endpoint: of the cluster.

    Raises:
        NameserverUnavailable: no nameserver answers.
    """

    def __init__(self, endpoint: AnyEndpoint) -> None:
        self._blocking = open_connection(endpoint)
        self._blocking.__enter__()
        self._groups: dict[str, GroupProgress] = {}

    def close(self) -> None:
        """Close the connection to the cluster, after Spark has removed the listener."""
        self._blocking.__exit__(None, None, None)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                content = json.loads(source.endOffset)
                if content.get("group"):
                    self._commit(content)
            except (ValueError, AttributeError, TypeError, CheckpointError):
                # Progress of another kind of source.
                continue
            except (RockoonError, GroupInUse, GroupFenced) as error:
                # Not raised: the stream gets the same error when it plans its next batch.
                log.warning("query %s: commit failed: %s", event.progress.id, error)

    def _commit(self, content: dict[str, Any]) -> None:
        group, offsets = content["group"], StreamOffsets.parse(content)
        if group not in self._groups:
            self._groups[group] = GroupProgress(self._blocking.asyncio, group, AFTER_FENCE)
        progress = self._groups[group]

        async def commit() -> None:
            for topic in {queue.topic for queue in offsets.queues}:
                await self._blocking.asyncio.route(topic)
            await progress.join(
                {queue: position.create_revision for queue, position in offsets.queues.items()}
            )
            await progress.store(
                {queue: position.offset for queue, position in offsets.queues.items()}
            )

        self._blocking.call(commit())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query that starts has no offsets to commit."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new offsets to commit."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: Spark has reported all finished batches before."""
