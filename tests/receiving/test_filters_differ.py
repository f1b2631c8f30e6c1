"""Receivers of one group with different filters lose messages: a warning and the group show it."""

import pytest
from receiving.orders import Orders, receive

LOGGER = "rockoon.receiving.receive_queue"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == LOGGER]


async def test_receivers_with_other_filters_are_warned_and_shown(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    await orders.send([1], tags="TagA")
    await orders.send([2], tags="TagB")
    async with (
        orders.consumer("TagA", receiver="first") as first,
        orders.consumer("TagB || TagC", receiver="second") as second,
    ):
        await receive(first, 1)
        assert warnings(caplog) == []
        await second.receive(wait=0)
        (warning,) = warnings(caplog)
        assert orders.group in warning
        assert orders.topic in warning
        assert "'TagA', 'TagB || TagC'" in warning

        readers = await orders.cluster.admin.readers(orders.group)
        assert [(each.receiver, each.filter.expression) for each in readers.receivers] == [
            ("first", "TagA"),
            ("second", "TagB || TagC"),
        ]
        assert len(readers.filter_conflicts) == 1
        lag = await orders.cluster.admin.lag(orders.group, orders.topic)
        assert {(each.filter, each.filters_differ) for each in lag.queues} == {
            ("TagA; TagB || TagC", True)
        }
        described = await orders.cluster.admin.describe_group(orders.group)
        assert list(described.filter_conflicts) == list(readers.filter_conflicts)


async def test_receivers_with_one_filter_are_not_warned(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    await orders.send([1], tags="TagA")
    async with (
        orders.consumer("TagA || TagB") as first,
        orders.consumer("TagB||TagA", receiver="second") as second,
    ):
        await receive(first, 1, visible_after=60)
        await second.receive(wait=0)
        readers = await orders.cluster.admin.readers(orders.group)
        assert {each.filter.expression for each in readers.receivers} == {"TagA || TagB"}
        assert warnings(caplog) == list(readers.filter_conflicts) == []
