"""An idle producer sleeps until it gets a message."""

import asyncio

from bench.cluster.counted import CallCounter
from rockoon.cluster import Cluster
from support.fake_append_broker import FakeAppendBroker

WINDOW_SECONDS = 0.6


async def test_a_producer_whose_messages_are_stored_does_nothing(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    async with cluster.producer() as producer:
        await producer.send("orders", b"one")
        counter = CallCounter()
        # The next sweep finds no more work.
        await asyncio.sleep(WINDOW_SECONDS)
        counter.start()
        await asyncio.sleep(WINDOW_SECONDS)
        counter.stop()
        assert counter.calls("rockoon/producer") == {}
        await producer.send("orders", b"two")
    bodies = [body for batch in broker.batches("orders") for body in batch.columns.bodies]
    assert sorted(bodies) == [b"one", b"two"]
