"""Calls to brokers whose channels close in the meantime, of a leader that does not lead any
more."""

import asyncio

from rockoon_core.errors import BrokerUnavailable, RockoonError
from rockoon_offset.brokers import Brokers
from rockoon_offset.route_table import OffsetRoutes


async def test_a_question_whose_call_is_cancelled_is_one_that_the_broker_did_not_answer() -> None:
    brokers = Brokers(OffsetRoutes(), "rockoon", 5.0)

    async def ask(broker: str, part: list[str]) -> dict[str, int | RockoonError]:
        if broker == "broker-a":
            raise asyncio.CancelledError
        return dict.fromkeys(part, 1)

    answers = await brokers._ask_each(["a1", "a2", "b1"], lambda item: f"broker-{item[0]}", ask)
    assert answers.pop("b1") == 1
    assert {type(each) for each in answers.values()} == {BrokerUnavailable}
    assert answers.keys() == {"a1", "a2"}
    await brokers.close()
