"""Lite topics without new messages are deleted after their time, and no others."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

import rockoon
from gateway.consumers import bodies, handle
from gateway.lite_consumers import LiteConsumer, lite_parent
from gateway.wire_client import WireClient
from rockoon.admin.descriptions import QueueEnds
from rockoon.admin.reads import ask_queue_ends
from rockoon.errors import BrokerUnavailable
from rockoon.net.routes import TopicRoute
from rockoon_format.names import stored_lite_topic
from rockoon_gateway.lite.lite_topics import CLOSED, EXPIRATION, MINUTE_MS, Expiry, LiteTopics
from rockoon_gateway.lite.subscriptions import LiteSubscriptions
from support.waiting import DEADLINE_SECONDS

MINUTES = 30


class Later:
    """Run a gateway's check, some minutes from now by the brokers' clocks."""

    def __init__(self, cluster: rockoon.Cluster) -> None:
        self.minutes = 0
        self.behind_answers: Callable[[], Awaitable[None]] | None = None
        """Called once, when brokers have replied."""
        self.answer: Callable[[QueueEnds], QueueEnds] = lambda each: each
        """Reply of a broker in another case."""
        self.subscriptions = LiteSubscriptions()
        self._cluster = cluster
        self._expiry = Expiry(
            cluster,
            LiteTopics(cluster, 1000),
            self.subscriptions,
            scan_seconds=1,
            ask=self._ask,
        )

    async def _ask(self, cluster: rockoon.Cluster, *routes: TopicRoute) -> list[QueueEnds]:
        found = await ask_queue_ends(cluster, *routes)
        happening, self.behind_answers = self.behind_answers, None
        if happening is not None:
            await happening()
        ahead_ms = self.minutes * MINUTE_MS
        return [self.answer(replace(each, as_of_ms=each.as_of_ms + ahead_ms)) for each in found]

    async def look(self, minutes: int) -> None:
        self.minutes = minutes
        await self._expiry.scan()

    async def there(self, parent: str) -> dict[str, bool]:
        """Return the lite topics of a parent, and whether they are open."""
        prefix = stored_lite_topic(parent, "")
        return {
            each.name.removeprefix(prefix): each.writable
            for each in await self._cluster.admin.list_topics(include_system=True)
            if each.name.startswith(prefix)
        }


async def expiring(client: WireClient, cluster: rockoon.Cluster, name: str) -> LiteConsumer:
    topic = await lite_parent(cluster, name, **{EXPIRATION: str(MINUTES)})
    return LiteConsumer(client, f"readers-of-{name}", topic)


async def test_one_that_is_idle_is_closed_first_and_deleted_later(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "idle"), Later(cluster)
    await consumer.send("one", b"1")
    await later.look(MINUTES - 1)
    assert await later.there("idle") == {"one": True}
    await later.look(MINUTES + 1)
    assert await later.there("idle") == {"one": False}
    await later.look(MINUTES + 1)
    assert await later.there("idle") == {}
    # A producer creates it again; its former readers begin again.
    await consumer.send("one", b"2")
    await consumer.subscribe("one")
    assert bodies(await consumer.receive_all(1)) == [b"2"]


async def test_who_sends_to_one_that_is_closed_or_was_deleted_just_now_opens_it(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "saved"), Later(cluster)
    stored = stored_lite_topic("saved", "one")
    await consumer.send("one", b"1")
    for is_deleted in (False, True, False, True):
        closed = await cluster.admin.update_topic(stored, permissions=CLOSED)
        # The broker has received it when it replies, as after a deletion by a client.
        await ask_queue_ends(cluster, closed)
        if is_deleted:
            await cluster.admin.delete_topic(stored)
        await consumer.send("one", b"saved")
        assert await later.there("saved") == {"one": True}
    await consumer.subscribe("one")
    assert bodies(await consumer.receive_all(1)) == [b"saved"]


async def test_one_that_was_sent_to_when_the_broker_had_answered_is_not_deleted(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "raced"), Later(cluster)
    await consumer.send("one", b"1")
    await later.look(MINUTES + 1)
    later.behind_answers = lambda: consumer.send("one", b"2")
    await later.look(MINUTES + 1)
    assert await later.there("raced") == {"one": True}
    await consumer.subscribe("one")
    (first,) = await consumer.receive_all(1)
    await consumer.acknowledge(handle(first))
    assert bodies([first, *await consumer.receive_all(1)]) == [b"1", b"2"]


async def test_a_message_that_came_before_it_was_closed_opens_it_again(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "late"), Later(cluster)
    await consumer.send("one", b"1")
    await consumer.subscribe("one")
    (first,) = await consumer.receive_all(1)
    await consumer.acknowledge(handle(first))
    later.behind_answers = lambda: consumer.send("one", b"2")
    await later.look(MINUTES + 1)
    assert await later.there("late") == {"one": False}
    await later.look(MINUTES + 1)
    assert await later.there("late") == {"one": True}
    assert bodies(await consumer.receive_all(1)) == [b"2"]


def silent(ends: QueueEnds) -> QueueEnds:
    return replace(ends, state=None, error=BrokerUnavailable(broker=ends.queue.broker))


def with_message_on_its_way(ends: QueueEnds) -> QueueEnds:
    assert ends.state is not None
    ends.state.next_offset += 1
    return ends


def of_old_broker(ends: QueueEnds) -> QueueEnds:
    assert ends.state is not None
    ends.state.ClearField("next_offset")
    ends.state.ClearField("writable")
    return replace(ends, route_revision=0)


def still_open(ends: QueueEnds) -> QueueEnds:
    assert ends.state is not None
    ends.state.writable = True
    return ends


def behind(ends: QueueEnds) -> QueueEnds:
    """As of a broker that knows an earlier closing, and not yet the later opening."""
    return replace(ends, route_revision=1)


@pytest.mark.parametrize(
    "answer", [silent, with_message_on_its_way, of_old_broker, still_open, behind]
)
async def test_only_a_broker_that_takes_no_more_and_has_no_more_lets_it_be_deleted(
    client: WireClient, cluster: rockoon.Cluster, answer: Callable[[QueueEnds], QueueEnds]
) -> None:
    name = f"sure-{answer.__name__.replace('_', '-')}"
    consumer, later = await expiring(client, cluster, name), Later(cluster)
    await consumer.send("one", b"1")
    await later.look(MINUTES + 1)
    later.answer = answer
    await later.look(MINUTES + 1)
    assert set(await later.there(name)) == {"one"}


async def test_one_that_was_made_anew_is_not_as_old_as_the_one_before(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "anew"), Later(cluster)
    await consumer.subscribe("one")
    await later.look(0)
    await cluster.admin.delete_topic(stored_lite_topic("anew", "one"))
    # Until the gateway has received it.
    while "one" not in await later.there("anew"):
        await consumer.subscribe("one")
    await later.look(MINUTES + 1)
    assert (await later.there("anew"))["one"], "it has been empty for a moment"


async def test_what_is_read_stays_while_there_is_something_left_and_while_it_is_subscribed_to(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "read"), Later(cluster)
    await consumer.subscribe("left", "followed", "done")
    await consumer.send("left", b"1", b"2")
    (got,) = await consumer.receive_all(1)
    await consumer.acknowledge(handle(got))
    followed = later.subscriptions.of("somebody", consumer.group, "read")
    for _ in range(2):
        followed.add(["followed"])
        await later.look(MINUTES + 1)
        later.minutes += MINUTES + 1
        # Topics without a message are idle from the first check that saw them.
        await later.look(2 * MINUTES + 2)
    there = await later.there("read")
    assert there["left"], "somebody has a message to read there"
    assert there["followed"]
    assert not there.get("done")


async def test_who_subscribes_leaves_one_that_is_about_to_expire_closed(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = await expiring(client, cluster, "quiet"), Later(cluster)
    await consumer.send("one", b"1")
    await later.look(MINUTES + 1)
    await consumer.subscribe("one")
    assert bodies(await consumer.receive_all(1)) == [b"1"]
    assert await later.there("quiet") == {"one": False}


async def test_a_look_that_fails_in_any_way_is_followed_by_the_next(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer = await expiring(client, cluster, "looked-at")
    await consumer.send("one", b"1")
    looked_again = asyncio.Event()
    looks = 0

    async def ask(cluster: rockoon.Cluster, *routes: TopicRoute) -> list[QueueEnds]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise LookupError("nobody foresaw this")
        looked_again.set()
        return []

    expiry = Expiry(cluster, LiteTopics(cluster, 1000), LiteSubscriptions(), 0.01, ask)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(expiry.run())
        await looked_again.wait()
        looking.cancel()


async def test_a_shorter_interval_ends_the_present_pause(cluster: rockoon.Cluster) -> None:
    scanned = asyncio.Event()

    async def ask(cluster: rockoon.Cluster, *routes: TopicRoute) -> list[QueueEnds]:
        scanned.set()
        return []

    expiry = Expiry(cluster, LiteTopics(cluster, 1000), LiteSubscriptions(), 86_400.0, ask)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(expiry.run())
        # Called after the first step of the task, which begins its pause.
        asyncio.get_running_loop().call_soon(setattr, expiry, "scan_seconds", 0.01)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scanned.wait()
        looking.cancel()


async def test_without_an_expiration_none_expires(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    consumer, later = LiteConsumer(client, "g", await lite_parent(cluster, "kept")), Later(cluster)
    await consumer.send("one", b"1")
    for _ in range(3):
        await later.look(10 * MINUTES)
    assert await later.there("kept") == {"one": True}
