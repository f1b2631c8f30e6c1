"""Delayed messages with unusual names, sizes and clocks."""

from dataclasses import replace
from pathlib import Path

import pytest

from rockoon_broker.pending.pending_index import encode_snapshot
from rockoon_core.errors import BodyTooLarge, DelayedSettled, MessageNotFound
from rockoon_format.message_id import decode_offset_id, encode_offset_id
from rockoon_format.record import encode_host
from support.aside_desk import NOW_MS, AsideDesk


async def test_a_batch_with_a_body_too_large_is_refused_as_a_whole(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path, body_bytes_max=100)
    with pytest.raises(BodyTooLarge) as refused:
        await desk.send({"DELAY": 1}, {"DELAY": 2}, bodies=[b"fits", bytes(101)])
    assert "1" in str(refused.value)
    assert desk.store.appended_end == 0
    desk.store.close()


async def test_another_brokers_id_takes_nothing_back_though_the_offset_is_the_same(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path / "a", reserved_hours=10, commit_log_file_bytes=4096)
    ids = await desk.send({"TIMER_DELAY_SEC": 86_400}, {"TIMER_DELAY_SEC": 80_000})
    elsewhere = [
        encode_offset_id(encode_host("10.9.9.9", 10911), decode_offset_id(each).physical_offset)
        for each in ids
    ]
    with pytest.raises(MessageNotFound):
        await desk.delays.cancel(elsewhere[0])
    for _ in range(20):
        await desk.send({"TIMER_DELAY_MS": 1}, bodies=[bytes(500)])
    desk.clock.pass_ms(6 * 3_600_000)
    await desk.turns()
    assert desk.delays.delivery.counts.rolled == 2
    for each in elsewhere:
        with pytest.raises(MessageNotFound):
            await desk.delays.cancel(each)
    await desk.delays.cancel(ids[1])
    assert [waiting.message_id for waiting in desk.delays.next_due(9)] == ids[:1]
    desk.store.close()


async def test_a_start_with_a_clock_behind_that_is_set_right_brings_nothing_early(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path)
    await desk.send({"DELAY": 17}, {"TIMER_DELAY_SEC": 7200})
    await desk.turns()
    desk.clock.wall_ms -= 10 * 86_400_000
    again = desk.restarted()
    await again.turns()
    again.clock.pass_ms(60_000)
    again = again.restarted()
    again.clock.wall_ms += 10 * 86_400_000
    again.clock.pass_ms(3_600_000 - 60_001)
    await again.turns()
    assert again.bodies() == []
    again.clock.pass_ms(1)
    await again.turns()
    assert again.bodies() == [b"0"]
    again.clock.pass_ms(3_600_000)
    await again.turns()
    assert again.bodies() == [b"0", b"1"]
    again.store.close()


async def test_messages_stored_once_more_again_and_again_keep_their_names_through_kills(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path / "0", reserved_hours=10, commit_log_file_bytes=4096)
    ids = await desk.send({"TIMER_DELAY_SEC": 250_000}, {"TIMER_DELAY_SEC": 240_000})
    for turn in range(1, 4):
        for _ in range(10):
            await desk.send({"TIMER_DELAY_MS": 1}, bodies=[bytes(500)])
        desk.clock.pass_ms(6 * 3_600_000)
        await desk.turns()
        assert desk.delays.delivery.counts.rolled == 2
        if turn == 2:
            desk.write_snapshot()
        desk = desk.killed(tmp_path / str(turn), reserved_hours=10, commit_log_file_bytes=4096)
        assert [waiting.message_id for waiting in desk.delays.next_due(9)] == ids[::-1]
    await desk.delays.cancel(ids[1])
    with pytest.raises(DelayedSettled):
        await desk.delays.cancel(ids[1])
    desk.clock.pass_ms(250_000_000)
    await desk.turns()
    assert [body for body in desk.bodies() if len(body) < 9] == [b"0"]
    desk.store.close()


async def test_a_list_of_large_messages_is_cut_before_reading_them_keeps_everybody_waiting(
    tmp_path: Path,
) -> None:
    desk = AsideDesk(tmp_path, body_bytes_max=4 << 20, commit_log_file_bytes=16 << 20)
    for second in range(1, 21):
        await desk.send({"TIMER_DELAY_SEC": second}, bodies=[bytes(1_040_000)])
    listed = desk.delays.next_due(100)
    assert [each.deliver_at_ms for each in listed] == [
        NOW_MS + 1000 * second for second in range(1, 18)
    ]
    assert len(desk.delays) == 20
    desk.store.close()


async def test_a_snapshot_with_names_of_another_form_is_worked_out_anew(tmp_path: Path) -> None:
    desk = AsideDesk(tmp_path)
    await desk.send({"DELAY": 1}, {"DELAY": 1})
    captured = desk.aside.pending_index.capture().snapshot
    desk.store.close()
    spoiled = replace(captured, sections={**captured.sections, "delays/rolled": b"newer form"})
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "settledQueues").write_bytes(encode_snapshot(spoiled))
    again = AsideDesk(tmp_path, desk.clock)
    again.clock.pass_ms(1000)
    await again.turns()
    assert again.bodies() == [b"0", b"1"]
    again.store.close()
