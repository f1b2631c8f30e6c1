"""A stream of a topic with more queues on one broker than a call may name, without Spark."""

import asyncio
import json
from collections.abc import Callable, Mapping

import pytest

from rockoon_core.message_queue import MessageQueue
from rockoon_spark.stream.cluster import StreamCluster
from rockoon_spark.stream.options import StreamOptions
from rockoon_spark.stream.plan import INITIAL, StreamQueue, backlog, ends_after, ranges
from support.fake_cluster import FakeCluster

QUEUES, TOPIC = 5000, "wide"
LAST = MessageQueue(TOPIC, "broker-a", QUEUES - 1)


def planned(
    address: str, options: Mapping[str, str]
) -> tuple[dict[MessageQueue, StreamQueue], dict[MessageQueue, int]]:
    """Return all queues, and the start offset of a stream on each; the group stores progress."""
    cluster = StreamCluster(StreamOptions.parse({"endpoint": address, "topics": TOPIC, **options}))
    try:
        now = cluster.queues()
        cluster.join_group(now)
        starts = cluster.starting(now)
        cluster.commit({queue: each.end for queue, each in now.items()})
    finally:
        cluster.close()
    return now, starts


def grown(address: str, grow: Callable[[], None]) -> dict[MessageQueue, int]:
    """Plan two batches, with more queues before the second one, and commit them; return the offset
    at which the second batch begins on each queue."""
    options = {"endpoint": address, "topics": TOPIC, "consumerGroup": "growing"}
    stream = StreamCluster(StreamOptions.parse({**options, "startingOffsets": "earliest"}))
    try:
        now = stream.queues()
        stream.join_group(now)
        found = backlog(INITIAL, now, stream.starting(now))
        first = ends_after(INITIAL, found, found.messages)
        grow()
        now = stream.queues()
        stream.join_group(now)
        stream.commit({queue: each.offset for queue, each in first.queues.items()})
        found = backlog(first, now, {})
        assert not found.losses
        stream.commit({queue: each.end for queue, each in now.items()})
        ends = ends_after(first, found, found.messages)
        assert len(stream.partitions(ranges(first, ends), [])) == sum(
            map(bool, found.messages.values())
        )
    finally:
        stream.close()
    return {queue: each.offset for queue, each in found.begins.items()}


async def test_a_topic_that_grows_beyond_the_queues_of_a_call_does_not_stop_a_stream() -> None:
    async with FakeCluster() as fake:
        fake.create_topic(TOPIC, 4000)
        for queue_id in (0, 3999):
            fake.append(TOPIC, [b"1", b"2"], queue_id=queue_id)
        loop = asyncio.get_running_loop()

        def grow() -> None:
            async def add() -> None:
                fake.add_queues(TOPIC, "broker-a", 1000)
                fake.append(TOPIC, [b"3"], queue_id=4999)

            asyncio.run_coroutine_threadsafe(add(), loop).result()

        begins = await asyncio.to_thread(grown, fake.address, grow)
        assert len(begins) == QUEUES
        assert {queue.queue_id: offset for queue, offset in begins.items() if offset} == {
            0: 2,
            3999: 2,
        }
        assert begins[LAST] == 0


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
