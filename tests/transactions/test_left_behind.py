"""Transactions at a start: RocketMQ's, those without a producer, and lost ones."""

import errno
from pathlib import Path
from typing import Any

import pytest

from rockoon_broker.transactions.check_book import WaitingHalf
from rockoon_broker.transactions.ends import Ends
from rockoon_broker.transactions.half_messages import (
    HALF_TOPIC,
    OP_TOPIC,
    committed_record,
    facts_of,
    half_record,
    op_record,
)
from rockoon_core import errors
from rockoon_core.disk import Disk, DiskUsage
from rockoon_format.config_json import ConsumerOffsets, GroupTopic, write_consumer_offsets
from rockoon_format.properties import encode
from rockoon_format.record import Record, decode_record
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS, batch, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import GROUP, append, begin, end, small_store, stored
from support.store_directory import FailingDisk, healthy, in_queues
from support.waiting import wait_until

HALVES = 6
# A half message is too old immediately.
SOON: dict[str, Any] = {
    "transaction_timeout_ms": 1,
    "transaction_check_interval_ms": 1,
    "reserved_hours": 0.0,
}


class FillingDisk(Disk):
    """A disk whose usage the test sets."""

    used_percent = 5

    def usage(self, path: Path) -> DiskUsage:  # noqa: ARG002 - one disk
        return DiskUsage(self.used_percent << 32, (100 - self.used_percent) << 32)


def left_by_rocketmq(root: Path) -> None:
    """Half messages 0 to 5: 0 ended, 1 committed and recorded, 2 rolled back and recorded, 3
    committed without a record, 4 and 5 waiting."""
    with small_store(root) as store:
        positions = []
        for number in range(HALVES):
            sent = Record(
                topic=b"orders",
                body=b"%d" % number,
                properties=encode({"UNIQ_KEY": f"ID{number}", "PGROUP": GROUP}),
                born_host=BORN_HOST,
            )
            positions.append(append(store, half_record(sent)))
        wait_until(lambda: store.durable_end == store.appended_end, "what was sent to be durable")
        store.confirm(store.appended_end)
        for number in (1, 3):
            half = decode_record(store.read_at(positions[number]))
            append(store, committed_record(half, facts_of(half)))
        append(store, op_record([1, 2], BORN_HOST, NOW_MS))
    progress = ConsumerOffsets({GroupTopic("CID_RMQ_SYS_TRANS", HALF_TOPIC): {0: 1}})
    (root / "config").mkdir()
    content = write_consumer_offsets(progress)
    # Odd entries of groups do not concern the broker.
    odd = content.replace(b'"offsetTable":{', b'"offsetTable":{"no group":{0:1},"T@g":[1],')
    assert odd != content
    (root / "config" / "consumerOffset.json").write_bytes(odd)


async def test_a_store_of_rocketmq_goes_on_where_its_transactions_are(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    left_by_rocketmq(tmp_path)
    # They are years old by now.
    async with running_broker(tmp_path, [nameserver.address], reserved_hours=876_000) as broker:
        listed = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        assert [each.transaction_id for each in listed] == ["ID4", "ID5"]
        place = pb.Appended(
            first_queue_offset=listed[0].queue_offset,
            first_physical_offset=listed[0].physical_offset,
        )
        await end(broker, place, pb.COMMIT)
        assert await broker.bodies("orders") == [b"1", b"3", b"4"]


async def test_what_rocketmq_ends_in_between_is_heeded_although_there_is_a_snapshot(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        for number in range(3):
            await begin(broker, b"%d" % number, first_id=number)
    with small_store(tmp_path) as store:
        append(store, op_record([1], BORN_HOST, NOW_MS))
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        listed = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        assert [each.transaction_id for each in listed] == ["ID0", "ID2"]


@pytest.mark.parametrize(
    "content",
    ["{", '{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:"odd"}}}'],
)
async def test_a_progress_file_that_cannot_be_read_keeps_the_broker_from_guessing(
    content: str, tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    left_by_rocketmq(tmp_path)
    (tmp_path / "config" / "consumerOffset.json").write_text(content)
    with pytest.raises(BaseExceptionGroup) as raised:
        async with running_broker(tmp_path, [nameserver.address]):
            pass
    assert "consumerOffset.json" in repr(raised.value.exceptions)


async def test_a_half_message_that_grows_too_old_is_given_up_although_nobody_can_be_asked(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    async with running_broker(tmp_path, [nameserver.address], **SOON) as broker:
        place = await begin(broker, b"forgotten")
        described = await broker.until(lambda each: each.transactions_given_up == 1)
        assert (described.transactions_pending, described.transaction_checks_sent) == (0, 0)
        with pytest.raises(errors.TransactionEnded, match="abandoned"):
            await end(broker, place, pb.COMMIT)
    (moved,) = stored(tmp_path, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert moved.body == b"forgotten"
    # Visible to RocketMQ's readers as well.
    assert [op.body for op in stored(tmp_path, OP_TOPIC)] == [b"0,"]


async def test_a_half_message_that_cannot_be_read_yet_is_not_given_up_before_it_can(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    disk, refused = FailingDisk(), 0

    def no_space(path: Path, _: int) -> int:
        nonlocal refused
        refused += in_queues(path)
        return errno.ENOSPC if in_queues(path) else 0

    async with running_broker(tmp_path, [nameserver.address], disk=disk, **SOON) as broker:
        disk.fail_write = no_space
        await begin(broker, b"unread")
        # The store tries with every tick of its own, as often as transactions have theirs.
        described = await broker.until(lambda _: refused >= 10)
        assert (described.transactions_pending, described.transactions_lost) == (1, 0)
        disk.fail_write = healthy
        await broker.until(lambda each: each.transactions_given_up == 1)
    (moved,) = stored(tmp_path, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert moved.body == b"unread"


async def test_a_half_message_that_a_full_disk_deletes_is_counted_as_lost(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    tight: dict[str, Any] = {
        "commit_log_file_bytes": 64 << 10,
        "disk_used_percent_max": 10,
        "disk_forced_percent": 30,
        "disk_full_percent": 100,
        "disk_pressure_policy": "delete",
        "disk_check_interval_ms": 50,
    }
    disk = FillingDisk()
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **tight) as broker:
        place = await begin(broker, b"lost")
        kept = batch("orders", 0, bytes(40 << 10))
        for _ in range(4):
            await broker.call("Append", kept)
        assert (await broker.describe()).transactions_pending == 1
        disk.used_percent = 90
        described = await broker.until(lambda each: each.transactions_lost == 1)
        assert described.transactions_pending == 0
        with pytest.raises(errors.TransactionNotFound):
            await end(broker, place, pb.COMMIT)


async def test_a_full_disk_puts_off_giving_up_and_forgets_none(
    tmp_path: Path, nameserver: BrokerRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, abandon, refused = FillingDisk(), Ends.abandon, 0

    async def counted(ends: Ends, half: WaitingHalf) -> None:
        nonlocal refused
        try:
            await abandon(ends, half)
        except errors.StoreNotWritable:
            refused += 1
            raise

    monkeypatch.setattr(Ends, "abandon", counted)
    full: dict[str, Any] = {
        "disk_used_percent_max": 10,
        # Above it, the broker's own records still have some percent.
        "disk_full_percent": 80,
        "disk_forced_percent": 79,
        "disk_check_interval_ms": 20,
        "transaction_timeout_ms": 1000,
        "transaction_check_interval_ms": 1,
        "transaction_checks_max": 1,
    }
    async with running_broker(tmp_path, [nameserver.address], disk=disk, **full) as broker:
        await begin(broker, *(b"%d" % n for n in range(5)))
        disk.used_percent = 99
        await broker.until(lambda described: not described.writable)
        request = pb.CheckTransactionsRequest(producer_group=GROUP, client_id="one")
        call = broker.stub.CheckTransactions(request)
        for _ in range(6):
            await call.read()
        described = await broker.until(lambda _: refused >= 3)
        assert (described.transactions_pending, described.transactions_given_up) == (5, 0)
        disk.used_percent = 5
        await broker.until(lambda described: described.transactions_given_up == 5)
        call.cancel()


async def test_a_commit_for_a_topic_that_was_deleted_is_refused_until_it_is_given_up(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    soon: dict[str, Any] = {
        "transaction_timeout_ms": 1,
        "transaction_check_interval_ms": 1,
        "transaction_checks_max": 2,
    }
    async with running_broker(tmp_path, [nameserver.address], **soon) as broker:
        place = await begin(broker, b"x")
        revision = await nameserver.delete_topic("orders")
        await broker.until(lambda described: described.route_revision >= revision)
        with pytest.raises(errors.TopicNotFound):
            await end(broker, place, pb.COMMIT)
        request = pb.CheckTransactionsRequest(producer_group=GROUP, client_id="one")
        call = broker.stub.CheckTransactions(request)
        await broker.until(lambda described: described.transactions_given_up == 1)
        call.cancel()


async def test_half_messages_taken_before_the_limits_were_lowered_end_all_the_same(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    lowered = {"body_bytes_max": 100, "properties_bytes_max": 50, "batch_bytes_max": 1024}
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        committed = await begin(broker, b"x" * 2000)
        await begin(broker, b"y" * 2000, first_id=1)
        await begin(broker, b"z", first_id=2)
    async with running_broker(tmp_path, [nameserver.address], **lowered) as broker:
        await end(broker, committed, pb.COMMIT)
        assert await broker.bodies("orders") == [b"x" * 2000]
    given_up: dict[str, Any] = {
        **lowered,
        "reserved_hours": 0,
        "transaction_timeout_ms": 1,
        "transaction_check_interval_ms": 1,
    }
    async with running_broker(tmp_path, [nameserver.address], **given_up) as broker:
        await broker.until(lambda described: described.transactions_given_up == 2)


async def test_a_half_message_that_is_damaged_while_it_waits_is_lost_loudly_and_stops_no_other(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    soon = {"transaction_timeout_ms": 3000, "transaction_check_interval_ms": 1, "reserved_hours": 0}
    async with running_broker(tmp_path, [nameserver.address], **soon) as broker:
        await begin(broker, b"damaged")
        await begin(broker, b"whole", first_id=1)
        with next((tmp_path / "commitlog").iterdir()).open("r+b") as log:
            content = log.read()
            log.seek(content.index(b"damaged"))
            log.write(b"D")
        described = await broker.until(lambda described: not described.transactions_pending)
        assert (described.transactions_lost, described.transactions_given_up) == (1, 1)
