"""QueryMessages: messages by key and by unique id, and the limits that a reply reports."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.index import follower
from rockoon_core import errors
from rockoon_format.batch import encode_batch
from rockoon_format.checkpoint import decode_checkpoint
from rockoon_format.index_file import decode_header
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, RunningBroker, bodies_of, running_broker
from support.broker_routes import BrokerRoutes
from support.eventually import answered
from support.file_harms import a_directory, garbage, halved, missing
from support.key_index import keyed
from support.own_logs import own_warnings
from support.store_directory import FailingDisk, healthy, no_space_in


async def send(
    broker: RunningBroker, topic: str, messages: Sequence[tuple[bytes, bytes]], queue_id: int = 0
) -> Any:
    """Append (body, properties) pairs; return their positions."""
    frames, lengths = encode_batch(
        topic.encode(),
        queue_id,
        [body for body, _ in messages],
        [properties for _, properties in messages],
        NOW_MS,
        BORN_HOST,
    )
    request = pb.AppendRequest(
        topic=topic,
        queue_id=queue_id,
        frames=frames,
        record_lengths=lengths.astype("<u4").tobytes(),
    )
    return (await broker.call("Append", request)).appended


async def query(broker: RunningBroker, key: str, topic: str = "T", **more: Any) -> Any:
    request = pb.QueryMessagesRequest(topic=topic, key=key, **more)
    return await broker.call("QueryMessages", request)


async def found(broker: RunningBroker, key: str, topic: str = "T", **more: Any) -> list[bytes]:
    reply = await broker.query(topic, key, **more)
    assert reply.whole_range_searched, reply.not_searched_because
    return bodies_of(reply)


async def test_what_was_just_sent_is_found_newest_first(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 2})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        unique = "7F00000100002A139A5500000000"
        first = await send(broker, "T", [(b"1", keyed(unique, "order-1 eu")), (b"2", keyed())])
        await send(broker, "T", [(b"3", keyed(keys="eu eu")), (b"4", keyed(keys="order-2"))], 1)
        assert await found(broker, "eu") == [b"3", b"1"]
        assert await found(broker, "order-2") == [b"4"]
        assert await found(broker, unique, kind=pb.UNIQUE_ID) == [b"1"]
        # A key is no unique id, and a unique id is no key.
        assert await found(broker, unique) == []
        assert await found(broker, "eu", kind=pb.UNIQUE_ID) == []
        assert await found(broker, "nobody") == []
        stored_ms = first.store_timestamp_ms
        assert await found(broker, "order-1", begin_ms=stored_ms, end_ms=stored_ms) == [b"1"]
        assert await found(broker, "order-1", end_ms=stored_ms - 1) == []
        assert await found(broker, "order-1", begin_ms=stored_ms + 1) == []
        described = await broker.describe()
        assert described.index_end_offset == described.log_max_offset


async def test_keys_of_the_same_hash_are_told_apart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        # "Aa" and "BB" have the same Java hash, and so do all strings that end with them.
        await send(broker, "T", [(b"Aa", keyed("idAa", "kAa")), (b"BB", keyed("idBB", "kBB"))])
        assert await found(broker, "kAa") == [b"Aa"]
        assert await found(broker, "kBB") == [b"BB"]
        assert await found(broker, "idBB", kind=pb.UNIQUE_ID) == [b"BB"]


async def test_the_same_key_in_topics_of_the_same_hash_is_told_apart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    for topic in ("Aa", "BB"):
        await nameserver.create_topic(topic, {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for topic in ("Aa", "BB"):
            await send(broker, topic, [(topic.encode(), keyed("id", "k"))])
        for topic in ("Aa", "BB"):
            assert await found(broker, "k", topic) == [topic.encode()]
            assert await found(broker, "id", topic, kind=pb.UNIQUE_ID) == [topic.encode()]


async def test_a_query_that_stops_early_says_why(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await send(broker, "T", [(b"%d" % number, keyed(keys="k")) for number in range(50)])
        reply = await broker.query("T", "k", max_messages=3)
        assert bodies_of(reply) == [b"49", b"48", b"47"]
        assert not reply.whole_range_searched
        assert reply.not_searched_because == "there are more than 3 messages"
        assert len(bodies_of(await query(broker, "k"))) == 32
        assert len(await found(broker, "k", max_messages=50)) == 50
        assert reply.indexed_until_ms > NOW_MS


async def test_a_deleted_topics_messages_are_not_found_again(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await send(broker, "T", [(b"old", keyed(keys="k"))])
        assert await found(broker, "k") == [b"old"]
        await nameserver.delete_topic("T")
        await broker.until(lambda seen: seen.topics == 0)
        with pytest.raises(errors.TopicNotFound):
            await query(broker, "k")
        await nameserver.create_topic("T", {"broker-a": 1})
        await broker.until(lambda seen: seen.topics == 1)
        assert await found(broker, "k") == []
        await send(broker, "T", [(b"new", keyed(keys="k"))])
        assert await found(broker, "k") == [b"new"]


async def test_the_index_outlives_restarts_and_being_switched_off(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    nameservers = [nameserver.address]
    async with running_broker(tmp_path, nameservers) as broker:
        await send(broker, "T", [(b"1", keyed(keys="k"))])
        assert await found(broker, "k") == [b"1"]
    async with running_broker(tmp_path, nameservers, index="off") as broker:
        await send(broker, "T", [(b"2", keyed(keys="k"))])
        with pytest.raises(errors.IndexOff, match="index = on"):
            await query(broker, "k")
        assert (await broker.describe()).index_end_offset == 0
    async with running_broker(tmp_path, nameservers) as broker:
        await send(broker, "T", [(b"3", keyed(keys="k"))])
        assert await found(broker, "k") == [b"3", b"2", b"1"]


async def test_an_index_of_another_log_is_made_anew(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    nameservers = [nameserver.address]
    small = {"index_slots": 10, "index_units": 10}
    for root, letter in ((tmp_path / "mine", "m"), (tmp_path / "other", "o")):
        async with running_broker(root, nameservers, **small) as broker:
            for number in range(30):
                await send(broker, "T", [(b"%d" % number, keyed(keys=f"{letter}{number}"))])
            assert await found(broker, f"{letter}1") == [b"1"]
    shutil.rmtree(tmp_path / "mine" / "index")
    shutil.copytree(tmp_path / "other" / "index", tmp_path / "mine" / "index")
    async with running_broker(tmp_path / "mine", nameservers, **small) as broker:
        assert await found(broker, "m1") == [b"1"]
        assert await found(broker, "m29") == [b"29"]
        assert await found(broker, "o1") == []


@pytest.mark.parametrize(
    ("harm", "which"), [(missing, 0), (halved, 1), (missing, 2), (a_directory, 3), (garbage, -1)]
)
async def test_an_index_file_is_made_anew_whatever_became_of_it(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
    which: int,
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    nameservers = [nameserver.address]
    small = {"index_slots": 10, "index_units": 10}
    bodies = [b"%d" % number for number in range(42)]
    async with running_broker(tmp_path, nameservers, **small) as broker:
        for body in bodies:
            await send(broker, "T", [(body, keyed(keys=f"k{body.decode()} also"))])
        assert await found(broker, "k1") == [b"1"]
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) == 10
    harm(files[which])
    async with running_broker(tmp_path, nameservers, **small) as broker:
        reply = await answered(
            lambda: query(broker, "also", max_messages=50), lambda each: each.whole_range_searched
        )
        assert bodies_of(reply) == bodies[::-1]
        for body in bodies:
            assert await found(broker, f"k{body.decode()}") == [body]
    assert "again" in caplog.text
    if harm is a_directory:
        kept = tmp_path / f"lost/index-{files[which].name}/somebody's"
        assert kept.read_bytes() == b"file"
    assert len(list((tmp_path / "index").iterdir())) == 10


async def test_an_index_directory_that_is_a_file_gives_way(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await send(broker, "T", [(b"1", keyed(keys="k"))])
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").write_bytes(b"somebody's")
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await found(broker, "k") == [b"1"]
    assert (tmp_path / "lost/index").read_bytes() == b"somebody's"


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"key": ""}, errors.InvalidArgument, "the key is empty"),
        ({"key": "two keys"}, errors.InvalidArgument, "'two keys' has a space"),
        ({"key": "a\x01"}, errors.InvalidArgument, "control characters"),
        ({"key": "x" * 40_000}, errors.InvalidArgument, "of 40000 characters"),
        ({"key": "k", "max_messages": 1025}, errors.InvalidArgument, "1025 messages, not 1 to"),
        ({"key": "k", "max_messages": -1}, errors.InvalidArgument, "-1 messages, not 1 to"),
        (
            {"key": "k", "begin_ms": 2, "end_ms": 1},
            errors.InvalidArgument,
            "from 2 to 1 is invalid",
        ),
        ({"key": "k", "begin_ms": -1}, errors.InvalidArgument, "from -1 to 0 is invalid"),
        ({"key": "k", "end_ms": 2**63 - 1}, errors.InvalidArgument, "is invalid"),
        ({"key": "k", "kind": 7}, errors.InvalidArgument, "7 is not a kind of key"),
        ({"key": "k", "topic": "Nowhere"}, errors.TopicNotFound, "'Nowhere' does not exist"),
        ({"key": "k", "topic": ""}, errors.TopicNotFound, "'' does not exist"),
        ({"key": "k", "topic": "W"}, errors.TopicNotReadable, "'W'"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    fields: dict[str, Any],
    error: type[errors.RockoonError],
    sentence: str,
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    await nameserver.create_topic("W", {"broker-a": 1}, permissions=2)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(error, match=sentence):
            await query(broker, **fields)


async def test_many_ask_while_many_send(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:

        async def sender(name: int) -> None:
            for number in range(40):
                body = b"%d-%d" % (name, number)
                await send(broker, "T", [(body, keyed(keys=body.decode()))])
                assert await found(broker, body.decode()) == [body]

        async with asyncio.TaskGroup() as tasks:
            for name in range(5):
                tasks.create_task(sender(name))


async def test_the_checkpoint_says_how_far_full_index_files_reach(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    """After a crash RocketMQ deletes every index file that ends later than this."""
    await nameserver.create_topic("T", {"broker-a": 1})
    small = {"index_slots": 10, "index_units": 10}
    async with running_broker(tmp_path, [nameserver.address], **small) as broker:
        await send(broker, "T", [(b"", keyed(keys=f"k{number}")) for number in range(20)])
        assert await found(broker, "k19") == [b""]
    files = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert len(files) == 3
    full_until_ms = decode_header(files[1]).end_timestamp_ms
    checkpoint = decode_checkpoint((tmp_path / "checkpoint").read_bytes())
    assert checkpoint.index_timestamp_ms == full_until_ms > NOW_MS


async def test_a_disk_that_refuses_the_index_hinders_nobody_and_is_tried_again(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "RETRY_SECONDS", 0.05)
    await nameserver.create_topic("T", {"broker-a": 1})
    disk = FailingDisk()
    disk.fail_write = no_space_in(lambda path: path.parent.name.startswith("index"))
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        await send(broker, "T", [(b"1", keyed(keys="k"))])
        assert await broker.bodies("T") == [b"1"]
        reply = await query(broker, "k")
        assert not reply.whole_range_searched
        assert reply.not_searched_because
        disk.fail_write = healthy
        reply = await answered(lambda: query(broker, "k"), lambda seen: seen.whole_range_searched)
        assert bodies_of(reply) == [b"1"]
    assert [record.getMessage() for record in own_warnings(caplog)] == [
        "indexing by key is interrupted by the disk, retrying: [Errno 28] No space left on device"
    ]


async def test_a_message_that_is_damaged_is_not_passed_over_in_silence(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await send(broker, "T", [(b"whole", keyed(keys="k")), (b"damaged", keyed(keys="k"))])
        assert await found(broker, "k") == [b"damaged", b"whole"]
        path = tmp_path / "commitlog" / f"{0:020d}"
        content = path.read_bytes()
        at = content.index(b"damaged")
        with path.open("r+b") as log:
            log.seek(at)
            log.write(b"DAMAGED")
        reply = await query(broker, "k")
        assert bodies_of(reply) == [b"whole"]
        assert not reply.whole_range_searched
        assert "is damaged: no message can be read at position" in reply.not_searched_because


async def test_a_clean_stop_indexes_what_is_left(tmp_path: Path, nameserver: BrokerRoutes) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        assert await found(broker, "k") == []
        last = await send(broker, "T", [(b"x", keyed(keys="k"))] * 3000)
        end = (await broker.describe()).log_max_offset
    headers = [decode_header(each.read_bytes()) for each in (tmp_path / "index").iterdir()]
    assert [header.next_unit - 1 for header in headers] == [3000]
    assert last.first_physical_offset <= headers[0].end_offset < end


async def test_a_log_that_begins_with_many_messages_without_keys_is_no_lost_index(
    tmp_path: Path,
    nameserver: BrokerRoutes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More messages than the index reads before it reports progress, and no reason to hurry."""
    behind: list[int] = []
    real_pause = follower.pause_seconds

    def pause_seconds(work_seconds: float, **more: Any) -> float:
        behind.append(more["behind_bytes"])
        return real_pause(work_seconds, **more)

    monkeypatch.setattr(follower, "GAP_BYTES_MAX", 500)
    monkeypatch.setattr(follower, "PIECE_BYTES_MIN", 500)
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await send(broker, "T", [(b"no key", b"")] * 20)
        await send(broker, "T", [(b"keyed", b"KEYS\x01k\x02")])
        assert await found(broker, "k") == [b"keyed"]
    monkeypatch.setattr(follower, "pause_seconds", pause_seconds)
    with caplog.at_level("INFO"):
        async with running_broker(tmp_path, [nameserver.address]) as broker:
            reply = await answered(
                lambda: query(broker, "k"), lambda reply: reply.whole_range_searched
            )
            assert bodies_of(reply) == [b"keyed"]
    assert "checking in the log" in caplog.text
    assert set(behind) <= {0, 500}
    assert not own_warnings(caplog)
