"""A service in the routes: registered, renewed, refused, removed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rockoon_core.errors import (
    Internal,
    InvalidArgument,
    NodeNameTaken,
    NotReady,
    RockoonError,
    WrongCluster,
)
from rockoon_node.nameservers import Nameservers
from rockoon_node.registration import NodeLease, Registration
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_runtime.process import ExitStatus, Stop
from support.broker_routes import BrokerRoutes
from support.eventually import eventually
from support.waiting import DEADLINE_SECONDS

TellsOf = Callable[..., Nameservers]

NOBODY = "127.0.0.1:1"
NODE = pb.Node(kind=pb.BROKER, name="broker-a", address="here:1", store_id="ours")
STRANGER = pb.Node(kind=pb.BROKER, name="broker-a", address="there:1", store_id="theirs")

OF_ANOTHER_CLUSTER = WrongCluster(cluster="other", wanted="rockoon")
NOT_VALID = InvalidArgument(reason="no such kind")
NAME_TAKEN = NodeNameTaken(name="broker-a", address="there:1")


@asynccontextmanager
async def registering(
    nameservers: Nameservers, lease: NodeLease | None = None
) -> AsyncIterator[tuple[Registration, Stop]]:
    """A service that stays registered until the block ends; it does not unregister by itself."""
    registration, stop = Registration(nameservers, NODE, lease or NodeLease("the broker")), Stop()
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(registration.run(stop))
        yield registration, stop
        running.cancel()


async def test_a_service_is_in_the_routes_until_it_says_goodbye(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with registering(told_of(nameserver.address)) as (registration, stop):
        await registration.in_routes.wait()
        assert list(nameserver.nodes.values()) == [NODE]
        await eventually(lambda: nameserver.registrations >= 3)
    await registration.leave()
    assert nameserver.nodes == {}
    assert not stop.requested


async def test_a_service_that_has_left_stays_out_while_it_finishes_its_work(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    stop = Stop()
    registration = Registration(told_of(nameserver.address), NODE, NodeLease("the broker"))
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(registration.run(stop))
        await registration.in_routes.wait()
        await registration.leave()
        # `run` ends by itself, where it would have renewed the entry.
    assert nameserver.nodes == {}


async def test_a_nameserver_that_forgot_a_service_is_told_again(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with registering(told_of(nameserver.address)) as (registration, _):
        await registration.in_routes.wait()
        await nameserver.stop()
        nameserver.nodes.clear()
        await nameserver.start()
        await eventually(lambda: bool(nameserver.nodes))


@pytest.mark.parametrize("reason", [OF_ANOTHER_CLUSTER, NOT_VALID, NAME_TAKEN], ids=repr)
async def test_a_service_that_is_refused_at_first_ends_and_says_no_goodbye(
    nameserver: BrokerRoutes,
    told_of: TellsOf,
    caplog: pytest.LogCaptureFixture,
    reason: RockoonError,
) -> None:
    caplog.set_level("INFO")
    nameserver.nodes[pb.BROKER, "broker-a"] = STRANGER
    nameserver.refuse_register = reason
    async with registering(told_of(nameserver.address)) as (registration, stop):
        assert await stop.wait() == str(reason)
        assert registration.attempted.is_set()
        assert not registration.in_routes.is_set()
    assert stop.fatal is not None
    assert stop.fatal.status is ExitStatus.CONFIGURATION
    await registration.leave()
    # The nameserver would have refused the end of another node.
    assert "could not unregister" not in caplog.text
    assert nameserver.nodes == {(pb.BROKER, "broker-a"): STRANGER}


async def test_a_service_that_lost_its_name_meanwhile_ends(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with registering(told_of(nameserver.address)) as (registration, stop):
        await registration.in_routes.wait()
        nameserver.refuse_register = NAME_TAKEN
        assert "at there:1" in await stop.wait()


@pytest.mark.parametrize("reason", [OF_ANOTHER_CLUSTER, NOT_VALID], ids=repr)
async def test_a_nameserver_set_up_wrongly_meanwhile_ends_no_service(
    nameserver: BrokerRoutes,
    told_of: TellsOf,
    caplog: pytest.LogCaptureFixture,
    reason: RockoonError,
) -> None:
    async with registering(told_of(nameserver.address)) as (registration, stop):
        await registration.in_routes.wait()
        nameserver.refuse_register = reason
        await eventually(lambda: f"not registered: {reason}" in caplog.text)
        nameserver.refuse_register, before = None, nameserver.registrations
        await eventually(lambda: nameserver.registrations > before)
        assert not stop.requested


async def test_a_nameserver_with_a_bug_is_passed_over(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    nameserver.refuse_register = Internal(service="nameserver", reason="a bug")
    async with (
        BrokerRoutes() as other,
        registering(told_of(nameserver.address, other.address)) as (registration, _),
    ):
        await registration.in_routes.wait()
        assert list(other.nodes.values()) == [NODE]


async def test_a_service_that_nobody_answers_knows_that_everybody_was_asked(
    told_of: TellsOf,
) -> None:
    async with registering(told_of(NOBODY, "127.0.0.1:2")) as (registration, stop):
        await registration.attempted.wait()
        assert not registration.in_routes.is_set()
        assert not stop.requested


class ForgetsToAnswer(BrokerRoutes):
    """Accepts entries, and fails before its reply."""

    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Any) -> Any:
        await super().RegisterNode(request, context)
        raise Internal(service="nameserver", reason="it fell over")


async def test_a_service_says_goodbye_also_when_nobody_told_it_that_it_is_in_the_routes(
    told_of: TellsOf,
) -> None:
    async with ForgetsToAnswer() as nameserver:
        async with registering(told_of(nameserver.address)) as (registration, _):
            await registration.attempted.wait()
            assert list(nameserver.nodes.values()) == [NODE]
        await registration.leave()
        assert nameserver.nodes == {}


async def test_a_service_that_never_asked_has_nothing_to_take_out(
    told_of: TellsOf, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its end would wait for nameservers that are away."""
    caplog.set_level("INFO")
    await Registration(told_of(NOBODY), NODE, NodeLease("the broker")).leave()
    assert caplog.text == ""


class Clock:
    """A clock that changes only when a test advances it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


async def test_a_service_answers_in_its_name_while_it_hears_from_nameservers_and_no_longer(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    clock = Clock()
    lease = NodeLease("the broker", clock)
    nameserver.lease_seconds = 10.0
    async with registering(told_of(nameserver.address), lease) as (registration, stop):
        await registration.in_routes.wait()
        lease.check()
        nameserver.registering.clear()
        # Stopped for longer than the lease. The pending renewal is older than that.
        clock.seconds += 10
        with pytest.raises(NotReady, match="its lease is over"):
            lease.check()
        nameserver.registering.set()
        await eventually(lambda: not lease.refusal)
        nameserver.refuse_register = NAME_TAKEN
        await stop.wait()
        with pytest.raises(NotReady, match="at there:1"):
            lease.check()


async def test_a_service_whose_name_was_taken_says_that_it_answers_no_more(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with registering(told_of(nameserver.address)) as (registration, stop):
        await registration.in_routes.wait()
        nameserver.refuse_register = NAME_TAKEN
        await stop.wait()
    await registration.leave()
    assert nameserver.left[-1].lease_id == 7


async def test_a_service_that_took_its_name_from_a_copy_of_its_store_waits_for_that_ones_end(
    nameserver: BrokerRoutes, told_of: TellsOf, caplog: pytest.LogCaptureFixture
) -> None:
    lease = NodeLease("the broker")
    nameserver.predecessor_seconds = 8.0
    async with registering(told_of(nameserver.address), lease) as (registration, _):
        await eventually(lambda: nameserver.registrations >= 2)
        assert not registration.in_routes.is_set()
        with pytest.raises(
            NotReady, match="a copy of its store has not ended, and may answer for 8 s"
        ):
            lease.check()
        nameserver.predecessor_seconds = 0.0
        await registration.in_routes.wait()
        lease.check()
    assert caplog.text.count("has not ended") == 1
