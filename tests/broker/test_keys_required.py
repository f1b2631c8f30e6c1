"""A compacted topic accepts no message without a key, in any kind of append."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rockoon_core import errors
from rockoon_format.batch import encode_batch
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, RunningBroker, batch, bodies_of, running_broker
from support.broker_routes import BrokerRoutes

MANY = 100


async def refused(broker: RunningBroker, request: pb.AppendRequest) -> errors.KeyMissing:
    with pytest.raises(errors.KeyMissing) as caught:
        await broker.call("Append", request)
    return caught.value


def set_aside(topic: str, properties: Sequence[str], handling: pb.Handling) -> pb.AppendRequest:
    """Return a batch of delayed or half messages."""
    frames, lengths = encode_batch(
        topic.encode(),
        0,
        [b"body"] * len(properties),
        [each.encode() for each in properties],
        NOW_MS,
        BORN_HOST,
    )
    sizes = lengths.astype("<u4").tobytes()
    return pb.AppendRequest(topic=topic, frames=frames, record_lengths=sizes, handling=handling)


async def test_a_batch_with_a_message_without_a_key_is_refused_as_a_whole(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("Latest", {"broker-a": 1}, cleanup_policy="COMPACTION")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for keys in (["k", ""], ["k", "  "], ["k"] * MANY + [""], ["k"] * MANY + [" "]):
            refusal = await refused(broker, batch("Latest", 0, *[b"x"] * len(keys), keys=keys))
            assert f"message {len(keys) - 1} has no key: topic 'Latest'" in str(refusal)
            assert refusal.details == {"index": str(len(keys) - 1), "topic": "Latest"}
        assert await broker.bodies("Latest") == []

        await broker.append("Latest", 0, b"one", b"two", keys=["k", "k other"])
        await broker.append("Latest", 0, *[b"x"] * MANY, keys="k")
        assert len(await broker.bodies("Latest")) == 2 + MANY


async def test_a_broken_batch_for_a_compacted_topic_is_malformed(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("Latest", {"broker-a": 1}, cleanup_policy="COMPACTION")
    good = batch("Latest", 0, b"one", b"two", keys="k")
    size = len(good.frames) // 2
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for lengths in (b"", b"1234567", size.to_bytes(4, "little"), b"\xff" * 8):
            request = pb.AppendRequest(topic="Latest", frames=good.frames, record_lengths=lengths)
            with pytest.raises(errors.MalformedBatch):
                await broker.call("Append", request)


async def test_delayed_and_half_messages_need_the_key_when_they_are_sent(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("Latest", {"broker-a": 1}, cleanup_policy="COMPACTION")
    delayed, half = "DELAY\x013\x02", "PGROUP\x01g\x02UNIQ_KEY\x01id-7\x02"
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for properties, handling in ((delayed, pb.DELAYED), (half, pb.HALF)):
            keyed = f"KEYS\x01k\x02{properties}"
            refusal = await refused(broker, set_aside("Latest", [keyed, properties], handling))
            assert refusal.details["index"] == "1"
            await broker.call("Append", set_aside("Latest", [keyed], handling))
        await broker.until(lambda described: described.delayed.pending_by_level == {3: 1})
        assert (await broker.describe()).transactions_pending == 1


async def test_a_body_may_be_empty_and_is_pulled(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("Latest", {"broker-a": 1}, cleanup_policy="COMPACTION")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("Latest", 0, b"value", b"", keys="k")
        assert bodies_of(await broker.pull("Latest")) == [b"value", b""]


async def test_keys_are_required_from_the_moment_the_policy_changes(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"before")
        revision = await nameserver.set_attribute("T", "cleanup.policy", "COMPACTION")
        await broker.until(lambda described: described.route_revision >= revision)
        await refused(broker, batch("T", 0, b"x"))
        revision = await nameserver.set_attribute("T", "cleanup.policy", "DELETE")
        await broker.until(lambda described: described.route_revision >= revision)
        await broker.append("T", 0, b"after")
        assert await broker.bodies("T") == [b"before", b"after"]
