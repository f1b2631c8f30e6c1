"""Which messages the gateway renews, gives back, and lets go; times are given."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rockoon.errors import OffsetServiceUnavailable
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.consuming.renewals import (
    FAILURES_MAX,
    HELD_SECONDS_MAX,
    RENEW_SECONDS_LEFT,
    RENEWED_SECONDS,
    Renewals,
    Renewer,
)
from support.waiting import DEADLINE_SECONDS

QUEUE = MessageQueue("orders", "broker-a", 0)
ONE, TWO = ReceiptHandle(QUEUE, 1, 0), ReceiptHandle(QUEUE, 1, 1)
HALF = RENEWED_SECONDS - RENEW_SECONDS_LEFT


def held(*receipts: ReceiptHandle, client_id: str = "c") -> Renewals:
    table = Renewals()
    table.add("g", receipts, client_id, 0.0)
    return table


def test_nothing_is_due_before_half_of_its_time_is_over() -> None:
    table = held(ONE)
    assert table.due(HALF - 1) == []
    assert table.due(HALF) == [("g", ONE)]


def test_what_was_renewed_is_due_again_when_half_of_the_new_time_is_over() -> None:
    table = held(ONE)
    table.renewed(("g", ONE), HALF, is_valid=True)
    assert table.due(2 * HALF - 1) == []
    assert table.due(2 * HALF) == [("g", ONE)]


def test_what_the_client_has_settled_is_renewed_no_more() -> None:
    table = held(ONE, TWO)
    table.forget("g", [ONE])
    table.forget("another", [TWO])
    assert table.due(HALF) == [("g", TWO)]


def test_a_renewal_that_comes_back_after_the_acknowledgement_changes_nothing() -> None:
    table = held(ONE)
    table.forget("g", [ONE])
    table.renewed(("g", ONE), HALF, is_valid=True)
    table.failed(("g", ONE))
    assert len(table) == 0


def test_what_is_another_receivers_now_is_renewed_no_more() -> None:
    table = held(ONE)
    table.renewed(("g", ONE), HALF, is_valid=False)
    assert len(table) == 0


def test_after_three_failures_a_message_is_let_go() -> None:
    table = held(ONE)
    for _ in range(FAILURES_MAX - 1):
        table.failed(("g", ONE))
    assert len(table) == 1
    table.failed(("g", ONE))
    assert len(table) == 0


def test_failures_count_in_a_row() -> None:
    table = held(ONE)
    for _ in range(FAILURES_MAX * 2):
        table.failed(("g", ONE))
        table.renewed(("g", ONE), HALF, is_valid=True)
    assert len(table) == 1


def test_nobody_holds_a_message_for_longer_than_three_hours() -> None:
    table = held(ONE)
    table.renewed(("g", ONE), HELD_SECONDS_MAX - 1, is_valid=True)
    assert table.due(HELD_SECONDS_MAX - 1 + HALF) == []
    assert len(table) == 0


def test_what_the_dead_have_left_is_told_once() -> None:
    table = held(ONE, client_id="dead")
    table.add("g", [TWO], "alive", 0.0)
    assert table.left(lambda client: client == "dead") == [("g", ONE)]
    assert table.left(lambda client: client == "dead") == []
    assert table.due(HALF) == [("g", TWO)]


Change = tuple[str, tuple[ReceiptHandle, ...], int, bool, bool]


class NotingEngine:
    """Answers every change, and keeps a record of them."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.is_away = False

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        self.changes.put_nowait((group, tuple(receipts), visible_after_ms, counted, extend))
        if self.is_away:
            raise OffsetServiceUnavailable
        return list(receipts)


@asynccontextmanager
async def running(engine: NotingEngine, gone: set[str]) -> AsyncIterator[Renewer]:
    renewer = Renewer(engine, gone.__contains__)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(renewer.run())
        yield renewer
        task.cancel()


async def test_what_no_client_has_seen_is_visible_at_once_and_not_counted() -> None:
    engine = NotingEngine()
    async with asyncio.timeout(DEADLINE_SECONDS), running(engine, set()) as renewer:
        renewer.add("g", [ONE, TWO], "c")
        renewer.give_back("g", [TWO])
        assert await engine.changes.get() == ("g", (TWO,), 0, False, False)
        assert len(renewer) == 1


async def test_a_client_that_says_goodbye_leaves_its_messages_at_once() -> None:
    engine = NotingEngine()
    async with asyncio.timeout(DEADLINE_SECONDS), running(engine, set()) as renewer:
        renewer.add("g", [ONE], "c")
        renewer.add("other", [TWO], "c")
        renewer.add("g", [TWO], "another")
        renewer.release("c")
        changes = {await engine.changes.get(), await engine.changes.get()}
        assert changes == {("g", (ONE,), 0, True, False), ("other", (TWO,), 0, True, False)}
        assert len(renewer) == 1


async def test_a_silent_client_loses_its_messages_at_the_next_look() -> None:
    engine = NotingEngine()
    gone: set[str] = set()
    renewer = Renewer(engine, gone.__contains__)
    renewer.add("g", [ONE], "c")
    await renewer.scan()
    assert engine.changes.empty()
    gone.add("c")
    await renewer.scan()
    assert engine.changes.get_nowait() == ("g", (ONE,), 0, True, False)


async def test_an_offset_service_that_is_away_ends_nothing() -> None:
    engine = NotingEngine()
    engine.is_away = True
    async with asyncio.timeout(DEADLINE_SECONDS), running(engine, set()) as renewer:
        renewer.give_back("g", [ONE])
        assert await engine.changes.get() == ("g", (ONE,), 0, False, False)
        engine.is_away = False
        renewer.give_back("g", [TWO])
        assert await engine.changes.get() == ("g", (TWO,), 0, False, False)
