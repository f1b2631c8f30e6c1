"""RocketMQ's Python client, as it was released, on a gateway: the quick half of `make conformance`.

It comes from its registry, so a machine without one skips this and says so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.compare.programs import NotHere
from conformance import documents
from conformance.languages import Prepared, python
from conformance.rockoon_gateway_cluster import RockoonGateway
from conformance.running import OK, play
from conformance.scenarios import SCENARIOS, Scenario
from conformance.target import Target
from rockoon.local.directory import PortBlock

pytestmark = pytest.mark.soak

QUICK = (
    "send, receive, acknowledge",
    "FIFO: order of a message group",
    "delay",
    "transaction: commit, rollback",
    "transaction: check of an orphan",
    "unacknowledged messages are redelivered",
    "dead letters",
    "push: failed message is redelivered",
    "push: FIFO order",
    "namespaces",
    "namespaces: push consumer",
    "namespaces: recall",
    "namespaces: check of an orphan",
    "namespaces: dead letters",
    "restart of the server",
    "push: restart of the server",
)


@pytest.fixture(scope="module")
def client() -> Prepared:
    try:
        return python()
    except NotHere as reason:
        pytest.skip(f"RocketMQ's Python client cannot be had: {reason}")


@pytest.fixture(scope="module")
def target(client: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    ports = PortBlock()
    target = RockoonGateway(tmp_path_factory.mktemp("gateway"), ports)
    try:
        target.start()
        yield target
    finally:
        target.stop()
        ports.close()


@pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if each.name in QUICK], ids=lambda each: each.name
)
def test_the_python_client_plays(
    target: Target, client: Prepared, scenario: Scenario, tmp_path: Path
) -> None:
    outcome = play(target, scenario, client, tmp_path)
    assert outcome.kind == OK, outcome.said


def test_the_documents_program_does_what_it_says(
    target: Target, client: Prepared, tmp_path: Path
) -> None:
    documents.prepare(target)
    outcome = documents.play(target, client, tmp_path)
    assert outcome.kind == OK, outcome.said


def test_every_scenario_that_is_named_is_there() -> None:
    assert set(QUICK) <= {each.name for each in SCENARIOS}
