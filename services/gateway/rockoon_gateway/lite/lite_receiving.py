"""Receiving of lite consumers: messages of the lite topics of each, whichever has some."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rockoon.errors import TopicNotFound
from rockoon.receiving.received import ReceivedMessages
from rockoon.subscription import ALL, Subscription
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.subscriptions import LiteSubscription

Receive = Callable[[Sequence[Subscription], float], Awaitable[ReceivedMessages]]
"""Receives from topics, for some seconds at most. Cancelled, it gives back what it has."""


class LiteReceiving:
    """Receives for lite consumers.

    Args:
        lite_topics: says which there are.
    """

    def __init__(self, lite_topics: LiteTopics) -> None:
        self._lite_topics = lite_topics

    async def receive(
        self, subscription: LiteSubscription, wait_seconds: float, receive: Receive
    ) -> ReceivedMessages:
        """Messages of a client's lite topics; none when the time is over.

        Its lite topics may change while it waits: then it waits for the others. One that has
        expired is left out, until the client names it again.

        Args:
            subscription: the client's.
            wait_seconds: how long to wait for the first message.
            receive: of the engine.

        Raises:
            RockoonError: as `receive`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        gone = ""
        while True:
            left = max(deadline - loop.time(), 0.0)
            patience = asyncio.timeout(None)
            subscription.waiting.add(patience)
            try:
                async with patience:
                    if topics := self._stored(subscription):
                        return await receive(topics, left)
                    await asyncio.sleep(left)
                    return ReceivedMessages()
            except TimeoutError:
                # It reads others now. Whoever asked only once has had an answer to that.
                if not left:
                    return ReceivedMessages()
            except TopicNotFound as expired:
                if gone == str(expired):
                    raise
                gone = str(expired)
            finally:
                subscription.waiting.discard(patience)

    def _stored(self, subscription: LiteSubscription) -> list[Subscription]:
        """What keeps its lite topics, of those that there are."""
        parent = subscription.parent
        return [
            Subscription.parse(stored_lite_topic(parent, each), ALL)
            for each in subscription.lite_topics
            if self._lite_topics.known(parent, each) is not None
        ]
