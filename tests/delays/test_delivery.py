"""Delayed messages over a real store: delivered messages, their times and positions, once each."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rockoon_broker.clock import BELIEVED_AFTER_MS
from rockoon_broker.delays.delay_offsets import DelayOffsetFile, read_timer_checkpoint
from rockoon_broker.delays.rewriting import TIMED_QUEUE
from rockoon_broker.pending.pending_queue import named_source
from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.store.log.batch import AppendBatch
from rockoon_broker.topics.topic_file import TopicFile
from rockoon_core.disk import Disk
from rockoon_core.errors import (
    Busy,
    DelayedSettled,
    DelayTooLong,
    InvalidArgument,
    InvalidDelay,
    MalformedBatch,
    MessageNotFound,
    NotReady,
    PropertiesTooLarge,
    TopicNotFound,
)
from rockoon_format.config_json import (
    DelayOffsets,
    TopicConfig,
    TopicConfigs,
    read_delay_offsets,
    read_topics,
    write_delay_offsets,
    write_topics,
)
from rockoon_format.message_id import decode_offset_id
from rockoon_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from rockoon_format.properties import decode
from rockoon_format.record import Record, encode_record
from support.aside_desk import NOW_MS, AsideDesk
from support.cold_disk import ColdDisk
from support.eventually import eventually
from support.seeds import seeds
from support.store_check import verify_store
from support.store_directory import FailingDisk, crashed_copy


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[AsideDesk]:
    desk = AsideDesk(tmp_path / "store")
    yield desk
    desk.store.close()


async def test_a_level_comes_after_its_delay_with_everything_it_was_sent_with(
    desk: AsideDesk,
) -> None:
    (message_id,) = await desk.send({"TAGS": "red", "DELAY": 3, "KEYS": "k1 k2"}, queue_id=1)
    desk.clock.pass_ms(9_999)
    await desk.turns()
    assert desk.bodies("T", 1) == []
    assert desk.delays.pending_by_level()[3] == 1
    desk.clock.pass_ms(1)
    await desk.turns()
    (record,) = desk.read("T", 1)
    source = decode_offset_id(message_id).physical_offset
    assert record.prepared_transaction_offset == named_source(source)
    assert (record.body, record.flag, record.born_timestamp_ms) == (b"0", 77, NOW_MS - 1)
    assert record.store_timestamp_ms == NOW_MS + 10_000
    assert decode(record.properties) == {
        "TAGS": "red",
        "DELAY": "3",
        "KEYS": "k1 k2",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
    }
    await desk.turns()
    assert len(desk.read("T", 1)) == 1
    assert desk.delays.delivery.counts.delivered == 1


async def test_what_is_due_waits_for_the_routes_that_know_its_queue(desk: AsideDesk) -> None:
    """A new leader begins before it has seen them."""
    await desk.send({"DELAY": 1})
    desk.clock.pass_ms(1000)
    desk.has_routes = False
    with pytest.raises(NotReady):
        await desk.turns()
    assert len(desk.delays) == 1
    desk.has_routes = True
    await desk.turns()
    assert desk.bodies() == [b"0"]
    assert desk.delays.delivery.counts.undeliverable == 0


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELAY_SEC": 2}, NOW_MS + 2000),
        ({"TIMER_DELAY_MS": 1234}, NOW_MS + 1234),
        ({"TIMER_DELIVER_MS": NOW_MS + 777}, NOW_MS + 777),
        ({"TIMER_DELAY_SEC": 3, "TIMER_DELAY_MS": 1, "TIMER_DELIVER_MS": 5}, NOW_MS + 3000),
        ({"DELAY": 1, "TIMER_DELAY_SEC": 9}, NOW_MS + 1000),
        ({"DELAY": 0, "TIMER_DELAY_SEC": 9}, NOW_MS + 9000),
        ({"DELAY": 99}, NOW_MS + 7_200_000),
        ({"TIMER_DELIVER_MS": NOW_MS - 10**9}, NOW_MS),
    ],
)
async def test_each_way_to_say_when(
    properties: dict[str, object], due_ms: int, desk: AsideDesk
) -> None:
    await desk.send(properties)
    if due_ms > NOW_MS:
        desk.clock.pass_ms(due_ms - NOW_MS - 1)
        await desk.turns()
        assert desk.bodies() == []
        desk.clock.pass_ms(1)
    await desk.turns()
    assert desk.bodies() == [b"0"]


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"TAGS": "red"}, InvalidDelay),
        ({"DELAY": "soon"}, InvalidDelay),
        ({"DELAY": 0}, InvalidDelay),
        ({"TIMER_DELAY_MS": "-5"}, InvalidDelay),
        ({"TIMER_DELIVER_MS": "1e9"}, InvalidDelay),
        ({"TIMER_DELAY_SEC": 259_201}, DelayTooLong),
        ({"TIMER_DELIVER_MS": NOW_MS + 259_200_001}, DelayTooLong),
        ({"DELAY": 1, "fill": "x" * 32_733}, PropertiesTooLarge),
    ],
)
async def test_a_delay_that_is_none_refuses_the_whole_batch(
    properties: dict[str, object], error: type[Exception], desk: AsideDesk
) -> None:
    with pytest.raises(error) as refused:
        await desk.send({"DELAY": 1}, properties)
    assert "1" in str(refused.value)
    assert desk.store.appended_end == 0


async def test_records_that_are_not_of_the_queue_or_name_a_source_are_refused(
    desk: AsideDesk,
) -> None:
    good = Record(topic=b"T", body=b"x", properties=b"DELAY\x011\x02")
    for wrong in (
        Record(topic=b"U", properties=b"DELAY\x011\x02"),
        Record(topic=b"T", queue_id=1, properties=b"DELAY\x011\x02"),
        Record(topic=b"T", properties=b"DELAY\x011\x02", prepared_transaction_offset=-1),
        Record(topic=b"T", properties=b"DELAY\x011\x02", sys_flag=8),
    ):
        frames = [encode_record(good), encode_record(wrong)]
        with pytest.raises(MalformedBatch):
            await desk.delays.append(AppendBatch.of_records("T", 0, frames), lambda: None)
    spoiled = bytearray(encode_record(good))
    spoiled[88] ^= 1
    for frames in ([bytes(spoiled)], []):
        with pytest.raises(MalformedBatch):
            await desk.delays.append(AppendBatch.of_records("T", 0, frames), lambda: None)


async def test_one_batch_may_have_many_delays_and_each_message_has_its_place(
    desk: AsideDesk,
) -> None:
    ids = await desk.send({"DELAY": 1}, {"DELAY": 1}, {"TIMER_DELAY_MS": 500}, {"DELAY": 2})
    assert len(set(ids)) == 4
    assert [waiting.message_id for waiting in desk.delays.next_due(10)] == [
        ids[2],
        ids[0],
        ids[1],
        ids[3],
    ]
    desk.clock.pass_ms(5000)
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"1", b"2", b"3"]


async def test_a_topic_that_does_not_exist_takes_no_delayed_messages(desk: AsideDesk) -> None:
    with pytest.raises(TopicNotFound):
        await desk.send({"DELAY": 1}, topic="gone")


async def test_too_many_waiting_messages_are_refused(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path, delayed_messages_max=2)
    await desk.send({"DELAY": 1}, {"DELAY": 1})
    await desk.turns()
    with pytest.raises(Busy):
        await desk.send({"DELAY": 1})
    desk.clock.pass_ms(1000)
    await desk.turns()
    await desk.send({"DELAY": 1})
    desk.store.close()


async def test_a_message_whose_topic_was_deleted_goes_nowhere_and_is_reported_once(
    desk: AsideDesk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = await desk.send({"DELAY": 1}, topic="U")
    desk.topics.discard(("U", 0))
    desk.store.drop_topics("U")
    desk.clock.pass_ms(1000)
    await desk.turns()
    assert message_id in caplog.text
    assert desk.delays.delivery.counts.undeliverable == 1
    again = desk.killed(tmp_path / "copy")
    await again.turns()
    assert again.bodies("U") == []
    assert again.delays.delivery.counts.undeliverable == 0
    again.store.close()


async def test_a_message_for_a_topic_that_is_another_by_now_is_not_put_into_it(
    desk: AsideDesk,
) -> None:
    await desk.send({"DELAY": 1}, topic="U")
    desk.store.drop_topics("U")
    await desk.send({"DELAY": 1}, topic="U", bodies=[b"new"])
    desk.clock.pass_ms(1000)
    await desk.turns()
    assert desk.bodies("U") == [b"new"]


async def test_a_cancelled_message_never_comes_not_even_after_a_kill(
    desk: AsideDesk, tmp_path: Path
) -> None:
    ids = await desk.send({"DELAY": 1}, {"TIMER_DELAY_MS": 900}, {"DELAY": 1})
    await desk.delays.cancel(ids[0])
    await desk.delays.cancel(ids[1])
    with pytest.raises(DelayedSettled):
        await desk.delays.cancel(ids[0])
    again = desk.killed(tmp_path / "copy")
    again.clock.pass_ms(10_000)
    await again.turns()
    assert again.bodies() == [b"2"]
    for message_id in ids:
        with pytest.raises(DelayedSettled):
            await again.delays.cancel(message_id)
    again.store.close()


async def test_ids_that_name_no_delayed_message_cannot_be_cancelled(desk: AsideDesk) -> None:
    (message_id,) = await desk.send({"DELAY": 1})
    desk.clock.pass_ms(1000)
    await desk.turns()
    (delivered,) = desk.read()
    for wrong in (
        message_id[:16] + f"{delivered.physical_offset:016X}",
        message_id[:16] + f"{10**6:016X}",
    ):
        with pytest.raises(MessageNotFound):
            await desk.delays.cancel(wrong)
    (message_id,) = await desk.send({"DELAY": 1})
    with pytest.raises(MessageNotFound):
        await desk.delays.cancel("0A000001" + message_id[8:])
    with pytest.raises(InvalidArgument):
        await desk.delays.cancel("nonsense")


async def test_while_the_store_takes_nothing_messages_wait_and_none_is_lost(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    desk = AsideDesk(tmp_path, disk=disk, disk_check_interval_ms=1)
    await desk.send({"DELAY": 1}, {"TIMER_DELAY_MS": 1})
    # The reserve for the broker's own records is used up as well.
    disk.usage_percent = 96
    desk.clock.pass_ms(2000)
    with pytest.raises(Exception, match="full"):
        await desk.turns()
    assert desk.bodies() == []
    disk.usage_percent = 10
    desk.clock.pass_ms(2000)
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"1"]
    desk.store.close()


async def test_the_queues_of_delayed_messages_are_rebuilt_byte_for_byte(
    desk: AsideDesk, tmp_path: Path
) -> None:
    await desk.send({"DELAY": 2}, {"TIMER_DELAY_MS": 5000}, {"DELAY": 5, "TAGS": "x"})
    await desk.delays.cancel((await desk.send({"TIMER_DELAY_MS": 7000}))[0])
    entries = {
        key: desk.store.entries(*key, 0, 100).tobytes()
        for key in desk.store.queues()
        if key[0] in (SCHEDULE_TOPIC, TIMER_TOPIC)
    }
    assert len(entries) == 4
    root = desk.settings.store_path
    copy = crashed_copy(root, tmp_path / "copy")
    shutil.rmtree(copy / "consumequeue")
    again = AsideDesk(copy, desk.clock)
    for key, raw in entries.items():
        assert again.store.entries(*key, 0, 100).tobytes() == raw
    again.store.close()
    assert verify_store(copy) == []


async def test_levels_can_be_set_and_rebuilt_queues_know_it(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path / "a", delay_levels="7s 1m")
    await desk.send({"DELAY": 1}, {"DELAY": 9})
    expected = [desk.store.entries(SCHEDULE_TOPIC, level, 0, 9).tobytes() for level in (0, 1)]
    copy = crashed_copy(tmp_path / "a", tmp_path / "b")
    desk.store.close()
    shutil.rmtree(copy / "consumequeue")
    again = AsideDesk(copy, desk.clock, delay_levels="7s 1m")
    assert [
        again.store.entries(SCHEDULE_TOPIC, level, 0, 9).tobytes() for level in (0, 1)
    ] == expected
    again.clock.pass_ms(7000)
    await again.turns()
    assert again.bodies() == [b"0"]
    again.store.close()


async def test_messages_of_levels_that_are_no_more_still_come(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path)
    await desk.send({"DELAY": 18})
    again = desk.restarted(delay_levels="1s")
    again.clock.pass_ms(7_200_000)
    await again.turns()
    assert again.bodies() == [b"0"]
    again.store.close()


async def test_after_a_clean_stop_only_the_snapshot_is_read(
    tmp_path: Path, desk: AsideDesk
) -> None:
    await desk.send(*[{"TIMER_DELAY_SEC": 100 + n} for n in range(50)])
    again = desk.restarted()
    assert len(again.delays) == 50
    assert again.aside.pending_index.capture().snapshot.covered_end == again.store.appended_end
    again.clock.pass_ms(200_000)
    await again.turns()
    assert len(again.bodies()) == 50
    again.store.close()


async def test_rocketmqs_file_says_how_far_each_level_is(tmp_path: Path, desk: AsideDesk) -> None:
    await desk.send({"DELAY": 1}, {"DELAY": 1}, {"DELAY": 2})
    desk.clock.pass_ms(1000)
    await desk.turns()
    desk.write_snapshot()
    file = desk.settings.store_path / "config" / "delayOffset.json"
    assert read_delay_offsets(file.read_bytes()).offsets == {1: 2}


async def test_what_rocketmq_delivered_is_not_delivered_again(
    tmp_path: Path, desk: AsideDesk
) -> None:
    await desk.send({"DELAY": 1}, {"DELAY": 1}, {"DELAY": 1})
    desk.store.close()
    config = desk.settings.store_path / "config"
    config.mkdir(exist_ok=True)
    (config / "delayOffset.json").write_bytes(write_delay_offsets(DelayOffsets({1: 2, 7: 99})))
    again = AsideDesk(desk.settings.store_path, desk.clock)
    again.clock.pass_ms(5000)
    await again.turns()
    assert again.bodies() == [b"2"]
    again.store.close()


async def test_rocketmqs_timed_messages_come_unless_it_delivered_them(
    tmp_path: Path, desk: AsideDesk
) -> None:
    await desk.send(*({"TIMER_DELAY_SEC": seconds} for seconds in (1, 5, 2, 3)))
    desk.store.close()
    root = desk.settings.store_path
    # RocketMQ's entries hold hashes of tags.
    (file,) = (root / "consumequeue" / TIMER_TOPIC / "0").iterdir()
    entries = bytearray(file.read_bytes())
    for number, code in enumerate((0, 12, -3, 2**31 - 1)):
        entries[number * 20 + 12 : number * 20 + 20] = code.to_bytes(8, signed=True)
    file.write_bytes(entries)
    checkpoint = (NOW_MS + 2500).to_bytes(8) + bytes(8) + (2).to_bytes(8)
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "timercheck").write_bytes(checkpoint.ljust(64, b"\0"))
    again = AsideDesk(root, desk.clock)
    await again.turns()
    assert again.bodies() == []
    again.clock.pass_ms(3000)
    await again.turns()
    assert again.bodies() == [b"2", b"3"], "the third came after its timer's checkpoint"
    again.clock.pass_ms(2000)
    await again.turns()
    assert again.bodies() == [b"2", b"3", b"1"]
    again.store.close()


@pytest.mark.parametrize(
    ("file", "content", "read"),
    [
        ("delayOffset.json", b"{", lambda config: DelayOffsetFile(config, lambda: 0).read()),
        ("timercheck", b"short", read_timer_checkpoint),
    ],
)
def test_notes_of_rocketmqs_that_cannot_be_read_stop_the_start(
    file: str, content: bytes, read: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(StoreLayoutError, match=file):
        read(tmp_path)


def test_topics_where_messages_wait_are_not_served_though_rocketmq_lists_them(
    tmp_path: Path,
) -> None:
    names = ("mine", SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC")
    listed = TopicConfigs({name: TopicConfig(topic=name) for name in names})
    (tmp_path / "topics.json").write_bytes(write_topics(listed))
    file = TopicFile(tmp_path, Disk())
    table = file.read()
    assert set(table.topics) == {"mine"}
    file.write(table, NOW_MS)
    assert set(read_topics((tmp_path / "topics.json").read_bytes()).topics) == set(names)


# Retention.


async def test_what_retention_threatens_is_stored_once_more_and_keeps_its_name(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path / "a", reserved_hours=10, commit_log_file_bytes=4096)
    ids = await desk.send(
        {"TIMER_DELAY_SEC": 86_400},
        {"TIMER_DELAY_SEC": 25_200},
        {"TIMER_DELAY_SEC": 80_000},
        {"DELAY": 1},
    )
    for _ in range(20):
        await desk.send({"TIMER_DELAY_MS": 1}, bodies=[bytes(500)])
    desk.clock.pass_ms(6 * 3_600_000)
    await desk.turns()
    assert desk.delays.delivery.counts.rolled == 2, "due before its file goes: the second"
    listed = {waiting.message_id: waiting.deliver_at_ms for waiting in desk.delays.next_due(9)}
    assert listed == {
        ids[0]: NOW_MS + 86_400_000,
        ids[1]: NOW_MS + 25_200_000,
        ids[2]: NOW_MS + 80_000_000,
    }
    desk.write_snapshot()
    again = desk.killed(tmp_path / "b", reserved_hours=10, commit_log_file_bytes=4096)
    await again.delays.cancel(ids[2])
    with pytest.raises(DelayedSettled):
        await again.delays.cancel(ids[2])
    again.forget_snapshot()
    last = again.killed(tmp_path / "c", reserved_hours=10, commit_log_file_bytes=4096)
    assert {w.message_id for w in last.delays.next_due(9)} == {ids[0], ids[1]}
    last.clock.pass_ms(86_400_000)
    await last.turns()
    due = [record.body for record in last.read() if len(record.body) < 9]
    assert sorted(due) == [b"0", b"1", b"3"]
    last.store.close()


async def test_a_disk_too_full_for_its_contents_loses_messages_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    full = {"disk_pressure_policy": "delete"}
    desk = AsideDesk(tmp_path / "a", disk=disk, commit_log_file_bytes=4096, **full)
    await desk.send({"DELAY": 18})
    for _ in range(20):
        await desk.send({"TIMER_DELAY_MS": 1}, bodies=[bytes(500)])
    await desk.turns()
    desk.sync()
    desk.clock.pass_ms(10_000)
    desk.store.tick(desk.clock.wall_ms)
    await eventually(lambda: not desk.store.point_pending)
    disk.usage_percent = 88
    desk.store.clean(desk.clock.wall_ms)
    assert desk.store.log_min_offset > 0
    await desk.turns()
    assert desk.delays.delivery.counts.lost >= 1
    assert "before they were due" in caplog.text
    desk.store.close()


# Clocks and kills.


async def test_a_clock_set_forward_brings_early_only_what_it_says_is_due(desk: AsideDesk) -> None:
    await desk.send({"TIMER_DELAY_SEC": 1800}, {"TIMER_DELAY_SEC": 7200}, {"DELAY": 17})
    desk.clock.wall_ms += 3_600_000
    await desk.turns()
    assert desk.bodies() == [], "one reading may be wrong"
    desk.clock.pass_ms(BELIEVED_AFTER_MS)
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"2"]
    desk.clock.wall_ms -= 3_600_000
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"2"]


async def test_who_sleeps_until_something_is_due_is_woken_by_what_is_due_before(
    desk: AsideDesk,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(desk.delays.delivery.work.run(), name="delays")
        await desk.send({"TIMER_DELAY_SEC": 7200})
        desk.aside.arrived((TIMER_TOPIC, TIMED_QUEUE))
        await eventually(lambda: len(desk.delays) == 1)
        await desk.send({"TIMER_DELAY_MS": 1}, bodies=[b"at once"])
        desk.clock.pass_ms(1)
        desk.aside.arrived((TIMER_TOPIC, TIMED_QUEUE))
        await eventually(lambda: desk.bodies() == [b"at once"])
        # No event reports this; a changed clock is not believed immediately.
        desk.clock.pass_ms(7_200_000)
        await eventually(lambda: desk.bodies() == [b"at once", b"0"])
        running.cancel()


async def test_a_clock_set_back_keeps_nothing_longer_than_its_delay(desk: AsideDesk) -> None:
    await desk.send({"TIMER_DELAY_SEC": 10}, {"DELAY": 3})
    await desk.turns()
    desk.clock.wall_ms -= 86_400_000
    await desk.send({"TIMER_DELAY_SEC": 20}, {"DELAY": 4}, bodies=[b"later", b"level 4"])
    await desk.turns()
    desk.clock.pass_ms(9_999)
    await desk.turns()
    assert desk.bodies() == []
    desk.clock.pass_ms(1)
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"1"]
    desk.clock.pass_ms(20_000)
    await desk.turns()
    assert sorted(desk.bodies()) == [b"0", b"1", b"later", b"level 4"]


async def test_a_restart_with_a_clock_set_back_does_not_wait_for_the_old_time(
    tmp_path: Path, desk: AsideDesk
) -> None:
    await desk.send({"DELAY": 3}, {"TIMER_DELAY_SEC": 10})
    desk.clock.wall_ms -= 300 * 86_400_000
    again = desk.killed(tmp_path / "copy")
    # It continues from the newest message, and does not believe the clock immediately.
    again.clock.pass_ms(10_000)
    await again.turns()
    assert sorted(again.bodies()) == [b"0", b"1"]
    again.store.close()


@pytest.mark.parametrize("seed", seeds(2))
async def test_everything_comes_once_through_random_jumps_kills_stops_and_cancellations(
    tmp_path: Path, seed: int
) -> None:
    choose = random.Random(seed)
    desk = AsideDesk(tmp_path / "0")
    expected: dict[bytes, str] = {}
    cancelled: set[bytes] = set()
    for turn in range(120):
        action = choose.random()
        if action < 0.45:
            each: list[dict[str, object]] = [
                choose.choice(
                    [
                        {"DELAY": choose.randrange(1, 6)},
                        {"TIMER_DELAY_MS": choose.randrange(60_000)},
                        {"TIMER_DELIVER_MS": desk.clock.wall_ms + choose.randrange(-9999, 99_999)},
                    ]
                )
                for _ in range(choose.randrange(1, 8))
            ]
            bodies = [b"%d-%d" % (turn, index) for index in range(len(each))]
            ids = await desk.send(*each, bodies=bodies, queue_id=choose.randrange(2))
            expected |= dict(zip(bodies, ids, strict=True))
        elif action < 0.6:
            desk.clock.wall_ms += choose.randrange(-100_000, 100_000)
        elif action < 0.7 and expected:
            body = choose.choice(sorted(expected))
            try:
                await desk.delays.cancel(expected[body])
                cancelled.add(body)
            except DelayedSettled:
                pass
        elif action < 0.75:
            desk.write_snapshot()
        elif action < 0.8:
            desk = desk.restarted()
        elif action < 0.9:
            for _ in range(choose.randrange(3)):
                await desk.delays.delivery.step()
            desk = desk.killed(tmp_path / str(turn + 1))
        desk.clock.pass_ms(choose.randrange(8000))
        await desk.turns()
    # A clock that was set back repeatedly, and a start that knows no other one.
    desk.clock.pass_ms(20_000_000)
    await desk.turns()
    came = desk.bodies("T", 0) + desk.bodies("T", 1)
    assert sorted(came) == sorted(expected.keys() - cancelled)
    assert len(desk.delays) == 0
    desk.store.close()
    assert verify_store(desk.settings.store_path) == []
    assert len(expected) > 50


async def test_nobody_waits_for_the_disk_while_old_messages_are_delivered(tmp_path: Path) -> None:
    disk = ColdDisk()
    desk = AsideDesk(tmp_path / "store", disk=disk)
    await desk.send(*[{"DELAY": 3}] * 3)
    await desk.turns()
    disk.evict()
    desk.clock.pass_ms(10_000)
    await desk.turns()
    assert (disk.waited, disk.loaded > 0) == (0, True)
    assert desk.bodies("T", 0) == [b"0", b"1", b"2"]
    desk.store.close()


async def test_what_retention_deletes_while_it_is_read_is_lost_and_not_undeliverable(
    tmp_path: Path,
) -> None:
    disk = ColdDisk()
    full = {"disk_pressure_policy": "delete"}
    desk = AsideDesk(tmp_path / "store", disk=disk, commit_log_file_bytes=4096, **full)
    await desk.send({"DELAY": 3}, bodies=[bytes(3000)])
    await desk.send(*[{"DELAY": 18}] * 2, bodies=[bytes(1500)] * 2)
    await desk.turns()
    desk.sync()
    desk.clock.pass_ms(10_000)
    desk.store.tick(desk.clock.wall_ms)
    await eventually(lambda: not desk.store.point_pending)
    disk.evict()
    disk.moves.clear()
    async with asyncio.TaskGroup() as tasks:
        turns = tasks.create_task(desk.turns())
        await eventually(lambda: disk.loaded)
        disk.usage_percent = 88
        desk.store.clean(desk.clock.wall_ms)
        assert desk.store.log_min_offset > 0
        disk.moves.set()
        await turns
    await desk.turns()
    assert (desk.delays.delivery.counts.lost, desk.delays.delivery.counts.undeliverable) == (1, 0)
    desk.store.close()
