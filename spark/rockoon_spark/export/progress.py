"""Progress of an export as that of a consumer group, so that lag metrics and alerts include it.

The manifests decide where a run begins; the group's progress follows them. The ends of the queues
are read before the ends of the logs, so a run exports each message below them. If the progress
cannot be committed, a warning is logged, and the next run commits it.
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Self

from rockoon.errors import RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_spark.endpoint import endpoint_of
from rockoon_spark.export.rows import TopicChoice
from rockoon_spark.source.live_cluster import LiveCluster
from rockoon_spark.source.log_source import BrokerAway
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.group_progress import GroupFenced, GroupInUse
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import StreamQueue

log = logging.getLogger(__name__)

_AFTER_FENCE = "The next run of the export commits its progress again."


class ExportProgress:
    """Ends of the queues at the start of a run, which are committed at its end.

    Args:
        source: the cluster.
        topics: the exported topics.
        group: the consumer group; it is created if it does not exist.

    Raises:
        GroupInUse: live consumers read with the group.
        RockoonError: no nameserver answers.
    """

    def __init__(self, source: LiveCluster, topics: TopicChoice, group: str) -> None:
        named = StreamOptions.parse(
            {"endpoint": str(source.endpoint), "topicPattern": "*", "consumerGroup": group}
        )
        options = replace(
            named,
            endpoint=endpoint_of(source.endpoint),
            topics=dict.fromkeys(topics.names or (), "topics"),
            selection=topics.selection,
        )
        self._cluster = StreamCluster(options, _AFTER_FENCE)
        try:
            self._now = self._read(group)
        except BaseException:
            self._cluster.close()
            raise

    def _read(self, group: str) -> dict[MessageQueue, StreamQueue]:
        try:
            now = self._cluster.queues()
            self._cluster.join_group(now)
        except (BrokerAway, RockoonError) as error:
            log.warning("this run commits no progress for group %s: %s", group, error)
            return {}
        return now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def commit(self, brokers: Collection[str]) -> None:
        """Commit the ends of the queues of brokers whose logs were exported."""
        ends = {queue: each.end for queue, each in self._now.items() if queue.broker in brokers}
        try:
            self._cluster.commit(ends)
        except (GroupFenced, GroupInUse, RockoonError) as error:
            log.warning("the messages are exported, but not committed: %s", error)
