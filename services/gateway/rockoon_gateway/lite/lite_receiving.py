"""Receiving of lite consumers: messages of any of a client's lite topics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rockoon.errors import TopicNotFound
from rockoon.receiving.received import ReceivedMessages
from rockoon.subscription import ALL, Subscription
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.lite.subscriptions import LiteSubscription

Receive = Callable[[Sequence[Subscription], float], Awaitable[ReceivedMessages]]
"""Function that receives messages from topics, for some seconds at most. If cancelled, it returns
its messages.
"""


class LiteReceiving:
    """Receives messages of lite topics for the clients that subscribe to them.

    Args:
        lite_topics: finds lite topics.
    """

    def __init__(self, lite_topics: LiteTopics) -> None:
        self._lite_topics = lite_topics

    async def receive(
        self, subscription: LiteSubscription, wait_seconds: float, receive: Receive
    ) -> ReceivedMessages:
        """Return messages of a client's lite topics; none after the time limit.

        The lite topics may change during the wait: then it waits for the new ones. An expired one
        is left out until the client names it again.

        Args:
            subscription: of the client.
            wait_seconds: how long to wait for the first message.
            receive: of the engine.

        Raises:
            RockoonError: see `receive`.
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
                # The lite topics have changed. A receive without a wait is not repeated.
                if not left:
                    return ReceivedMessages()
            except TopicNotFound as expired:
                if gone == str(expired):
                    raise
                gone = str(expired)
            finally:
                subscription.waiting.discard(patience)

    def _stored(self, subscription: LiteSubscription) -> list[Subscription]:
        """Return the subscriptions to the stored topics of existing lite topics."""
        parent = subscription.parent
        return [
            Subscription.parse(stored_lite_topic(parent, each), ALL)
            for each in subscription.lite_topics
            if self._lite_topics.known(parent, each) is not None
        ]
