"""A connection finds its cluster, follows the routes, and survives restarts of nameservers."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import aio

import rockoon
from rockoon.cluster import Cluster
from rockoon.errors import (
    BrokerUnavailable,
    Closed,
    InvalidArgument,
    NameserverUnavailable,
    NotReady,
    OffsetServiceUnavailable,
    RockoonError,
    TimedOut,
    TopicNotFound,
    WrongCluster,
)
from rockoon.net.addresses import parse_addresses
from rockoon.net.connection import CALL_SECONDS_MAX, UNLISTED_SECONDS, CallsInFlight, Moved
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_proto.v1.broker_pb2 import QueueStatusRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub
from support.eventually import eventually
from support.fake_broker import FakeBroker
from support.scripted_nameserver import ScriptedNameserver
from support.tcp_gate import TcpGate
from support.waiting import DEADLINE_SECONDS

NOBODY = "127.0.0.1:1"


async def until(cluster: Cluster, topic: str, queues: int) -> None:
    """Wait until the cached route of a topic has this number of queues."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            seen = cluster.routes_changed.count
            route = cluster.routes.topic(topic)
            if route is not None and len(route.queues) == queues:
                return
            await cluster.routes_changed.wait(seen)


def test_importing_rockoon_loads_neither_grpc_nor_numpy() -> None:
    """The command line starts with it."""
    code = (
        "import sys, rockoon; print([m for m in ('grpc', 'numpy', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_loaded() -> None:
    for name in rockoon.__all__:
        assert getattr(rockoon, name) is not None
    with pytest.raises(AttributeError):
        rockoon.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("Keeper", "OffsetBackend"),
        ("Kept", "OffsetSnapshot"),
        ("KeptOffsetStore", "CustomOffsetStore"),
        ("Place", "Position"),
    ],
)
def test_former_names_work_for_a_version_with_a_warning(former: str, name: str) -> None:
    with pytest.deprecated_call(match=name):
        assert getattr(rockoon, former) is getattr(rockoon, name)


def test_addresses_are_taken_as_text_or_sequence() -> None:
    assert parse_addresses("a:1, b:2;c:3") == ("a:1", "b:2", "c:3")
    assert parse_addresses(["[::1]:9876"]) == ("[::1]:9876",)
    for wrong in ("", " , ", "a", "a:", ":1", "a:b", "http://a:1", "a:0", "a:65536"):
        with pytest.raises(InvalidArgument):
            parse_addresses(wrong)


async def test_a_topic_is_known_and_followed(nameserver: ScriptedNameserver) -> None:
    nameserver.put_topic("orders", {"broker-a": 2})
    async with rockoon.connect(nameserver.address) as cluster:
        assert len((await cluster.route("orders")).queues) == 2
        nameserver.put_topic("orders", {"broker-a": 2, "broker-b": 1})
        await until(cluster, "orders", 3)


async def test_a_topic_made_after_it_was_asked_for_is_found(nameserver: ScriptedNameserver) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        with pytest.raises(TopicNotFound):
            await cluster.route("orders")
        revision = nameserver.put_topic("orders", {"broker-a": 1})
        assert len((await cluster.route("orders", min_revision=revision)).queues) == 1


async def test_a_topic_made_through_the_connection_is_found_whoever_is_asked(
    nameserver: ScriptedNameserver,
) -> None:
    # The nameserver that created the topic is gone; the other has not received the topic yet.
    async with (
        ScriptedNameserver() as behind,
        rockoon.connect([nameserver.address, behind.address]) as cluster,
    ):
        revision = nameserver.revision + 5
        cluster.record_change("orders", revision)
        await nameserver.stop()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(cluster.route("orders"))
            await eventually(lambda: ["orders"] in behind.asked)
            # A reply without a wait would arrive before this one.
            await cluster.call_nameserver("GetRoute", pb.GetRouteRequest(topics=["other"]))
            behind.revision = revision - 1
            behind.put_topic("orders", {"broker-a": 1})
        assert len(asking.result().queues) == 1


async def test_topics_put_to_use_one_after_the_other_are_all_followed(
    nameserver: ScriptedNameserver,
) -> None:
    names = [f"topic-{number}" for number in range(10)]
    for name in names:
        nameserver.put_topic(name, {"broker-a": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(cluster.route(name))
        for name in names:
            nameserver.put_topic(name, {"broker-a": 2})
        for name in names:
            await until(cluster, name, 2)


async def test_no_nameserver_is_told_on_entering() -> None:
    with pytest.raises(NameserverUnavailable, match=NOBODY):
        async with rockoon.connect(NOBODY, connect_seconds_max=0.3):
            pass


async def test_another_cluster_is_told_on_entering(nameserver: ScriptedNameserver) -> None:
    with pytest.raises(WrongCluster):
        async with rockoon.connect(nameserver.address, cluster="another"):
            pass


async def test_a_dead_nameserver_among_live_ones_does_not_matter(
    nameserver: ScriptedNameserver,
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    async with rockoon.connect([NOBODY, nameserver.address]) as cluster:
        for _ in range(3):
            assert (await cluster.route("orders")).name == "orders"


async def test_calls_that_hang_together_at_a_nameserver_all_go_on_to_the_next(
    nameserver: ScriptedNameserver,
) -> None:
    # Its host has vanished: calls are neither refused nor get a reply.
    async with TcpGate(nameserver.address) as gate, ScriptedNameserver() as second:
        for each in (nameserver, second):
            each.put_topic("orders", {"broker-a": 1})
        async with rockoon.connect([gate.address, second.address]) as cluster:
            gate.freeze()
            request = pb.GetRouteRequest(topics=["orders"])
            async with asyncio.TaskGroup() as tasks:
                for _ in range(5):
                    tasks.create_task(
                        cluster.call_nameserver(
                            "GetRoute", request, retry_seconds=0, timeout_seconds=2.0
                        )
                    )
            assert second.asked == [["orders"]] * 5
            # And no client returns to the one that hangs.
            await cluster.call_nameserver(
                "GetRoute", request, retry_seconds=0, timeout_seconds=10.0
            )
            assert second.asked == [["orders"]] * 6


async def test_a_failure_of_the_nameserver_that_answers_leads_nobody_to_the_one_that_hangs(
    nameserver: ScriptedNameserver,
) -> None:
    async with (
        TcpGate(nameserver.address) as gate,
        ScriptedNameserver() as second,
        rockoon.connect([gate.address, second.address]) as cluster,
    ):
        gate.freeze()
        request = pb.GetRouteRequest(topics=["orders"])

        async def ask(seconds: float) -> None:
            await cluster.call_nameserver(
                "GetRoute", request, retry_seconds=0, timeout_seconds=seconds
            )

        await ask(2.0)
        second.failure = NotReady(service="the nameserver", reason="a test")
        with pytest.raises((NotReady, TimedOut)):
            await ask(0.5)
        second.failure = None
        async with asyncio.timeout(DEADLINE_SECONDS):
            await ask(60.0)


async def test_a_route_is_known_in_time_while_a_nameserver_hangs(
    nameserver: ScriptedNameserver,
) -> None:
    async with TcpGate(nameserver.address) as gate, ScriptedNameserver() as second:
        second.put_topic("orders", {"broker-a": 1})
        async with rockoon.connect([gate.address, second.address]) as cluster:
            gate.freeze()
            async with asyncio.timeout(CALL_SECONDS_MAX):
                assert (await cluster.route("orders")).name == "orders"


async def test_the_watch_goes_on_at_another_nameserver() -> None:
    async with ScriptedNameserver() as first, ScriptedNameserver() as second:
        for nameserver in (first, second):
            nameserver.put_topic("orders", {"broker-a": 1})
        async with rockoon.connect([first.address, second.address]) as cluster:
            await cluster.route("orders")
            await first.stop()
            second.put_topic("orders", {"broker-a": 5})
            await until(cluster, "orders", 5)
            assert (await cluster.call_nameserver("GetRoute", pb.GetRouteRequest())).revision


async def test_cached_routes_serve_while_all_nameservers_are_away(
    nameserver: ScriptedNameserver,
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})
    async with rockoon.connect(nameserver.address) as cluster:
        await cluster.route("orders")
        await nameserver.stop()
        assert len((await cluster.route("orders")).queues) == 1
        with pytest.raises(NameserverUnavailable):
            await cluster.call_nameserver("GetRoute", pb.GetRouteRequest(), retry_seconds=0.1)
        await nameserver.start()
        nameserver.put_topic("orders", {"broker-a": 3})
        await until(cluster, "orders", 3)


async def test_a_call_outlasts_a_nameserver_that_comes_back(nameserver: ScriptedNameserver) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        await nameserver.stop()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(cluster.call_nameserver("GetRoute", pb.GetRouteRequest()))
            await asyncio.sleep(0)
            await nameserver.start()
            assert (await asking).cluster == "rockoon"


async def test_what_the_body_raises_comes_out_as_it_is(nameserver: ScriptedNameserver) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with rockoon.connect(nameserver.address):
            raise KeyError("mine")


async def test_a_broker_that_is_away_can_be_waited_for(nameserver: ScriptedNameserver) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        with pytest.raises(BrokerUnavailable):
            cluster.broker("broker-a")
        with pytest.raises(OffsetServiceUnavailable):
            await cluster.wait_offset_service(0.01)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(cluster.wait_broker("broker-a", 20))
            await asyncio.sleep(0)
            nameserver.put_node("broker-a", "127.0.0.1:2")
            assert await waiting is not None


async def test_an_offset_service_that_only_the_nameservers_lose_is_called_where_it_was(
    nameserver: ScriptedNameserver,
) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        nameserver.put_node("offset", NOBODY, pb.OFFSET_SERVICE)
        await cluster.wait_offset_service(20)
        seen = cluster.routes_changed.count
        nameserver.remove_node("offset")
        await cluster.routes_changed.wait(seen)
        # A restarting nameserver is not called while it cannot reply.
        gone_at = asyncio.get_running_loop().time()
        with pytest.raises(OffsetServiceUnavailable):
            cluster.offset_service()
        await cluster.wait_offset_service(UNLISTED_SECONDS)
        assert asyncio.get_running_loop().time() - gone_at >= UNLISTED_SECONDS
        assert cluster.offset_service() is not None
        # And the client pauses, and does not ask without end.
        paused_at = asyncio.get_running_loop().time()
        await cluster.pause_for_offset_service(0.05)
        assert asyncio.get_running_loop().time() - paused_at >= 0.05
        nameserver.put_node("offset", nameserver.address, pb.OFFSET_SERVICE)
        await cluster.wait_offset_service(20)
        seen = cluster.routes_changed.count
        nameserver.remove_node("offset")
        await cluster.routes_changed.wait(seen)
        with pytest.raises(OffsetServiceUnavailable):
            cluster.offset_service()


async def test_after_leaving_nothing_can_be_started(nameserver: ScriptedNameserver) -> None:
    async with rockoon.connect(nameserver.address) as cluster:
        pass
    with pytest.raises(Closed):
        cluster.producer()


async def test_who_is_cancelled_while_leaving_does_not_wait_for_the_rest(
    nameserver: ScriptedNameserver,
) -> None:
    nameserver.put_topic("orders", {"broker-a": 1})  # which nobody serves
    leaving = asyncio.Event()
    receipts = []

    async def program() -> None:
        async with rockoon.connect(nameserver.address) as cluster:
            receipts.extend(cluster.producer().send("orders", b"one") for _ in range(3))
            leaving.set()

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(program())
        await leaving.wait()
        await asyncio.sleep(0)
        running.cancel()
    for receipt in receipts:
        assert receipt.done
        with pytest.raises(Closed):
            await receipt


async def test_what_cannot_be_closed_is_told_when_the_rest_is_closed(
    nameserver: ScriptedNameserver,
) -> None:
    class Broken:
        async def close(self) -> None:
            raise OSError("no space")

    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(OSError, match="no space"):  # noqa: PT012
            async with rockoon.connect(nameserver.address) as cluster:
                producer = cluster.producer()
                cluster.adopt(Broken())
    with pytest.raises(Closed):
        producer.send("orders", b"late")


class Quitter(ScriptedNameserver):
    """A nameserver that ends every watch without an error after its updates."""

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, _: Any
    ) -> AsyncIterator[pb.RouteUpdate]:
        async for update in super().WatchRoutes(request, _):
            yield update
            return


async def test_a_nameserver_that_ends_every_watch_is_left_for_the_next() -> None:
    async with Quitter() as quitter, ScriptedNameserver() as other:
        for nameserver in (quitter, other):
            nameserver.put_topic("orders", {"broker-a": 4})
        async with rockoon.connect([quitter.address, other.address]) as cluster:
            await cluster.route("orders")
            other.put_topic("orders", {"broker-a": 8})
            await until(cluster, "orders", 8)


@pytest.mark.parametrize(
    ("kind", "name", "unavailable", "details"),
    [
        (pb.BROKER, "broker-a", BrokerUnavailable, {"broker": "broker-a"}),
        (pb.OFFSET_SERVICE, "offset", OffsetServiceUnavailable, {}),
    ],
    ids=["broker", "offset service"],
)
async def test_a_call_that_hangs_ends_when_another_process_stands_there(
    nameserver: ScriptedNameserver,
    kind: pb.NodeKind,
    name: str,
    unavailable: type[RockoonError],
    details: dict[str, str],
) -> None:
    async with FakeBroker() as hanging:
        hanging.answering.clear()
        nameserver.put_node(name, hanging.address, kind)
        async with (
            rockoon.connect(nameserver.address) as cluster,
            aio.insecure_channel(hanging.address) as channel,
            asyncio.timeout(DEADLINE_SECONDS),
            asyncio.TaskGroup() as tasks,
        ):

            async def ask() -> None:
                with pytest.raises(unavailable):
                    await cluster.call(
                        BrokerStub(channel).QueueStatus,
                        QueueStatusRequest(),
                        unavailable=unavailable,
                        timeout_seconds=None,
                        **details,
                    )

            asked = tasks.create_task(ask())
            await eventually(lambda: hanging.status_calls)
            nameserver.remove_node(name)
            await eventually(lambda: not cluster.routes.nodes)
            assert not asked.done(), "who is not listed for a while may answer still"
            nameserver.put_node(name, NOBODY, kind)
        hanging.answering.set()


async def test_a_call_that_is_not_to_be_made_twice_is_heard_a_while_longer() -> None:
    calls, loop = CallsInFlight(), asyncio.get_running_loop()
    address = "one:1"
    answered, silent = loop.create_future(), loop.create_future()

    async def gives_up() -> None:
        with pytest.raises(Moved):
            await calls.answer(silent, lambda: address, 0.01)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(calls.answer(answered, lambda: address, DEADLINE_SECONDS))
        tasks.create_task(gives_up())
        await asyncio.sleep(0)
        address = "other:1"
        calls.cancel_moved()
        assert not answered.cancelled()
        answered.set_result("stored")
        assert await first == "stored"


async def test_who_is_cancelled_in_a_call_that_moved_is_cancelled() -> None:
    calls = CallsInFlight()
    address = "one:1"
    call = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(calls.answer(call, lambda: address))
        await asyncio.sleep(0)
        address = "other:1"
        calls.cancel_moved()
        task.cancel()
    assert task.cancelled()
