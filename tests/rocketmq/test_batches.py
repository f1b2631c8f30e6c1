"""A store with a topic in batches is RocketMQ's until that topic is deleted; Rockoon changes
nothing."""

import asyncio
from pathlib import Path

import pytest

from rocketmq import real
from rocketmq.real import message
from rocketmq.visits import rockoon_on
from support import rocketmq_stores
from support.broker import running_broker

INNER = [b"inner %d" % number for number in range(5)]


@pytest.mark.timeout(900)
def test_a_refused_store_goes_on_in_rocketmq_and_opens_without_its_topic_in_batches(
    tmp_path: Path,
) -> None:
    store = tmp_path / "cluster" / real.BROKER
    with real.running(store) as broker:
        broker.topic("orders", 1)
        broker.topic("inner", 1, queue_type="BatchCQ")
        broker.send("orders", message(b"plain"))
        broker.do("batch", topic="inner", messages=[message(body) for body in INNER])
    before = rocketmq_stores.content(store)

    async def refused() -> None:
        with pytest.raises(BaseExceptionGroup) as raised:
            async with running_broker(store, ["127.0.0.1:1"], **rocketmq_stores.LAYOUT):
                pass
        assert "cannot read: inner" in repr(raised.value.exceptions)

    asyncio.run(refused())
    assert rocketmq_stores.content(store) == before

    with real.running(store) as broker:
        assert broker.bodies("inner") == INNER
        broker.do("delete", topic="inner")
    with rockoon_on(store) as visitor:
        visitor.topic("orders", 1)
        assert [body for _, _, body, _ in visitor.seen("orders")] == [b"plain"]
    with real.running(store) as broker:
        assert broker.bodies("orders") == [b"plain"]
