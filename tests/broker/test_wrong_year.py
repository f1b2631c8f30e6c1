"""A broker whose clock was a year ahead for a long time, and the effects for its clients."""

import time
from pathlib import Path

from rockoon_broker.clock import BELIEVED_AFTER_MS
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker, batch, bodies_of, running_broker
from support.broker_routes import BrokerRoutes

YEAR_MS = 365 * 86_400_000


class MovedClock:
    """The machine's clocks: a test advances both, and sets one of them."""

    def __init__(self) -> None:
        self.passed_ms = self.set_by_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.passed_ms + self.set_by_ms

    def monotonic_seconds(self) -> float:
        return time.monotonic() + self.passed_ms / 1000

    def local_hour(self, at_ms: int) -> int:
        return time.localtime(at_ms / 1000).tm_hour


async def send(broker: RunningBroker, body: bytes) -> int:
    """Send a message with key k; return its store time."""
    request = batch("T", 0, body, keys="k")
    return int((await broker.call("Append", request)).appended.store_timestamp_ms)


async def since(broker: RunningBroker, time_ms: int) -> list[bytes]:
    """Return the messages of a reader that starts at a time."""
    queue = pb.BrokerQueue(topic="T", queue_id=0)
    request = pb.SearchOffsetRequest(queues=[queue], timestamp_ms=time_ms)
    (found,) = (await broker.call("SearchOffset", request)).offsets
    return await broker.bodies("T", 0, found.offset)


async def between(broker: RunningBroker, begin_ms: int, end_ms: int) -> list[bytes]:
    """Return the messages with key k of a time range, oldest first."""
    reply = await broker.query("T", "k", begin_ms=begin_ms, end_ms=end_ms, max_messages=1024)
    assert reply.whole_range_searched, reply.not_searched_because
    return bodies_of(reply)[::-1]


async def test_its_clients_find_everything_by_time_once_the_clock_is_back(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    clock = MovedClock()
    await nameserver.create_topic("T", {"broker-a": 1})
    where = (tmp_path, [nameserver.address])
    async with running_broker(*where, clock=clock) as broker:
        before = await send(broker, b"before")
        clock.set_by_ms = YEAR_MS
        jump = await send(broker, b"at the jump")
        clock.passed_ms += BELIEVED_AFTER_MS
        ahead = await send(broker, b"a year ahead")
        clock.set_by_ms = 0
        still = await send(broker, b"not yet back")
        clock.passed_ms += BELIEVED_AFTER_MS
        # Until the checkpoint has no time of that year any more.
        waits = [b"waits"]
        while (back := await send(broker, waits[-1])) > before + YEAR_MS // 2:
            waits.append(b"waits")
        assert before <= jump < ahead - YEAR_MS <= still - YEAR_MS <= back <= clock.now_ms()
    async with running_broker(*where, clock=clock) as broker:
        last = await send(broker, b"last")
        assert back <= last <= clock.now_ms()
        sent = [b"before", b"at the jump", b"a year ahead", b"not yet back", *waits, b"last"]
        assert await broker.bodies("T") == sent
        assert await since(broker, before) == sent
        assert await since(broker, before + 1) == sent[1:]
        assert await since(broker, back + 1) == [b"last"]
        assert await since(broker, last + 1) == await since(broker, ahead) == []
        assert await between(broker, before, jump) == sent[:2]
        assert await between(broker, back, last) == [b"waits", b"last"]
        assert await between(broker, ahead, 0) == sent[2:-2]
