"""Receivers of a FIFO group: each message group in order, by one receiver at a time."""

from typing import Any

import pytest
from offset.cluster import TOPIC, Cluster
from offset.receiver import HOUR_MS, Receiver

# Message groups of ten messages.
HASHES = [7, 7, 8, 7, 9, 8, 1 << 63, 9, 7, 8]


class OrderlyReceiver(Receiver):
    """Sends the candidates from the committed offset on."""

    async def get(self, first: int = 0, count: int = 10, **wanted: Any) -> list[int]:
        """Return the acquired offsets, in order."""
        told = HASHES[first : first + count]
        reach = self.reach(candidates_from=first, candidates=told)
        return sorted(offset for _, _, got in await self.acquire(reach, **wanted) for offset in got)

    @property
    def wanted(self) -> list[int]:
        """Return the offset from which candidates are wanted."""
        return [each.from_offset for each in self.granted.wanted_candidates]


@pytest.fixture
async def orderly(cluster: Cluster) -> OrderlyReceiver:
    await cluster.set_group(fifo=True)
    await cluster.until_revision()
    cluster.broker.queue(TOPIC).append(10)
    return OrderlyReceiver(cluster)


async def test_a_message_group_that_is_in_flight_gives_nothing_more(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get(messages_max=5) == [0, 1, 2, 4, 6]
    other = OrderlyReceiver(cluster)
    assert await other.get() == []
    # Of message group 7, message 1 is still in flight.
    assert await orderly.acknowledge(orderly.delivered(0, 4, 6)) == [[]]
    assert await other.get(1) == [7]
    assert await orderly.acknowledge(orderly.delivered(1, 2)) == [[]]
    assert await other.get(3) == [3, 5, 8, 9]


async def test_message_groups_take_turns_so_a_long_one_leaves_room(
    orderly: OrderlyReceiver,
) -> None:
    assert await orderly.get(messages_max=3) == [0, 2, 4]
    assert await orderly.get() == [6]


async def test_one_that_failed_comes_before_those_behind_it(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get() == list(range(10))
    await orderly.acknowledge(orderly.delivered(0, 2, 4, 5, 6, 7, 9))
    await orderly.change(orderly.delivered(1), 0)
    other = OrderlyReceiver(cluster)
    # The later ones are in flight.
    assert await other.get(1) == []
    await orderly.change(orderly.delivered(3), 0)
    await orderly.change(orderly.delivered(8), 0)
    assert await other.get(1) == [1, 3, 8]
    # Messages 3 and 8 had to come again with message 1: these deliveries do not count.
    attempts = {each.first_offset: each.attempt for each in other.granted.acquired}
    assert attempts == {1: 2, 3: 1, 8: 1}
    assert await other.acknowledge(other.delivered(of=0)) == [[]]
    # Later; until then no message of its message group.
    await other.change(other.delivered(of=1), 60_000)
    await other.change(other.delivered(of=2), 0)
    assert await orderly.get(3) == []


async def test_nobody_looks_again_at_once_for_what_waits_for_messages_in_flight(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    await orderly.get(messages_max=5, visible_after_ms=60_000)
    await orderly.change(orderly.delivered(0), 0)
    other = OrderlyReceiver(cluster)
    assert await other.get() == []
    assert other.granted.next_visible_at_ms == orderly.granted.acquired[0].visible_at_ms


async def test_a_dead_message_comes_before_those_behind_it_are_delivered(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    await cluster.set_group(fifo=True, retry_attempts_max=1)
    await cluster.until_revision()
    for attempt in (1, 2):
        assert await orderly.get(count=4) == [0, 1, 2, 3]
        assert orderly.granted.acquired[0].attempt == attempt
        for number in range(len(orderly.granted.acquired)):
            await orderly.change(orderly.delivered(of=number), 0)
    assert await orderly.get(count=4) == [0, 2]
    assert all(each.dead for each in orderly.granted.acquired)
    await orderly.acknowledge()
    # Messages 1 and 3 never failed by themselves.
    assert await orderly.get(3, 1) == []
    assert await orderly.get(1, 3) == [1, 3]
    assert not any(each.dead for each in orderly.granted.acquired)


async def test_nothing_is_granted_of_messages_that_nobody_tells_of(
    orderly: OrderlyReceiver,
) -> None:
    assert await orderly.get(count=0) == []
    assert orderly.wanted == [0]
    assert await orderly.get(1) == []
    assert orderly.wanted == [0]
    assert await orderly.get(count=5) == [0, 1, 2, 3, 4]
    assert orderly.wanted == [0]
    assert await orderly.get() == [6]
    assert orderly.wanted == []


async def test_a_message_is_not_given_again_while_one_that_may_be_behind_it_is_in_flight(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get() == list(range(10))
    await orderly.acknowledge(orderly.delivered(2, 4, 5, 6, 7, 9))
    await orderly.change(orderly.delivered(0, 1, 3), 0)
    other = OrderlyReceiver(cluster)
    # It does not know message 8, which is in the message group of message 0.
    assert await other.get(count=8) == []
    await orderly.change(orderly.delivered(8), 0)
    assert await other.get(count=8) == [0, 1, 3]


async def test_a_try_that_is_repeated_gets_the_same_again(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get(attempt_id="a", messages_max=6) == [0, 1, 2, 4, 5, 6]
    await orderly.acknowledge(orderly.delivered(2))
    # Its holder has message 0 for another time than the rest.
    await orderly.change(orderly.delivered(1), 7_000_000, extend=True)
    await cluster.restart_service()
    former, before_ms = orderly.delivered(), orderly.granted.acquired[0].visible_at_ms
    assert await orderly.get(attempt_id="a", visible_after_ms=2 * HOUR_MS) == [0, 1, 4, 5, 6]
    (again,) = orderly.granted.acquired
    assert again.attempt == 1
    # The receiver relies on the requested time.
    assert (await orderly.listed()).next_visible_at_ms == again.visible_at_ms
    assert again.visible_at_ms >= before_ms + HOUR_MS
    # A gateway that could not deliver the first reply returns it late.
    assert (await orderly.change(former, 0, uncounted=True)).acquisition == 0
    assert await OrderlyReceiver(cluster).get(attempt_id="b") == []
    assert await OrderlyReceiver(cluster, receiver="other").get(attempt_id="a") == []
    assert await orderly.acknowledge() == [[]]
    # Its messages are settled: this is another attempt.
    assert await orderly.get(3, attempt_id="a") == [3, 7, 8, 9]


async def test_a_try_that_is_repeated_with_a_smaller_batch_gets_no_more_than_that(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get(attempt_id="a", messages_max=6) == [0, 1, 2, 4, 5, 6]
    assert await orderly.get(attempt_id="a", messages_max=3) == [0, 1, 2]
    # Messages 4 and 6 are the first of their message groups.
    other = OrderlyReceiver(cluster, receiver="other")
    assert await other.get(attempt_id="b") == [4, 6, 7]
    assert {each.attempt for each in other.granted.acquired} == {1}


async def test_a_group_that_is_fifo_no_more_gets_what_was_left_behind(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get(messages_max=4) == [0, 2, 4, 6]
    await cluster.set_group(fifo=False)
    await cluster.until_revision()
    assert await orderly.acquire() == [(0, 1, [1, 3, 5]), (0, 1, [7, 8, 9])]
    await cluster.set_group(fifo=True)
    await cluster.until_revision()
    assert await orderly.get() == []


async def test_more_candidates_than_a_window_has_are_refused(orderly: OrderlyReceiver) -> None:
    await orderly.acquire(orderly.reach(candidates=[1] * 1025))
    assert "1024 candidates" in orderly.granted.error.message
