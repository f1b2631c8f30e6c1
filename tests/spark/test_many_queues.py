"""A stream of a topic with more queues on one broker than a call may name, without Spark."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.source.options import StreamOptions
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.plan import StreamQueue
from support.fake_cluster import FakeCluster

QUEUES, TOPIC = 5000, "wide"
LAST = MessageQueue(TOPIC, "broker-a", QUEUES - 1)


def planned(
    address: str, options: Mapping[str, str]
) -> tuple[dict[MessageQueue, StreamQueue], dict[MessageQueue, int]]:
    """All queues as they are, and where a stream begins on each; the group stores its progress."""
    cluster = StreamCluster(StreamOptions.parse({"endpoint": address, "topics": TOPIC, **options}))
    try:
        now = cluster.queues()
        cluster.join_group(now)
        starts = cluster.starting(now)
        cluster.commit({queue: each.end for queue, each in now.items()})
    finally:
        cluster.close()
    return now, starts


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "latest", "consumerGroup": "job"}, 3),
        ({"startingOffsets": json.dumps({TOPIC: {str(QUEUES - 1): 2}})}, 2),
        # The fake broker stores message n at 1000 + n, and this is later.
        ({"startingTimestamp": "10000000000"}, 3),
    ],
)
async def test_a_stream_of_a_wide_topic_is_planned(options: dict[str, str], start: int) -> None:
    async with FakeCluster() as fake:
        fake.create_topic(TOPIC, QUEUES)
        fake.append(TOPIC, [b"1", b"2", b"3"], queue_id=QUEUES - 1)
        now, starts = await asyncio.to_thread(planned, fake.address, options)
        assert len(now) == len(starts) == QUEUES
        assert now[LAST].end == 3
        assert starts[LAST] == start
        assert [offset for _, _, offset in fake.offset.commits if offset] == (
            [3] if "consumerGroup" in options else []
        )
