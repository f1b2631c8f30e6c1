"""Messages and receivers of the tests."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from rockoon.cluster import Cluster
from rockoon.errors import RockoonError
from rockoon.receiving.received import ReceivedMessage
from rockoon.receiving.simple_consumer import SimpleConsumer
from support.eventually import answered
from support.waiting import DEADLINE_SECONDS


class Orders:
    """A topic, and a group that receives from it."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.group = f"group-of-{topic}"

    async def send(self, bodies: Iterable[int], **options: Any) -> None:
        async with self.cluster.producer(linger_ms=0) as producer:
            for each in bodies:
                await producer.send(self.topic, b"%d" % each, **options)

    def consumer(
        self, expression: str = "*", cluster: Cluster | None = None, **options: Any
    ) -> SimpleConsumer:
        made_by = cluster or self.cluster
        options = {"consume_from": "first", **options}
        return made_by.simple_consumer(self.group, {self.topic: expression}, **options)

    async def all_settled(self) -> None:
        """Wait until the group has no message left."""

        async def lag() -> int:
            reply = await self.cluster.admin.lag(self.group)
            assert reply.complete
            return reply.total_lag

        await answered(lag, lambda total: total == 0)


async def receive(consumer: SimpleConsumer, count: int, **options: Any) -> list[ReceivedMessage]:
    """Receive until this number of messages has arrived, without acknowledgements."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        some = await consumer.receive(count - len(found), wait=DEADLINE_SECONDS, **options)
        assert some, f"nothing comes after {len(found)} messages"
        found += some
    return found


def numbers_of(messages: Sequence[ReceivedMessage]) -> list[int]:
    return sorted(int(each.body) for each in messages)


async def failure_of(work: Awaitable[object]) -> RockoonError | None:
    try:
        await work
    except RockoonError as error:
        return error
    return None
