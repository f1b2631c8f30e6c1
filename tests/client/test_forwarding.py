"""Messages that another program has made pass through a producer unchanged."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import rockoon
from rockoon.errors import BodyTooLarge, KeyMissing, PropertiesTooLarge, TransactionNotFound
from rockoon.local.cluster import LocalCluster
from rockoon.message import Message
from rockoon.producer.forwarded_batches import ForwardingSettings
from rockoon.producer.forwarding import ForwardingProducer
from rockoon.transactions.forwarding import ForwardedTransactions
from rockoon.transactions.transaction import HalfPosition, Resolution
from rockoon_format.properties import encode

READ_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(single=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local_cluster: LocalCluster) -> AsyncIterator[rockoon.Cluster]:
    async with rockoon.connect(local_cluster.nameservers) as connected:
        yield connected


async def read(cluster: rockoon.Cluster, topic: str, count: int) -> list[Message]:
    found: list[Message] = []
    async with cluster.pull_consumer(consume_from="first") as consumer:
        await consumer.assign((await cluster.route(topic)).queues)
        async with asyncio.timeout(READ_SECONDS_MAX):
            while len(found) < count:
                found += await consumer.poll()
    return found


def properties(number: int, **others: str) -> bytes:
    return encode({"TAGS": "t", "UNIQ_KEY": f"of the client's own, {number}", **others})


async def test_a_message_keeps_the_id_and_the_properties_it_came_with(
    cluster: rockoon.Cluster,
) -> None:
    await cluster.admin.create_topic("forwarded", queues_per_broker=1)
    async with ForwardingProducer(cluster, ForwardingSettings()) as producer:
        receipts = [
            producer.forward("forwarded", b"%d" % number, properties(number, color="red"))
            for number in range(3)
        ]
        stored = [await receipt for receipt in receipts]
    assert [result.queue_offset for result in stored] == [0, 1, 2]
    got = await read(cluster, "forwarded", 3)
    assert [message.body for message in got] == [b"0", b"1", b"2"]
    for number, message in enumerate(got):
        assert message.message_id == f"of the client's own, {number}"
        assert message.properties == {
            "TAGS": "t",
            "UNIQ_KEY": f"of the client's own, {number}",
            "color": "red",
        }


async def test_one_key_keeps_one_order_also_before_the_route_is_known(
    cluster: rockoon.Cluster,
) -> None:
    await cluster.admin.create_topic("kept-in-order", queues_per_broker=4)
    async with ForwardingProducer(cluster, ForwardingSettings()) as producer:
        for number in range(20):
            producer.forward(
                "kept-in-order", b"%d" % number, properties(number), ordering_key="account 7"
            )
        await producer.flush()
    got = await read(cluster, "kept-in-order", 20)
    assert [int(message.body) for message in got] == list(range(20))
    assert len({message.queue for message in got}) == 1


async def test_a_delay_that_a_message_bears_is_kept(cluster: rockoon.Cluster) -> None:
    await cluster.admin.create_topic("forwarded-later", queues_per_broker=1)
    async with ForwardingProducer(cluster, ForwardingSettings()) as producer:
        await producer.forward(
            "forwarded-later", b"later", properties(1, TIMER_DELAY_MS="300"), delayed=True
        )
        await producer.forward("forwarded-later", b"at once", properties(2))
    got = await read(cluster, "forwarded-later", 2)
    assert [message.body for message in got] == [b"at once", b"later"]


async def test_what_no_broker_takes_is_refused_alone(cluster: rockoon.Cluster) -> None:
    await cluster.admin.create_topic("kept-by-key", attributes={"cleanup.policy": "COMPACTION"})
    async with ForwardingProducer(cluster, ForwardingSettings()) as producer:
        with pytest.raises(BodyTooLarge):
            producer.forward("forwarded", bytes((4 << 20) + 1), properties(1))
        with pytest.raises(PropertiesTooLarge):
            producer.forward("forwarded", b"body", b"name\x01" + b"v" * 32_760 + b"\x02")
        await producer.forward("kept-by-key", b"with", properties(1, KEYS="k"))
        with pytest.raises(KeyMissing):
            producer.forward("kept-by-key", b"without", properties(2))


async def test_a_half_message_is_ended_by_who_knows_where_it_is_and_its_group(
    cluster: rockoon.Cluster,
) -> None:
    await cluster.admin.create_topic("paid", queues_per_broker=1)
    transactions = ForwardedTransactions(
        cluster, "paid", check=lambda _: Resolution.UNKNOWN, delivery_timeout_seconds=10.0
    )
    half = properties(1, TRAN_MSG="true", PGROUP="paid")
    kept = await transactions.forward("paid", b"kept", half)
    dropped = await transactions.forward("paid", b"dropped", half)
    # As a client that knows only the physical offset.
    places = [HalfPosition(each.broker, -1, each.physical_offset) for each in (kept, dropped)]
    strangers = ForwardedTransactions(
        cluster, "others", check=lambda _: Resolution.UNKNOWN, delivery_timeout_seconds=10.0
    )
    with pytest.raises(TransactionNotFound):
        await strangers.end("paid", places[0], Resolution.COMMIT, from_check=False)
    await transactions.end("paid", places[0], Resolution.UNKNOWN, from_check=True)
    await transactions.end("paid", places[1], Resolution.ROLLBACK, from_check=False)
    for _ in range(2):
        await transactions.end("paid", places[0], Resolution.COMMIT, from_check=False)
    (got,) = await read(cluster, "paid", 1)
    assert (got.body, got.message_id) == (b"kept", "of the client's own, 1")
    assert got.prepared_transaction_offset == kept.physical_offset
