"""`make expansion`, a few cells of it: that it measures, and that rule exact misses nothing."""

import pytest

from rockoon.offsets.start import Start
from rockoon_core.message_queue import MessageQueue
from tools.expansion import matrix, report
from tools.expansion.cell import Cell, Difference, GroupIs, Growth, NewQueueRule, Policy

QUEUE = MessageQueue("grows", "broker-a", 0)


@pytest.fixture
def cell() -> Cell:
    """A group that has to read from 2 on a queue of five messages."""
    cell = Cell(0, GroupIs.STOPPED, Growth.QUEUES, Policy.LAST, NewQueueRule.EXACT)
    cell.new_queues = [QUEUE]
    cell.ends[QUEUE] = 5
    cell.wanted[QUEUE] = 2
    return cell


def handled(cell: Cell, *offsets: int) -> Difference:
    cell.handled.update((QUEUE, offset) for offset in offsets)
    return cell.difference([QUEUE])


def test_a_message_that_never_came_counts_as_skipped(cell: Cell) -> None:
    assert handled(cell, 2, 4) == (1, 0)
    (failure,) = matrix.failures([cell])
    assert "1 skipped and 0 replayed on new queues" in failure


def test_a_message_that_nobody_asked_for_or_that_came_twice_counts_as_replayed(cell: Cell) -> None:
    assert handled(cell, 1, 2, 3, 3, 4) == (0, 2)
    assert len(matrix.failures([cell])) == 1


def test_rule_classic_may_fail(cell: Cell) -> None:
    cell.rule = NewQueueRule.CLASSIC
    assert handled(cell) == (3, 0)
    assert matrix.failures([cell]) == []


async def test_a_topic_that_grows_costs_groups_under_rule_exact_nothing() -> None:
    cells = [
        cell
        for cell in matrix.all_cells()
        if cell.policy is Policy.LAST
        and (cell.growth is Growth.BROKER or cell.rule is NewQueueRule.EXACT)
    ]
    await matrix.run(cells)
    assert matrix.failures(cells) == []
    for cell in cells:
        starts: list[Start] = [cell.starts[queue] for queue in cell.new_queues]
        if cell.rule is NewQueueRule.EXACT:
            is_new = cell.group_is is not GroupIs.NEW
            expected = ("NEW_QUEUE", 0) if is_new else ("LAST", 15)
            assert {(start.reason, start.offset) for start in starts} == {expected}
    skipped = sum(
        cell.difference(cell.new_queues).skipped
        for cell in cells
        if cell.rule is NewQueueRule.CLASSIC
    )
    assert skipped, "rule classic skips what went to disk meanwhile, or this measures nothing"
    assert "| stopped | queues added | LAST | 0 | NEW_QUEUE | 0 | 0 |" in report.page(cells)
