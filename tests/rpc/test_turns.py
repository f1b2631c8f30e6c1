"""The line of connections with more input than one turn."""

import asyncio

from rockoon_rpc.turns import ITERATION_COST_MAX, Turns


class Busy:
    """A connection with a number of turns of input; notes each turn."""

    def __init__(
        self,
        name: str,
        address: str,
        turns: int,
        log: list[str],
        internal: bool = False,
        cost: int = 1,
    ) -> None:
        self.name, self.address = name, address
        self.line = Turns.of_loop().services if internal else Turns.of_loop().clients
        self.left, self.log, self.cost = turns, log, cost
        self.ended = asyncio.Event()

    def next_turn(self) -> None:
        self.log.append(self.name)
        self.left -= 1
        self.line.cost += self.cost
        if self.left:
            self.line.join(self)
        else:
            self.ended.set()


async def served(connections: list[Busy], log: list[str]) -> list[str]:
    for each in connections:
        each.line.join(each)
    for each in connections:
        await each.ended.wait()
    return log


async def test_addresses_share_turns_however_many_connections_they_have() -> None:
    log: list[str] = []
    hostile = [Busy(f"h{number}", "10.0.0.1", 5, log) for number in range(20)]
    honest = Busy("honest", "10.0.0.2", 3, log)
    await served([*hostile, honest], log)
    assert [at for at, name in enumerate(log) if name == "honest"] == [1, 3, 5]


async def test_connections_of_one_address_have_turns_in_rotation() -> None:
    log: list[str] = []
    await served([Busy("a", "10.0.0.1", 2, log), Busy("b", "10.0.0.1", 2, log)], log)
    assert log == ["a", "b", "a", "b"]


async def test_a_connection_of_the_cluster_waits_for_no_client() -> None:
    log: list[str] = []
    hostile = [Busy(f"h{number}", f"10.0.1.{number}", 5, log) for number in range(20)]
    follower = Busy("follower", "10.0.0.9", 3, log, internal=True)
    await served([*hostile, follower], log)
    assert [at for at, name in enumerate(log) if name == "follower"] == [0, 2, 4]


async def test_connections_with_little_input_share_the_cost_of_an_iteration() -> None:
    log: list[str] = []
    cost = ITERATION_COST_MAX // 4
    many = [Busy(f"{number}", f"10.0.1.{number}", 1, log, cost=cost) for number in range(10)]
    for each in many:
        each.line.join(each)
    for done in (4, 8, 10):
        await asyncio.sleep(0)
        assert len(log) == done


async def test_a_line_whose_cost_is_low_asks_for_no_callback() -> None:
    line = Turns.of_loop().clients
    assert line.notice_at < ITERATION_COST_MAX
    line.cost = line.notice_at - 1
    await asyncio.sleep(0)
    assert line.cost == line.notice_at - 1
    line.count_again()
    await asyncio.sleep(0)
    assert line.cost == 0


async def test_one_turn_of_each_line_in_an_iteration_of_the_loop() -> None:
    log: list[str] = []
    Turns.of_loop().clients.join(Busy("a", "10.0.0.1", 3, log))
    for done in range(1, 4):
        await asyncio.sleep(0)
        assert len(log) == done
