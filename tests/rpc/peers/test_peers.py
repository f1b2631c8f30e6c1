"""gRPC's Python client against Rockoon's server, and Rockoon's channel against both servers, in all
cases. `make grpc-peers` does the same with clients of other languages.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from rockoon.local.authority import Authority
from rpc.peers.cases import CASES, FAST_PINGS, OK, Case, Client, play_known, running
from rpc.peers.languages import environment, python, rockoon
from rpc.peers.targets import Target, start_grpcio, start_rockoon, within

PAIRS = {
    "grpcio's client, Rockoon's server": ("Python", "Rockoon", start_rockoon),
    "Rockoon's channel, Rockoon's server": ("Rockoon", "Rockoon", start_rockoon),
    "Rockoon's channel, grpcio's server": ("Rockoon", "grpcio", start_grpcio),
}
PROGRAMS = {"Python": python, "Rockoon": rockoon}


class Pair(NamedTuple):
    """A client program and servers."""

    name: str
    client: Client
    target: Target


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PAIRS)
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    name, server, start = PAIRS[request.param]
    folder = tmp_path_factory.mktemp("peers")
    command = PROGRAMS[name]().command
    async with (
        within(server, start, Authority(folder)) as target,
        running(command, environment(), folder / "client.log") as client,
    ):
        yield Pair(name, client, target)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_case_succeeds(case: Case, pair: Pair) -> None:
    if pair.name == "Rockoon" and case.order == "keepalive":
        pytest.skip("the interval of its pings is 10 s: `make grpc-peers` plays it")
    said = await play_known(pair.client, case, pair.target, pair.name, FAST_PINGS)
    assert said in ("not offered", "known fault") or said.startswith(OK), said
