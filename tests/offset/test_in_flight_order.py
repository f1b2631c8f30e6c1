"""Receivers of a FIFO group: message groups in their order, one message of each at a time."""

from typing import Any

import pytest
from offset.cluster import TOPIC, Cluster
from offset.receiver import Receiver

# Message groups of ten messages.
HASHES = [7, 7, 8, 7, 9, 8, 1 << 63, 9, 7, 8]


class OrderlyReceiver(Receiver):
    """Tells the candidates from the committed offset on."""

    async def get(self, first: int = 0, count: int = 10, **wanted: Any) -> list[int]:
        """Offsets that it got, in their order."""
        told = HASHES[first : first + count]
        reach = self.reach(candidates_from=first, candidates=told)
        return sorted(offset for _, _, got in await self.acquire(reach, **wanted) for offset in got)

    @property
    def wanted(self) -> list[int]:
        """From where candidates are wanted."""
        return [each.from_offset for each in self.granted.wanted_candidates]


@pytest.fixture
async def orderly(cluster: Cluster) -> OrderlyReceiver:
    await cluster.set_group(fifo=True)
    await cluster.until_revision()
    cluster.broker.queue(TOPIC).append(10)
    return OrderlyReceiver(cluster)


async def test_of_each_message_group_one_message_is_in_flight(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get() == [0, 2, 4, 6]
    other = OrderlyReceiver(cluster)
    assert await other.get() == []
    assert await orderly.acknowledge(orderly.delivered(0, 4)) == [[]]
    assert await other.get(1) == [1, 7]
    assert await other.acknowledge() == [[]]
    assert await other.get() == [3]


async def test_one_that_failed_comes_before_those_behind_it(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get() == [0, 2, 4, 6]
    await orderly.change(orderly.delivered(0), 0)
    await orderly.acknowledge(orderly.delivered(2))
    other = OrderlyReceiver(cluster)
    assert await other.get() == [0, 5]
    attempts = {each.first_offset: each.attempt for each in other.granted.acquired}
    assert attempts == {0: 2, 5: 1}
    # Later, and until then nothing of its message group.
    await other.change(other.delivered(of=0), 60_000)
    assert await orderly.get() == []


async def test_nothing_is_granted_of_messages_that_nobody_tells_of(
    orderly: OrderlyReceiver,
) -> None:
    assert await orderly.get(count=0) == []
    assert orderly.wanted == [0]
    assert await orderly.get(1) == []
    assert orderly.wanted == [0]
    assert await orderly.get(count=5) == [0, 2, 4]
    assert orderly.wanted == [0]
    assert await orderly.get() == [6]
    assert orderly.wanted == []


async def test_a_try_that_is_repeated_gets_the_same_again(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get(attempt_id="a", messages_max=3) == [0, 2, 4]
    first = orderly.granted
    await orderly.acknowledge(orderly.delivered(2))
    await cluster.restart_service()
    assert await orderly.get(attempt_id="a") == [0, 4]
    assert [each.acquisition for each in orderly.granted.acquired] == [
        first.acquired[0].acquisition
    ]
    assert await orderly.get(attempt_id="b") == [5, 6]
    assert await orderly.acknowledge() == [[]]
    # What it had is settled: this is another try.
    assert await orderly.get(attempt_id="b") == [9]


async def test_a_group_that_is_fifo_no_more_gets_what_was_left_behind(
    cluster: Cluster, orderly: OrderlyReceiver
) -> None:
    assert await orderly.get() == [0, 2, 4, 6]
    await cluster.set_group(fifo=False)
    await cluster.until_revision()
    assert await orderly.acquire() == [(0, 1, [1, 3, 5]), (0, 1, [7, 8, 9])]
    await cluster.set_group(fifo=True)
    await cluster.until_revision()
    assert await orderly.get() == []


async def test_more_candidates_than_a_window_has_are_refused(orderly: OrderlyReceiver) -> None:
    await orderly.acquire(orderly.reach(candidates=[1] * 1025))
    assert "1024 candidates" in orderly.granted.error.message
