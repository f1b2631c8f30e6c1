"""Pull calls with an SQL92 expression."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.pull import select
from rockoon_broker.store.reading.reader import GetResult, GetStatus
from rockoon_core import errors
from rockoon_format import sql92
from rockoon_format.batch import encode_batch
from rockoon_format.properties import encode
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes


async def append(broker: RunningBroker, *prices: float | str | None) -> None:
    """Append a message for each price; its body is the price."""
    frames, lengths = encode_batch(
        b"T",
        0,
        [str(price).encode() for price in prices],
        [encode({"TAGS": "t"} | ({} if p is None else {"price": str(p)})) for p in prices],
        NOW_MS,
        BORN_HOST,
    )
    packed = lengths.astype("<u4").tobytes()
    request = pb.AppendRequest(topic="T", queue_id=0, frames=frames, record_lengths=packed)
    await broker.call("Append", request)


async def test_only_what_the_expression_wants_comes_and_reading_goes_on_behind_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await append(broker, 1, 12, None, "x", 9.5, 30, 2)
        size = len((await broker.pull("T", max_messages=1)).frames)
        cases: list[tuple[str, dict[str, Any], Sequence[bytes], int]] = [
            ("price > 9", {}, [b"12", b"9.5", b"30"], 7),
            ("price > 9", {"max_messages": 2}, [b"12", b"9.5"], 5),
            ("price > 9", {"max_bytes": 1}, [b"12"], 4),
            ("price > 9", {"max_bytes": 2 * size + 10}, [b"12", b"9.5"], 5),
            ("price > 9", {"offset": 5}, [b"30"], 7),
            ("NOT price > 9", {}, [b"1", b"2"], 7),
            ("price IS NULL OR price IN ('x')", {}, [b"None", b"x"], 7),
            ("TRUE", {}, [b"1", b"12", b"None", b"x", b"9.5", b"30", b"2"], 7),
            ("TRUE", {"max_messages": 3}, [b"1", b"12", b"None"], 3),
        ]
        for text, fields, bodies, next_offset in cases:
            reply = await broker.pull("T", sql_expression=text, **fields)
            assert (reply.status, reply.next_offset) == (pb.FOUND, next_offset), (text, fields)
            assert bodies_of(reply) == bodies, (text, fields)
            assert (reply.min_offset, reply.max_offset) == (0, 7)


async def test_what_finds_nothing_has_the_statuses_of_tags(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await append(broker, 1, 2, 3)
        cases: list[tuple[dict[str, Any], Any, int]] = [
            ({"offset": 0}, pb.NO_MATCHED_MESSAGE, 3),
            ({"offset": 3}, pb.OFFSET_OVERFLOW_ONE, 3),
            ({"offset": 9}, pb.OFFSET_OVERFLOW_BADLY, 3),
            ({"queue_id": 1}, pb.NO_MATCHED_LOGIC_QUEUE, 0),
        ]
        for fields, status, next_offset in cases:
            reply = await broker.pull("T", sql_expression="price > 9", **fields)
            assert (reply.status, reply.next_offset) == (status, next_offset), fields
            assert reply.frames == b""


async def test_a_waiting_pull_sleeps_through_what_its_expression_does_not_want(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with (
        running_broker(tmp_path, [nameserver.address]) as broker,
        asyncio.TaskGroup() as tasks,
    ):
        await append(broker, 1, 2)
        pulling = tasks.create_task(
            broker.pull("T", wait_ms=30_000, sql_expression="price > 9 AND TAGS = 't'")
        )
        await broker.until(lambda seen: seen.waiting_pulls == 1)
        for price in range(5):
            await append(broker, price)
            await broker.until(lambda seen: seen.waiting_pulls == 1)
        assert not pulling.done()
        await append(broker, 10)
        reply = await pulling
        assert (reply.status, reply.next_offset) == (pb.FOUND, 8)
        assert bodies_of(reply) == [b"10"]


async def test_a_rare_message_is_found_behind_many_others_in_one_pull(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for _ in range(5):
            await append(broker, *[1] * 1000)
        await append(broker, 10)
        many = "price > 9" + " OR price = 'none'" * 100
        for text in ("price > 9", many):
            reply = await broker.pull("T", wait_ms=30_000, sql_expression=text)
            assert (reply.status, reply.next_offset) == (pb.FOUND, 5_001)
            assert bodies_of(reply) == [b"10"]
        reply = await broker.pull("T", sql_expression=many)
        assert reply.status == pb.NO_MATCHED_MESSAGE
        assert 0 < reply.next_offset <= 100, "one look asks no more than its share of questions"


async def test_what_is_no_expression_is_refused_with_the_place(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(errors.InvalidExpression, match=r"'price >> 9' .*at character 8"):
            await broker.pull("T", sql_expression="price >> 9")
        # The error texts of very long expressions fit into a reply.
        for text in ("€" * 4095 + "5", "é = '" + "€" * 5000):
            with pytest.raises(errors.InvalidExpression) as refusal:
                await broker.pull("T", sql_expression=text)
            assert len(str(refusal.value)) < 300
        with pytest.raises(errors.InvalidArgument, match="both"):
            await broker.pull("T", sql_expression="TRUE", tag_hashes=[1])


def test_a_look_that_found_nothing_is_passed_on() -> None:
    found = GetResult(GetStatus.OFFSET_TOO_SMALL, 5, 5, 9)
    assert select(found, sql92.compile("TRUE"), 10, 10) is found
