"""Half messages and their ends in calls: messages of readers, and content of the log."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from rockoon_core import errors
from rockoon_format.properties import decode
from rockoon_format.record import TRANSACTION_COMMIT
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import NOW_MS, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import GROUP, begin, end, half, stored
from support.holding_disk import HoldingDisk
from support.store_directory import FailingDisk, healthy, in_queues
from support.waiting import DEADLINE_SECONDS

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


async def test_a_half_message_is_read_once_it_is_committed_and_not_before(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"paid", queue_id=1)
        await broker.append("orders", 1, b"before")
        assert await broker.bodies("orders", 1) == [b"before"]
        assert (await broker.describe()).transactions_pending == 1
        reply = await end(broker, place, pb.COMMIT)
        assert (reply.committed.first_queue_offset, reply.committed.messages) == (1, 1)
        assert await broker.bodies("orders", 1) == [b"before", b"paid"]
        described = await broker.describe()
        assert (described.transactions_pending, described.transactions_committed) == (0, 1)


async def test_a_half_message_that_is_rolled_back_is_never_read(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"not paid")
        reply = await end(broker, place, pb.ROLLBACK)
        assert not reply.HasField("committed")
        assert await broker.bodies("orders") == []
        described = await broker.describe()
        assert (described.transactions_pending, described.transactions_rolled_back) == (0, 1)


async def test_the_log_holds_what_rocketmq_would_write(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        first = await begin(broker, b"one", queue_id=1, KEYS="k")
        second = await begin(broker, b"two", first_id=1)
        third = await begin(broker, b"three", first_id=2)
        await end(broker, second, pb.ROLLBACK)
        await end(broker, third, pb.COMMIT)
        await end(broker, first, pb.COMMIT)
    halves = stored(tmp_path, HALF_TOPIC)
    assert [(each.body, each.sys_flag, each.queue_id) for each in halves] == [
        (b"one", 0, 0),
        (b"two", 0, 0),
        (b"three", 0, 0),
    ]
    properties = decode(halves[0].properties)
    assert properties == {
        "TAGS": "TagA",
        "UNIQ_KEY": "ID0",
        "PGROUP": GROUP,
        "KEYS": "k",
        "TRAN_MSG": "true",
        "__transactionId__": "ID0",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }
    (committed,) = stored(tmp_path, "orders", 1)
    assert committed.sys_flag == TRANSACTION_COMMIT
    assert committed.prepared_transaction_offset == first.first_physical_offset
    assert (committed.body, committed.born_timestamp_ms) == (b"one", NOW_MS)
    assert decode(committed.properties) == properties
    # The rollback alone, immediately; the commits together, here because the broker has stopped.
    ops = stored(tmp_path, OP_TOPIC)
    assert [(op.body, decode(op.properties)["TAGS"]) for op in ops] == [
        (b"1,", "d"),
        (b"2,0,", "d"),
    ]
    assert [op.prepared_transaction_offset for op in ops] == [~second.first_physical_offset, 0]


async def test_saying_the_same_again_gets_the_same_answer_and_stores_nothing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        kept, dropped = await begin(broker, b"kept"), await begin(broker, b"dropped", first_id=1)
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(end(broker, kept, pb.COMMIT)) for _ in range(5)]
        replies = [each.result() for each in ends]
        assert all(reply == replies[0] for reply in replies)
        await end(broker, dropped, pb.ROLLBACK)
        log_end = (await broker.describe()).log_max_offset
        assert await end(broker, kept, pb.COMMIT) == replies[0]
        await end(broker, dropped, pb.ROLLBACK)
        assert (await broker.describe()).log_max_offset == log_end
        assert await broker.bodies("orders") == [b"kept"]


async def test_of_opposite_ends_at_the_same_moment_one_wins(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for number in range(10):
            place = await begin(broker, b"%d" % number, first_id=number)

            async def said(resolution: "pb.Resolution", place: pb.Appended = place) -> bool:
                try:
                    await end(broker, place, resolution)
                except errors.TransactionEnded:
                    return False
                return True

            async with asyncio.TaskGroup() as tasks:
                checks = (pb.COMMIT, pb.ROLLBACK) * 3
                ends = [(check, tasks.create_task(said(check))) for check in checks]
            won = {check for check, task in ends if task.result()}
            lost = {check for check, task in ends if not task.result()}
            assert len(won) == 1
            assert not won & lost
        described = await broker.describe()
        read = await broker.bodies("orders")
        assert len(set(read)) == len(read) == described.transactions_committed
        assert described.transactions_committed + described.transactions_rolled_back == 10


async def test_saying_the_opposite_is_refused_also_after_a_restart(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        kept, dropped = await begin(broker, b"kept"), await begin(broker, b"dropped", first_id=1)
        await end(broker, kept, pb.COMMIT)
        await end(broker, dropped, pb.ROLLBACK)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for place, resolution, said in (
            (kept, pb.ROLLBACK, "committed"),
            (dropped, pb.COMMIT, "rolled back"),
        ):
            with pytest.raises(errors.TransactionEnded, match=said):
                await end(broker, place, resolution)
        assert (await end(broker, kept, pb.COMMIT)).committed.first_queue_offset == 0
        assert await broker.bodies("orders") == [b"kept"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer_group": "others"},
        {"queue_offset": 7},
        {"physical_offset": 0},
        {"physical_offset": 1 << 40},
        {"physical_offset": -1},
    ],
    ids=str,
)
async def test_who_does_not_name_a_half_message_of_his_group_ends_none(
    tmp_path: Path, nameserver: BrokerRoutes, wrong: dict[str, Any]
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("orders", 0, b"an ordinary message at offset 0")
        place = await begin(broker, b"half")
        for _ in range(2):
            with pytest.raises(errors.TransactionNotFound):
                await end(broker, place, pb.COMMIT, **wrong)
            # The second time it has ended, which makes no difference.
            await end(broker, place, pb.ROLLBACK)


async def test_each_half_message_of_a_batch_has_its_own_end(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await begin(broker, b"zero", b"one", b"two")
        listed = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        assert [(each.transaction_id, each.topic, each.checks) for each in listed] == [
            ("ID0", "orders", 0),
            ("ID1", "orders", 0),
            ("ID2", "orders", 0),
        ]
        for each, resolution in zip(listed, (pb.COMMIT, pb.ROLLBACK, pb.COMMIT), strict=True):
            request = pb.EndTransactionRequest(
                producer_group=each.producer_group,
                queue_offset=each.queue_offset,
                physical_offset=each.physical_offset,
                resolution=resolution,
            )
            await broker.call("EndTransaction", request)
        assert await broker.bodies("orders") == [b"zero", b"two"]


async def test_what_can_be_no_half_message_is_refused_and_not_stored(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    no_group = half(b"x")
    no_group.frames = no_group.frames.replace(b"PGROUP", b"PGROUQ")
    wrong_queue = half(b"x")
    wrong_queue.queue_id = 1
    damaged = half(b"body")
    damaged.frames = damaged.frames.replace(b"body", b"bodi")
    cut = half(b"x")
    cut.frames = cut.frames[:-1]
    sequenced = half(b"x")
    sequenced.producer_id = 1
    async with running_broker(tmp_path, [nameserver.address], transactions_pending_max=1) as broker:
        for request, refusal in (
            (no_group, errors.MalformedBatch),
            (wrong_queue, errors.MalformedBatch),
            (damaged, errors.MalformedBatch),
            (cut, errors.MalformedBatch),
            (sequenced, errors.InvalidArgument),
            (half(b"x", DELAY="3"), errors.MalformedBatch),
            (half(), errors.MalformedBatch),
            (half(b"x", topic="unknown"), errors.TopicNotFound),
            (half(b"x", queue_id=2), errors.QueueNotFound),
            (half(b"x", filling="y" * 32_700), errors.PropertiesTooLarge),
            (half(b"x", group="g" * 121), errors.MalformedBatch),
            (half(b"x", group="no name"), errors.MalformedBatch),
            (half(b"x", b"y"), errors.Busy),
        ):
            with pytest.raises(refusal):
                await broker.call("Append", request)
        assert (await broker.describe()).log_max_offset == 0
        await begin(broker, b"x")
        with pytest.raises(errors.Busy):
            await begin(broker, b"one more than may wait")


async def test_a_half_message_of_a_deleted_topic_is_not_put_into_the_next_of_that_name(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"x")
        await nameserver.delete_topic("orders")
        revision = await nameserver.create_topic("orders", {"broker-a": 2})
        await broker.until(lambda described: described.route_revision >= revision)
        with pytest.raises(errors.TopicNotFound, match="was created later"):
            await end(broker, place, pb.COMMIT)
        later = await begin(broker, b"y", first_id=1)
        await end(broker, later, pb.COMMIT)
        await end(broker, place, pb.ROLLBACK)
        assert await broker.bodies("orders") == [b"y"]


@pytest.mark.parametrize("digits", [16, 300, 400, 5000])
async def test_a_time_that_is_no_number_of_seconds_does_not_count(
    tmp_path: Path, nameserver: BrokerRoutes, digits: int
) -> None:
    """Not even for a broker that starts with a half message of this kind in its store."""
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"x", CHECK_IMMUNITY_TIME_IN_SECONDS="9" * digits)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await end(broker, place, pb.COMMIT)
        assert await broker.bodies("orders") == [b"x"]


async def test_a_commit_waits_until_its_topic_takes_it(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        place = await begin(broker, b"paid")
        revision = await nameserver.permit("orders", 4)
        await broker.until(lambda described: described.route_revision >= revision)
        with pytest.raises(errors.TopicNotWritable):
            await end(broker, place, pb.COMMIT)
        revision = await nameserver.permit("orders", 6)
        await broker.until(lambda described: described.route_revision >= revision)
        await end(broker, place, pb.COMMIT)
        assert await broker.bodies("orders") == [b"paid"]


async def test_half_messages_wait_through_a_restart_whatever_became_of_the_snapshot(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        places = [await begin(broker, b"%d" % n, first_id=n) for n in range(4)]
        await end(broker, places[0], pb.COMMIT)
        await end(broker, places[1], pb.ROLLBACK)
    for content in (None, b"", b"damaged"):
        snapshot = tmp_path / "config" / "settledQueues"
        if content is None:
            snapshot.unlink()
        else:
            snapshot.write_bytes(content)
        async with running_broker(tmp_path, [nameserver.address]) as broker:
            assert (await broker.describe()).transactions_pending == 2
            # The ends of the others are known from the log as well.
            assert (await end(broker, places[0], pb.COMMIT)).committed.first_queue_offset == 0
            with pytest.raises(errors.TransactionEnded):
                await end(broker, places[1], pb.COMMIT)
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await end(broker, places[2], pb.COMMIT)
        await end(broker, places[3], pb.COMMIT)
        assert await broker.bodies("orders") == [b"0", b"2", b"3"]


async def test_a_half_message_that_cannot_be_read_yet_is_not_said_to_be_missing(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    disk = FailingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk) as broker:
        disk.fail_write = lambda path, _: errno.ENOSPC if in_queues(path) else 0
        place = await begin(broker, b"x")
        for resolution in (pb.COMMIT, pb.ROLLBACK):
            with pytest.raises(errors.NotReady):
                await end(broker, place, resolution)
        disk.fail_write = healthy
        await broker.until(lambda described: described.writable)
        await end(broker, place, pb.COMMIT)
        assert await broker.bodies("orders") == [b"x"]


async def test_while_the_log_has_no_room_the_ends_that_wait_for_it_are_bounded(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    disk = HoldingDisk()
    async with running_broker(
        tmp_path,
        [nameserver.address],
        disk=disk,
        unsynced_bytes_max=4096,
        commit_log_file_bytes=256 << 20,
    ) as broker:
        bodies = [bytes([number]) * (4 << 20) for number in range(20)]
        places = [await begin(broker, body, first_id=body[0]) for body in bodies]
        refused = asyncio.Event()

        async def commit(place: pb.Appended) -> None:
            try:
                await end(broker, place, pb.COMMIT)
            except errors.Busy:
                refused.set()

        disk.hold()
        async with asyncio.TaskGroup() as tasks:
            for place in places:
                tasks.create_task(commit(place))
            async with asyncio.timeout(DEADLINE_SECONDS):
                await refused.wait()
            disk.release()
        for place in places:
            await end(broker, place, pb.COMMIT)
        assert sorted(await broker.bodies("orders")) == bodies
