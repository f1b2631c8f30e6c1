"""A store after a kill of its RocketMQ broker: ended transactions are over."""

from dataclasses import replace
from pathlib import Path

from rockoon.message import Batch
from rockoon_broker.transactions.half_messages import (
    GIVEN_UP_TOPIC,
    committed_record,
    facts_of,
    half_record,
    op_record,
)
from rockoon_broker.transactions.half_queue import rocketmq_progress
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import encode
from rockoon_format.record import Record
from rockoon_proto.v1 import broker_pb2 as pb
from support import rocketmq_stores
from support.broker import BORN_HOST, NOW_MS, running_broker
from support.broker_routes import BrokerRoutes
from support.half_messages import GROUP, append, end, small_store
from support.waiting import wait_until

TRANSACTIONS = 12
# Messages with committed transactions: all but every third.
COMMITTED = [b"paid %d" % number for number in range(TRANSACTIONS) if number % 3]


async def test_half_messages_that_rocketmq_put_back_end_with_their_transaction(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    rocketmq_stores.unpack("left", tmp_path)
    assert not rocketmq_progress(tmp_path / "config"), "it had not come to the disk"
    layout = rocketmq_stores.LAYOUT | {"reserved_hours": 876_000}
    async with running_broker(tmp_path, [nameserver.address], **layout) as broker:
        (left,) = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        place = pb.Appended(
            first_queue_offset=left.queue_offset, first_physical_offset=left.physical_offset
        )
        # Its record has an IPv6 host; the derived record is stored here.
        await end(broker, place, pb.COMMIT)
        found = [body for queue in range(2) for body in await broker.bodies("orders", queue)]
    # Some of them more than once: RocketMQ checks again until its op records are written.
    assert {body for body in found if body.startswith(b"paid")} == set(COMMITTED)
    assert found.count(b"open") == 1


async def test_an_open_transaction_of_a_broker_with_an_ipv6_address_is_given_up_in_time(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    rocketmq_stores.unpack("left", tmp_path)
    layout = rocketmq_stores.LAYOUT | {"reserved_hours": 0}
    async with running_broker(tmp_path, [nameserver.address], **layout) as broker:
        await broker.until(lambda described: described.transactions_given_up == 1)


async def test_of_an_open_transaction_the_newest_copy_waits_and_an_end_of_one_is_that_of_all(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    def half(number: int, checks: int = 0) -> Record:
        properties = {"UNIQ_KEY": f"ID{number}", "PGROUP": GROUP}
        properties |= {"TRANSACTION_CHECK_TIMES": str(checks)} if checks else {}
        return half_record(
            Record(topic=b"orders", body=b"%d" % number, properties=encode(properties))
        )

    with small_store(tmp_path) as store:
        # 0 is open, 1 was committed and 2 ended under the first copy, 3 was given up under the
        # last; its producer sent 4 twice: it is no repeated copy.
        places = [append(store, half(number)) for number in (0, 1, 2, 3, 4, 4)]
        committed = replace(half(1), physical_offset=places[1])
        append(store, committed_record(committed, facts_of(committed)))
        for number, checks in ((0, 1), (1, 1), (2, 1), (3, 14), (0, 2)):
            append(store, half(number, checks))
        append(store, op_record([2], BORN_HOST, NOW_MS))
        given_up = replace(half(3, 15), topic=GIVEN_UP_TOPIC.encode())
        append(store, given_up)
    async with running_broker(tmp_path, [nameserver.address], reserved_hours=876_000) as broker:
        listed = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        assert [(each.transaction_id, each.queue_offset, each.checks) for each in listed] == [
            ("ID4", 4, 0),
            ("ID4", 5, 0),
            ("ID0", 10, 2),
        ]


async def test_a_half_message_of_a_wrong_year_that_was_given_up_after_it_is_over(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    wrong_ms = NOW_MS + 365 * 86_400_000
    properties = encode({"UNIQ_KEY": "ID0", "PGROUP": GROUP})
    half = half_record(
        Record(topic=b"orders", body=b"0", properties=properties, born_timestamp_ms=wrong_ms)
    )
    with small_store(tmp_path) as store:
        append(store, half, wrong_ms)
        store.tick(NOW_MS)
        wait_until(lambda: not store.point_pending, "a recovery point")
        append(store, replace(half, topic=GIVEN_UP_TOPIC.encode()), NOW_MS)
        assert store.runs.newest_ms == NOW_MS
    async with running_broker(tmp_path, [nameserver.address], reserved_hours=876_000) as broker:
        listed = (await broker.call("ListTransactions", pb.ListTransactionsRequest())).transactions
        assert not listed


async def test_bodies_of_every_compression_are_read_as_they_were_sent(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    rocketmq_stores.unpack("left", tmp_path)
    layout = rocketmq_stores.LAYOUT
    async with running_broker(tmp_path, [nameserver.address], **layout) as broker:
        reply = await broker.pull("orders", max_messages=4)
    batch = Batch(MessageQueue("orders", "broker-a", 0), reply.frames, reply.record_lengths)
    kinds = (b"ZLIB", b"LZ4", b"ZSTD")
    assert batch.bodies[:4] == [b"plain", *(kind + 2000 * b"." for kind in kinds)]
