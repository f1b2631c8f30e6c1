"""Events that wake a waiting lite consumer."""

import asyncio
from collections.abc import Sequence

from rockoon.net.routes import TopicRoute
from rockoon.receiving.received import ReceivedMessages
from rockoon.subscription import Subscription
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.consuming.receiving import LiteReceiving
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.subscriptions import LiteSubscription

SECONDS_MAX = 60.0


class EveryLiteTopic(LiteTopics):
    """Every requested topic exists."""

    def __init__(self) -> None:
        pass

    def known(self, parent: str, lite_topic: str) -> TopicRoute:
        return TopicRoute(stored_lite_topic(parent, lite_topic), (), {}, 1, 1, 1, 6, {})


class Waiting:
    """An engine without messages, which records the topics of receives."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[list[str]]()

    async def receive(
        self, subscriptions: Sequence[Subscription], _wait_seconds: float
    ) -> ReceivedMessages:
        self.asked.put_nowait([each.topic for each in subscriptions])
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")


async def test_a_receiver_that_waits_receives_from_what_is_subscribed_to_meanwhile() -> None:
    mine, engine = LiteSubscription("c", "g", "t", {"one": None}), Waiting()
    one, two, three = (stored_lite_topic("t", each) for each in ("one", "two", "three"))
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
        receiving = LiteReceiving(EveryLiteTopic()).receive(mine, SECONDS_MAX, engine.receive)
        waiting = tasks.create_task(receiving)
        assert await engine.asked.get() == [one]
        mine.add(["two"])
        # A turn later its timeout is expiring, and has not ended it yet.
        await asyncio.sleep(0)
        mine.add(["three"])
        assert await engine.asked.get() == [one, two, three]
        mine.remove(["two"])
        assert await engine.asked.get() == [one, three]
        waiting.cancel()
