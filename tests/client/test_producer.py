"""Arguments and results of `send`, and its waits."""

import asyncio
import inspect
import random
from contextlib import suppress
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import rockoon
from rockoon.cluster import Cluster
from rockoon.consumer.pull_consumer import ReadOptions
from rockoon.errors import (
    BodyTooLarge,
    BufferFull,
    Closed,
    InvalidArgument,
    InvalidProperty,
    InvalidTopicName,
    KeyMissing,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
    TopicNotWritable,
)
from rockoon.message import Batch
from rockoon.producer.accumulator import MESSAGE_OVERHEAD_BYTES
from rockoon.producer.options import (
    HalfMessageOptions,
    ProducerOptions,
    SendManyOptions,
    SendOptions,
    TransactionalProducerOptions,
)
from rockoon.producer.producer import Producer
from rockoon.producer.queue_selectors import crc32_key_hash
from rockoon.producer.settings import ProducerSettings
from rockoon.transactions.producer import TransactionalProducer
from rockoon_core.message_queue import MessageQueue
from rockoon_format.message_id import decode_offset_id
from support.eventually import answered, eventually
from support.fake_append_broker import STORE_HOST, STORE_TIME_MS, FakeAppendBroker, Fault
from support.scripted_nameserver import ScriptedNameserver
from support.waiting import DEADLINE_SECONDS


async def test_an_awaited_send_says_where_the_message_went(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    result = await producer.send("orders", b"one", tags="new", keys=["k1", "k2"])
    assert result.queue in (await cluster.route("orders")).queues
    assert result.queue_offset == 0
    assert result.store_timestamp_ms == STORE_TIME_MS
    place = decode_offset_id(result.offset_message_id)
    assert (place.store_host, place.physical_offset) == (STORE_HOST, result.physical_offset)
    (stored,) = broker.batches("orders")
    assert stored.columns.bodies == [b"one"]
    assert stored.columns.tags == ["new"]
    assert stored.columns.keys == ["k1 k2"]
    assert stored.columns.unique_keys == [result.message_id]
    assert list(stored.columns.properties[0]) == ["TAGS", "KEYS", "UNIQ_KEY"]


async def test_every_receipt_of_a_batch_knows_its_own_message(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    queue = MessageQueue("orders", "broker-a", 2)
    receipts = [
        producer.send("orders", b"x" * number, queue=queue, properties={"n": str(number)})
        for number in range(1000)
    ]
    results = [await receipt for receipt in receipts]
    assert [result.queue_offset for result in results] == list(range(1000))
    assert len({result.message_id for result in results}) == 1000
    found = {}
    for batch in broker.batches("orders"):
        columns = batch.columns
        found |= zip(
            columns.unique_keys,
            zip(columns.physical_offsets, columns.bodies, strict=True),
            strict=True,
        )
    for number, result in enumerate(results):
        assert found[result.message_id] == (result.physical_offset, b"x" * number)


async def test_what_the_body_raises_comes_out_although_messages_could_not_be_delivered(
    cluster: Cluster, broker: FakeAppendBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.plan = lambda _: Fault.SILENCE
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with cluster.producer(delivery_timeout_seconds=0.1) as producer:
            producer.send("orders", b"one")
            raise KeyError("mine")
    assert "closing failed after an exception" in caplog.text


async def test_sends_that_nobody_awaits_arrive_by_the_time_flush_returns(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    bodies = [b"%d" % number for number in range(20_000)]
    for body in bodies:
        producer.send("orders", body)
    await producer.flush()
    assert sorted(broker.all_bodies("orders")) == sorted(bodies)
    assert producer.buffered_bytes == 0
    assert broker.requests < 20, "they travel in batches"


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_a_producer_compresses_bodies_above_a_size_that_get_smaller(
    cluster: Cluster, broker: FakeAppendBroker, kind: str
) -> None:
    bodies = [bytes(99), bytes(100), random.Random(1).randbytes(100), bytes(1000), b""]
    producer = cluster.producer(compression=kind, compression_bytes_min=100)
    queue = MessageQueue("orders", "broker-a", 2)
    await producer.send_many("orders", bodies, queue=queue)
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
    found: list[tuple[bytes, int]] = []
    for stored in broker.batches("orders"):
        columns = stored.columns
        read = Batch(queue, b"".join(map(columns.frame, range(len(columns)))), columns.lengths)
        found += zip(read.bodies, columns.sys_flags.tolist(), strict=True)
        assert max(columns.body_lengths) <= 100
    packed = flags[kind]
    assert found == list(zip(bodies, [0, packed, 0, packed, 0], strict=True))


async def test_what_a_producer_cannot_compress_with_is_refused(cluster: Cluster) -> None:
    wrong: list[dict[str, Any]] = [
        {"compression": "gzip"},
        {"compression_level": 0},
        {"compression_bytes_min": 0},
    ]
    for settings in wrong:
        with pytest.raises(InvalidArgument, match="compression"):
            cluster.producer(**settings)


async def test_leaving_the_producer_flushes_it(cluster: Cluster, broker: FakeAppendBroker) -> None:
    async with cluster.producer(linger_ms=60_000) as producer:
        for number in range(100):
            producer.send("orders", b"%d" % number)
    assert len(broker.all_bodies("orders")) == 100
    with pytest.raises(Closed):
        producer.send("orders", b"late")
    with pytest.raises(Closed):
        producer.send("orders", b"late", ordering_key="k")
    await producer.close()


async def test_leaving_the_cluster_flushes_its_producers(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        cluster.producer().send("orders", b"one")
        cluster.producer().send("orders", b"two")
    assert sorted(broker.all_bodies("orders")) == [b"one", b"two"]


async def test_a_single_awaited_send_does_not_wait_for_the_linger(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(linger_ms=60_000)
    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(5):
            await producer.send("orders", b"x")
        broker.gate.clear()
        held = producer.send("orders", b"in flight")
        await broker.wait_requests(6)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_result(producer.send("orders", b"awaited")))
            await broker.wait_requests(7)
            broker.gate.set()
        await held


async def test_a_message_after_a_lone_one_is_sent_within_send_and_the_others_together(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    await producer.send("orders", b"lone")
    first, *others = [producer.send("orders", b"%d" % number) for number in range(4)]
    assert first.batch.shipment is not None
    assert all(other.batch.shipment is None for other in others)
    for receipt in (first, *others):
        await receipt
    assert broker.requests == 3


async def _result(receipt: rockoon.Receipt) -> rockoon.SendResult:
    return await receipt


async def test_while_a_batch_is_out_others_gather_until_the_linger_ends(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(linger_ms=50)
    broker.gate.clear()
    producer.send("orders", b"first")
    await broker.wait_requests(1)
    for number in range(50):
        producer.send("orders", b"%d" % number)
        await asyncio.sleep(0)
    assert broker.requests == 1
    await broker.wait_requests(2)
    broker.gate.set()
    await producer.flush()
    assert broker.requests == 2


async def test_batches_are_closed_by_bytes_and_by_messages(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(batch_bytes_max=10_000)
    for _ in range(100):
        producer.send("orders", bytes(1000 - MESSAGE_OVERHEAD_BYTES))
    await producer.flush()
    assert {len(batch.columns) for batch in broker.batches("orders")} == {10}

    counting = cluster.producer(batch_messages_max=7)
    for _ in range(70):
        counting.send("orders", b"")
    await counting.flush()
    assert {len(batch.columns) for batch in broker.batches("orders")} == {10, 7}


async def test_a_topics_batches_go_round_its_queues(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(batch_messages_max=10)
    for number in range(400):
        producer.send("orders", b"%d" % number)
    await producer.flush()
    counts = [len(broker.bodies("orders", queue_id)) for queue_id in range(4)]
    assert counts == [100, 100, 100, 100]


async def test_a_key_has_its_queue_also_before_the_topic_is_known(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    keys = [f"user-{number % 10}" for number in range(200)]
    early = [producer.send("orders", b"%d" % n, ordering_key=key) for n, key in enumerate(keys)]
    await early[0]
    late = [
        producer.send("orders", b"%d" % (n + 200), ordering_key=key) for n, key in enumerate(keys)
    ]
    for key, receipt in zip([*keys, *keys], [*early, *late], strict=True):
        assert (await receipt).queue.queue_id == crc32_key_hash(key) % 4
    for queue_id in range(4):
        numbers = [int(body) for body in broker.bodies("orders", queue_id)]
        assert numbers == sorted(numbers)


async def test_a_producer_may_use_another_hash(cluster: Cluster) -> None:
    producer = cluster.producer(key_hash=len)
    for key in ("a", "bb", "ccc"):
        assert (await producer.send("orders", b"", ordering_key=key)).queue.queue_id == len(key)


async def test_a_topic_that_does_not_exist_fails_the_receipts_and_can_come_later(
    cluster: Cluster, nameserver: ScriptedNameserver
) -> None:
    producer = cluster.producer()
    plain = producer.send("payments", b"x")
    keyed = producer.send("payments", b"x", ordering_key="k")
    for receipt in (plain, keyed):
        with pytest.raises(TopicNotFound, match="payments"):
            await receipt
    nameserver.put_topic("payments", {"broker-a": 1})
    assert (await producer.send("payments", b"x")).queue_offset == 0


async def test_a_deleted_topic_fails_what_waits_for_it(
    cluster: Cluster, nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(in_flight_max=1)
    await producer.send("orders", b"x")
    broker.gate.clear()
    producer.send("orders", b"in flight")
    await broker.wait_requests(2)
    waiting = producer.send("orders", b"behind it")
    nameserver.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        await waiting
    broker.gate.set()


async def test_a_read_only_topic_fails_the_receipts_until_it_is_writable(
    cluster: Cluster, nameserver: ScriptedNameserver
) -> None:
    producer = cluster.producer()
    nameserver.put_topic("archive", {"broker-a": 1}, permissions=4)
    with pytest.raises(TopicNotWritable):
        await producer.send("archive", b"x")
    revision = nameserver.put_topic("archive", {"broker-a": 1}, permissions=6)
    await cluster.route("archive", min_revision=revision)
    await producer.send("archive", b"x")


async def test_a_queue_that_does_not_exist_is_told(cluster: Cluster) -> None:
    producer = cluster.producer()
    wrong = MessageQueue("orders", "broker-a", 9)
    with pytest.raises(QueueNotFound):
        await producer.send("orders", b"x", queue=wrong)
    with pytest.raises(QueueNotFound):
        producer.send("orders", b"x", queue=wrong)
    with pytest.raises(InvalidArgument):
        producer.send("orders", b"x", queue=MessageQueue("payments", "broker-a", 0))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"topic": ""}, InvalidTopicName),
        ({"topic": "a b"}, InvalidTopicName),
        ({"topic": "x" * 128}, InvalidTopicName),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, InvalidTopicName),
        ({"topic": "rmq_sys_x"}, InvalidTopicName),
        ({"topic": "a b", "ordering_key": "k"}, InvalidTopicName),
        ({"body": "text"}, InvalidArgument),
        ({"body": 17}, InvalidArgument),
        ({"body": bytes((4 << 20) + 1)}, BodyTooLarge),
        ({"tags": ""}, InvalidProperty),
        ({"tags": "a\x02b"}, InvalidProperty),
        ({"keys": ""}, InvalidProperty),
        ({"keys": []}, InvalidProperty),
        ({"keys": ["a", ""]}, InvalidProperty),
        ({"keys": ["a b"]}, InvalidProperty),
        ({"keys": [1]}, InvalidProperty),
        ({"keys": 1}, InvalidProperty),
        ({"tags": ["a"]}, InvalidProperty),
        ({"ordering_key": 1}, InvalidArgument),
        ({"ordering_key": "\ud800"}, InvalidArgument),
        ({"properties": {"KEYS": "a"}}, InvalidProperty),
        ({"properties": {"UNIQ_KEY": "a"}}, InvalidProperty),
        ({"properties": {"DELAY": "3"}}, InvalidProperty),
        ({"properties": {"__RMQ.TRANSIENT.x": "3"}}, InvalidProperty),
        ({"properties": {"a": ""}}, InvalidProperty),
        ({"properties": {"": "a"}}, InvalidProperty),
        ({"properties": {"a\x01": "b"}}, InvalidProperty),
        ({"properties": {"a": "b\x01"}}, InvalidProperty),
        ({"properties": {"a": "\ud800"}}, InvalidProperty),
        ({"properties": {"a": 1}}, InvalidProperty),
        ({"properties": {"a": "x" * 32_767}}, PropertiesTooLarge),
        ({"ordering_key": "k", "queue": MessageQueue("orders", "broker-a", 0)}, InvalidArgument),
    ],
)
async def test_a_message_that_cannot_be_sent_is_refused_at_once_and_alone(
    cluster: Cluster, broker: FakeAppendBroker, arguments: dict, expected: type[Exception]
) -> None:
    producer = cluster.producer()
    good = producer.send("orders", b"before")
    with pytest.raises(expected):
        producer.send(**({"topic": "orders", "body": b"x"} | arguments))
    after = producer.send("orders", b"after")
    await good
    await after
    assert broker.all_bodies("orders") == [b"before", b"after"]


async def test_the_largest_body_and_the_longest_properties_pass(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    room = 32_767 - len("a\x01\x02") - len("UNIQ_KEY\x01") - 56 - 1 - 20
    await producer.send("orders", bytes(4 << 20), properties={"a": "x" * room})
    with pytest.raises(PropertiesTooLarge):
        producer.send("orders", b"", properties={"a": "x" * (room + 1)})
    assert [len(body) for body in broker.all_bodies("orders")] == [4 << 20]


async def test_a_body_that_changes_after_the_send_is_sent_as_it_was(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    body = bytearray(b"before")
    receipt = producer.send("orders", body)
    body[:] = b"behind"
    await receipt
    await producer.send("orders", memoryview(b"a view"))
    assert sorted(broker.all_bodies("orders")) == [b"a view", b"before"]


async def test_whoever_never_awaits_meets_the_end_of_the_buffer(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(buffer_bytes_max=100_000)
    broker.gate.clear()
    body = bytes(1000 - MESSAGE_OVERHEAD_BYTES)
    for _ in range(100):
        producer.send("orders", body)
    with pytest.raises(BufferFull):
        producer.send("orders", body)
    broker.gate.set()
    await producer.flush()
    await producer.send("orders", b"there is room again")
    assert len(broker.all_bodies("orders")) == 101


async def test_many_tasks_that_await_their_sends_wait_and_do_not_fail(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(buffer_bytes_max=10_000)
    broker.gate.clear()

    async def send(number: int) -> None:
        await producer.send("orders", b"%d" % number + bytes(1000))

    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(send(number))
        await broker.wait_requests(1)
        broker.gate.set()
    assert len(broker.all_bodies("orders")) == 300


async def test_drain_waits_while_too_much_is_on_its_way(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(drain_bytes=50_000, batch_bytes_max=5_000)
    broker.gate.clear()
    for _ in range(40):
        producer.send("orders", bytes(1000 - MESSAGE_OVERHEAD_BYTES))
        await producer.wait_capacity()
    for _ in range(11):
        producer.send("orders", bytes(1000 - MESSAGE_OVERHEAD_BYTES))
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(producer.wait_capacity())
        await broker.wait_requests(1)
        assert not draining.done()
        broker.gate.set()
    assert producer.buffered_bytes <= 50_000


async def test_a_failure_that_nobody_awaits_comes_out_of_drain_flush_or_close_once(
    cluster: Cluster,
) -> None:
    producer = cluster.producer()
    for _ in range(3):
        producer.send("payments", b"x")
    with pytest.raises(TopicNotFound) as told:
        await producer.flush()
    assert told.value.__notes__ == ["3 messages that no task awaited were not delivered"]
    await producer.flush()
    await producer.wait_capacity()

    with pytest.raises(TopicNotFound):
        await producer.send("payments", b"x")
    await producer.flush()

    unseen = producer.send("payments", b"x")
    await eventually(lambda: unseen.done)
    with pytest.raises(TopicNotFound):
        await producer.wait_capacity()

    producer.send("payments", b"x")
    with pytest.raises(TopicNotFound):
        await producer.close()


async def test_cancelling_who_awaits_a_receipt_does_not_take_the_message_back(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer()
    broker.gate.clear()
    first, second = producer.send("orders", b"one"), producer.send("orders", b"two")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await first
    broker.gate.set()
    assert (await second).queue_offset == 1
    assert first.done
    assert (await first).queue_offset == 0


async def test_send_many_takes_iterables_and_async_iterables(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(batch_messages_max=100)
    results = await producer.send_many(
        "orders", (b"%d" % n for n in range(1000)), keys=[f"k{n}" for n in range(1000)], tags="t"
    )
    assert len(results) == 1000
    assert len({(each.queue, each.queue_offset) for each in results}) == 1000
    assert results[999] == results[-1]
    assert [each.message_id for each in results[10:12]] == [
        results[10].message_id,
        results[11].message_id,
    ]
    stored = {
        key: body
        for batch in broker.batches("orders")
        for key, body in zip(batch.columns.keys, batch.columns.bodies, strict=True)
    }
    assert stored == {f"k{n}": b"%d" % n for n in range(1000)}

    async def source():  # type: ignore[no-untyped-def]
        for number in range(10):
            await asyncio.sleep(0)
            yield b"%d" % number

    assert len(await producer.send_many("orders", source(), ordering_key="k")) == 10
    assert len(await producer.send_many("orders", [])) == 0


@pytest.mark.parametrize("bounds", [{"drain_bytes": 100_000}, {}])
async def test_send_many_holds_back_instead_of_filling_the_buffer(
    cluster: Cluster, broker: FakeAppendBroker, bounds: dict[str, int]
) -> None:
    """By default, too, however small the buffer is."""
    producer = cluster.producer(buffer_bytes_max=400_000, batch_bytes_max=20_000, **bounds)
    asked = 0

    def bodies():  # type: ignore[no-untyped-def]
        nonlocal asked
        for _ in range(1000):
            asked += 1
            yield bytes(1000)

    broker.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(producer.send_many("orders", bodies()))
        await broker.wait_requests(1)
        assert asked < (200 if bounds else 400)
        broker.gate.set()
    assert len(sending.result()) == 1000


async def test_who_waits_for_capacity_never_finds_a_small_buffer_full(
    cluster: Cluster, broker: FakeAppendBroker
) -> None:
    producer = cluster.producer(buffer_bytes_max=100_000, batch_bytes_max=5_000)
    broker.gate.clear()

    async def send_all() -> None:
        for _ in range(300):
            await producer.wait_capacity()
            producer.send("orders", bytes(1000))

    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send_all())
        await broker.wait_requests(1)
        assert not sending.done()
        broker.gate.set()
    await producer.flush()
    assert len(broker.all_bodies("orders")) == 300


async def test_send_many_tells_a_wrong_number_of_keys_and_an_unknown_topic(
    cluster: Cluster,
) -> None:
    producer = cluster.producer()
    with pytest.raises(InvalidArgument):
        await producer.send_many("orders", [b"a", b"b"], keys=["k"])
    with pytest.raises(InvalidArgument):
        await producer.send_many("orders", [b"a"], keys=["k", "l"])
    with pytest.raises(TopicNotFound):
        await producer.send_many("payments", [b"a"])


async def test_the_clusters_name_goes_with_every_call(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    async with rockoon.connect(nameserver.address, cluster="rockoon") as cluster:
        await cluster.producer().send("orders", b"x")
    assert broker.clusters == ["rockoon"]


async def test_settings_have_bounds(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument, match="in_flight_max"):
        cluster.producer(in_flight_max=0)
    with pytest.raises(TypeError, match="no_such"):
        cluster.producer(no_such=1)


async def test_leaving_the_cluster_closes_every_producer_and_tells_of_the_first_failure(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})

    async def leave() -> None:
        async with rockoon.connect(nameserver.address) as cluster:
            first, second = cluster.producer(), cluster.producer()
            second.send("payments", b"x")
            first.send("orders", b"x")

    with pytest.raises(TopicNotFound):
        await leave()
    assert broker.all_bodies("orders") == [b"x"]


async def test_what_the_body_raises_comes_before_what_closing_finds(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    async def leave() -> None:
        async with rockoon.connect(nameserver.address) as cluster:
            cluster.producer().send("payments", b"x")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await leave()


async def test_a_bug_in_a_background_task_ends_the_block_and_does_not_hang_it(
    nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    calls = 0

    def clock() -> int:
        nonlocal calls
        calls += 1
        # The first three are for making the producer and opening the batch.
        if calls > 3:
            raise ZeroDivisionError
        return 1_700_000_000_000

    with pytest.raises(ExceptionGroup) as group:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            rockoon.connect(nameserver.address) as cluster,
        ):
            await cluster.producer(clock=clock).send("orders", b"x")
    assert group.group_contains(ZeroDivisionError)


async def test_a_message_without_keys_for_a_compacted_topic_is_refused_alone(
    cluster: Cluster, nameserver: ScriptedNameserver, broker: FakeAppendBroker
) -> None:
    nameserver.put_topic("latest", {"broker-a": 2}, attributes={"cleanup.policy": "COMPACTION"})
    async with cluster.producer() as producer:
        await producer.send("latest", b"value", keys="k")
        for keys in (None, [], " "):
            with pytest.raises(KeyMissing, match="'latest' needs keys="):
                producer.send("latest", b"x", keys=keys)
        with pytest.raises(KeyMissing):
            await producer.send_many("latest", [b"x", b"y"])
        with pytest.raises(KeyMissing):
            await producer.send_many("latest", [b"x", b"y"], keys=["k", None])
        await producer.send("latest", b"", keys="k")
        await producer.flush()
        assert sorted(broker.all_bodies("latest")) == [b"", b"value", b"x"]

        nameserver.put_topic("latest", {"broker-a": 2})

        async def is_free() -> bool:
            # The producer receives it a little later.
            with suppress(KeyMissing):
                await producer.send("latest", b"free")
            return b"free" in broker.all_bodies("latest")

        await answered(is_free, bool)

        nameserver.put_topic("latest", {"broker-a": 2}, attributes={"cleanup.policy": "COMPACTION"})

        async def needs_keys() -> bool:
            try:
                await producer.send("latest", b"free")
            except KeyMissing:
                return True
            return False

        await answered(needs_keys, bool)


async def test_former_names_work_for_a_version_and_say_what_they_are_called_now(
    cluster: Cluster,
) -> None:
    async with cluster.producer() as producer:
        with pytest.warns(DeprecationWarning, match="ordering_key") as warned:  # noqa: PT031
            former = producer.send("orders", b"x", key="k")
            await producer.send_many("orders", [b"x"], key="k")
        # Python shows it only for the program's own lines.
        assert [each.filename for each in warned] == [__file__] * 2
        assert (await former).queue == (await producer.send("orders", b"y", ordering_key="k")).queue
        with pytest.warns(DeprecationWarning, match="wait_capacity"):
            await producer.drain()
        with pytest.raises(InvalidArgument, match="use only the latter"):
            producer.send("orders", b"z", key="k", ordering_key="k")


async def test_options_of_a_send_are_given_by_name(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(TypeError, match="by name"):
            producer.send("orders", b"x", "key")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="colour"):
            producer.send("orders", b"x", colour="red")  # type: ignore[call-arg]


def test_the_defaults_of_the_signature_are_those_of_the_settings() -> None:
    parameters = inspect.signature(Cluster.producer).parameters
    for field in fields(ProducerSettings):
        assert parameters[field.name].default == field.default
    assert set(get_type_hints(ProducerOptions)) == {
        field.name for field in fields(ProducerSettings)
    }


def test_options_that_are_passed_on_are_those_of_what_takes_them() -> None:
    for options, takes, others in [
        (SendOptions, Producer.send, {"self", "topic", "body", "_"}),
        (SendManyOptions, Producer.send_many, {"self", "topic", "bodies"}),
        (HalfMessageOptions, TransactionalProducer.begin, {"self", "topic", "body"}),
        (
            TransactionalProducerOptions,
            Cluster.transactional_producer,
            {"self", "group", "check", "key_hash", "clock"},
        ),
        (
            ReadOptions,
            Cluster.pull_consumer,
            {"self", "group", "consume_from", "create_group"},
        ),
    ]:
        named = set(inspect.signature(takes).parameters) - others
        assert named == set(options.__annotations__), options
