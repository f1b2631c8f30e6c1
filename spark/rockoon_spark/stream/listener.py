"""Progress of consumer groups as soon as a stream's batch ends, not with the trigger after it.

    spark.streams.addListener(BatchEnds("127.0.0.1:9876"))

A stream commits for its `consumerGroup` by itself whenever Spark looks for the next batch: within
moments, unless the query has a `Trigger.ProcessingTime` of minutes. This listener, in the driver,
hears of each batch when Spark has noted its end, and commits then. One is enough for all queries of
a session over one cluster.
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

import rockoon.sync
from rockoon.errors import RockoonError
from rockoon_spark.stream.offsets import CheckpointError, StreamOffsets
from rockoon_spark.stream.progress import GroupFenced, GroupInUse, GroupProgress

log = logging.getLogger(__name__)


class BatchEnds(StreamingQueryListener):
    """Commits what a batch has finished. Spark calls it from one thread.

    Args:
        endpoint: nameservers, as `rockoon.connect` takes them.

    Raises:
        NameserverUnavailable: none answers.
    """

    def __init__(self, endpoint: str) -> None:
        self._blocking = rockoon.sync.connect(endpoint)
        self._blocking.__enter__()
        self._groups: dict[str, GroupProgress] = {}

    def close(self) -> None:
        """End the connection, once the listener was removed."""
        self._blocking.__exit__(None, None, None)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                content = json.loads(source.endOffset)
                if content.get("group"):
                    self._commit(content)
            except (ValueError, AttributeError, TypeError, CheckpointError):
                # The progress of some other source.
                continue
            except (RockoonError, GroupInUse, GroupFenced) as error:
                # The stream itself meets the same when it looks for its next batch.
                log.warning("query %s: %s", event.progress.id, error)

    def _commit(self, content: dict[str, Any]) -> None:
        group, offsets = content["group"], StreamOffsets.parse(content)
        if group not in self._groups:
            self._groups[group] = GroupProgress(self._blocking.asyncio, group)
        progress = self._groups[group]

        async def commit() -> None:
            for topic in {queue.topic for queue in offsets.queues}:
                await self._blocking.asyncio.route(topic)
            await progress.join(
                {queue: place.create_revision for queue, place in offsets.queues.items()}
            )
            await progress.store({queue: place.offset for queue, place in offsets.queues.items()})

        self._blocking.call(commit())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing was read yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing more was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What was finished was told."""
