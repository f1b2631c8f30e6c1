"""Clients that gateways report: their messages, and their lite topics."""

from typing import Any

import pytest
from grpc import aio
from offset.cluster import GROUP, Cluster
from offset.receiver import HOUR_MS, Receiver, offsets_of

from rockoon_offset.in_flight.clients import (
    GROUP_CLIENTS_MAX,
    Answer,
    Gateway,
    KnownClients,
    LiteChange,
    LiteSet,
    ReportedClient,
)
from rockoon_offset.in_flight.receivers import Heard
from rockoon_offset.in_flight.window import ClientName
from rockoon_proto.v1 import in_flight_pb2 as pb

LEASE_MS = 60_000
START_MS = 1_000_000
HERE, THERE = Gateway("here", "1"), Gateway("there", "2")


def named(client_id: str, group: str = GROUP) -> pb.ClientName:
    return pb.ClientName(group=group, client_id=client_id)


async def report(receiver: Receiver, *clients: pb.ClientReport, **more: Any) -> Any:
    request = pb.ReportClientsRequest(gateway="g", gateway_id="1", clients=clients, **more)
    return await receiver.stub.ReportClients(request)


async def visible_at(receiver: Receiver) -> int:
    return (await receiver.listed()).next_visible_at_ms


async def test_receivers_share_a_wish_and_each_holds_its_own(receiver: Receiver) -> None:
    shares = [pb.Share(receiver=name, messages_max=3) for name in ("a", "b", "c")]
    got = await receiver.acquire(shares=shares, messages_max=32, held_ms_max=HOUR_MS)
    assert got == [(0, 1, [0, 1, 2]), (0, 1, [3, 4, 5]), (0, 1, [6, 7, 8])]
    assert [each.share for each in receiver.granted.acquired] == [0, 1, 2]
    await report(receiver, pb.ClientReport(name=named("b"), goodbye=True))
    assert await receiver.acquire(messages_max=4) == [(0, 2, [3, 4, 5]), (0, 1, [9])]
    listed = await receiver.stub.ListClients(pb.ListClientsRequest(group=GROUP))
    assert [(each.receiver, each.messages, each.attempt_max) for each in listed.holdings] == [
        ("a", 3, 1),
        ("c", 3, 1),
        ("r", 4, 2),
    ]


async def test_a_report_extends_what_its_client_holds_also_after_a_restart(
    cluster: Cluster, receiver: Receiver
) -> None:
    cluster.more_settings = {"client_lease_seconds": 600.0}
    await cluster.restart_service()
    await receiver.acquire(messages_max=2, held_ms_max=2 * HOUR_MS)
    at_ms = await visible_at(receiver)
    reply = await report(receiver, pb.ClientReport(name=named("r"), heard_ms_ago=0))
    assert (reply.lease_ms, await visible_at(receiver)) == (600_000, at_ms)
    cluster.more_settings = {"client_lease_seconds": 3600.0}
    await cluster.restart_service()
    # The service was away, and the client may have called gateways all the time.
    after_ms = await visible_at(receiver)
    assert at_ms + 2_900_000 < after_ms <= at_ms + 3_100_000
    again = await report(receiver, pb.ClientReport(name=named("r"), heard_ms_ago=1_000))
    assert again.service_id != reply.service_id
    for stranger in (named("s"), pb.ClientName(group=GROUP, client_id="r", key_id="k")):
        await report(receiver, pb.ClientReport(name=stranger, goodbye=True))
    assert await visible_at(receiver) == after_ms
    await report(receiver, pb.ClientReport(name=named("r"), goodbye=True))
    assert (await receiver.listed()).visible_again == 2


async def test_what_a_lost_call_acquired_is_released_also_after_a_restart(
    cluster: Cluster, receiver: Receiver
) -> None:
    async def acquire(call_id: str, *lost: pb.LostCall, **wanted: Any) -> list[Any]:
        wish = pb.Wanted(
            group=GROUP,
            queues=[receiver.reach()],
            visible_after_ms=HOUR_MS,
            policy=receiver.policy,
            **{"receiver": "r", "messages_max": 2, "held_ms_max": 2 * HOUR_MS, **wanted},
        )
        request = pb.AcquireRequest(wanted=[wish], call_id=call_id, lost=lost)
        (granted,) = (await receiver.stub.Acquire(request)).granted
        return [
            (each.attempt, offsets_of(each.first_offset, each.offsets)) for each in granted.acquired
        ]

    assert await acquire("one") == [(1, [0, 1])]
    assert await acquire("two") == [(1, [2, 3])]
    await cluster.restart_service()
    bad = pb.LostCall(call_id="one", receiver=named(""))
    other = pb.LostCall(call_id="one", receiver=named("s"))
    assert await acquire("three", bad, other, messages_max=1) == [(1, [4])]
    lost = pb.LostCall(call_id="one", receiver=named("r"))
    assert await acquire("four", lost, messages_max=3, receiver="s") == [(1, [0, 1]), (1, [5])]
    # The report is repeated if its own answer is lost.
    assert await acquire("five", lost, receiver="s") == [(1, [6, 7])]


async def test_names_that_are_none_spoil_no_report_of_others(receiver: Receiver) -> None:
    bad = [named("c", "no group!"), named(""), named(256 * "c")]
    await receiver.acquire(messages_max=1, held_ms_max=HOUR_MS)
    clients = [pb.ClientReport(name=each) for each in bad]
    clients += [pb.ClientReport(name=named("x"), heard_ms_ago=-1)]
    await report(receiver, *clients, pb.ClientReport(name=named("r"), goodbye=True))
    assert (await receiver.listed()).visible_again == 1
    with pytest.raises(aio.AioRpcError, match="more than 1024"):
        await report(receiver, *[pb.ClientReport(name=named("r"))] * 1025)
    with pytest.raises(aio.AioRpcError, match="gateway_id is empty"):
        await receiver.stub.ReportClients(pb.ReportClientsRequest(gateway="g"))


class World:
    """Clients of two gateways."""

    def __init__(self) -> None:
        self.clients = KnownClients(LEASE_MS, START_MS)
        self.now_ms = START_MS

    def heard(
        self,
        gateway: Gateway,
        *names: str,
        ago_ms: int = 0,
        goodbye: bool = False,
        lite_version: int = 0,
        changes: tuple[LiteChange, ...] = (),
        since: int = 0,
    ) -> Answer:
        reports = [
            ReportedClient(
                Heard(ClientName(GROUP, name, ""), self.now_ms - ago_ms, goodbye),
                pb.ClientDetails(),
                lite_version,
            )
            for name in names
        ]
        return self.clients.report(gateway, reports, changes, since, self.now_ms)

    @property
    def listed(self) -> list[tuple[str, str]]:
        found = self.clients.of_group(GROUP, self.now_ms)
        return [(each.name.client_id, each.gateway) for each in found]


def lite(client: str, *topics: str, version: int = 0, **more: Any) -> LiteChange:
    wanted = LiteSet(ClientName(GROUP, client, ""), "chat", topics, version)
    return LiteChange(wanted, **more)


def topics_of(answer: Answer) -> dict[str, tuple[str, ...]]:
    return {name.client_id: each.lite_topics for name, each in answer.lite.items()}


def test_a_client_is_known_for_a_lease_and_by_the_gateway_that_heard_it_last() -> None:
    world = World()
    world.heard(HERE, "a", "b")
    world.now_ms += 30_000
    world.heard(THERE, "b", ago_ms=1_000)
    world.heard(HERE, "b", ago_ms=2_000)
    assert world.listed == [("a", "here"), ("b", "there")]
    world.now_ms += 30_001
    assert world.listed == [("b", "there")]
    world.heard(HERE, "c")
    assert len(world.clients) == 2
    # Another gateway reports late that it had heard the client before.
    world.heard(THERE, "c", goodbye=True)
    world.heard(HERE, "c", ago_ms=500)
    assert world.listed == [("b", "there")]
    world.now_ms += 1
    world.heard(HERE, "c")
    assert world.listed == [("b", "there"), ("c", "here")]


def test_a_group_has_a_bound_and_forgets_what_was_reported_least_recently() -> None:
    world = World()
    world.heard(HERE, *(f"c{number:05}" for number in range(GROUP_CLIENTS_MAX)))
    world.heard(HERE, "c00000", "new")
    names = [name for name, _ in world.listed]
    assert len(names) == GROUP_CLIENTS_MAX
    assert names[:2] == ["c00000", "c00002"]
    assert names[-1] == "new"


def test_details_of_clients_have_a_bound_and_those_of_clients_that_left_are_dropped() -> None:
    clients = KnownClients(LEASE_MS, START_MS, details_bytes_max=100)
    details = pb.ClientDetails(hostname=60 * "h")

    def report(client: str, *, goodbye: bool = False) -> None:
        heard = Heard(ClientName(GROUP, client, ""), START_MS, goodbye)
        clients.report(HERE, [ReportedClient(heard, details)], (), 0, START_MS)

    def hostnames() -> list[int]:
        return [len(each.details.hostname) for each in clients.of_group(GROUP, START_MS)]

    report("a")
    report("a")
    report("b")
    assert hostnames() == [60, 0]
    report("a", goodbye=True)
    report("b")
    assert hostnames() == [60]


def test_lite_topics_are_known_at_each_gateway_that_hears_the_client() -> None:
    world = World()
    (version,) = world.heard(HERE, "a", changes=(lite("a", "one"),)).lite_versions
    # Another gateway hears the client for the first time, and then of changes, in its next report.
    first = world.heard(THERE, "a")
    assert topics_of(first) == {"a": ("one",)}
    (later,) = world.heard(HERE, changes=(lite("a", "one", "two", version=version),)).lite_versions
    assert later > version
    assert topics_of(world.heard(THERE, since=first.lite_to)) == {"a": ("one", "two")}
    # A third gateway does not hear it.
    assert topics_of(world.heard(Gateway("third", "3"), "b")) == {}
    # A change of an old state is refused; its gateway gets the present state.
    refused = world.heard(THERE, changes=(lite("a", "three", version=version),), since=later)
    assert (refused.lite_versions, topics_of(refused)) == ([0], {"a": ("one", "two")})
    world.heard(THERE, "a", goodbye=True)
    assert topics_of(world.heard(HERE, "a", lite_version=later)) == {}


def test_a_goodbye_counts_although_an_earlier_report_of_its_gateway_was_delayed() -> None:
    world = World()
    # This report arrived late, so the time of the client's call seems later than it was.
    world.heard(HERE, "a", ago_ms=0, changes=(lite("a", "one"),))
    world.heard(HERE, "a", ago_ms=200, goodbye=True)
    assert world.listed == []
    # The client returns: it must subscribe again.
    assert topics_of(world.heard(HERE, "a", ago_ms=100)) == {}
    assert world.listed == [("a", "here")]


def test_a_service_that_has_started_asks_for_what_gateways_know() -> None:
    world = World()
    asked = world.heard(HERE, "a", lite_version=START_MS - 5)
    assert asked.lite_wanted == [ClientName(GROUP, "a", "")]
    known = lite("a", "one", version=START_MS - 5, is_known=True)
    assert world.heard(HERE, changes=(known,)).lite_versions == [START_MS - 5]
    assert topics_of(world.heard(THERE, "a")) == {"a": ("one",)}
    # Later knowledge of another gateway replaces it; earlier knowledge does not.
    world.heard(THERE, changes=(lite("a", "one", "two", version=START_MS - 3, is_known=True),))
    world.heard(HERE, changes=(known,))
    assert topics_of(world.heard(HERE, "a")) == {"a": ("one", "two")}


def test_in_an_exclusive_group_a_lite_topic_has_the_reader_that_claimed_it_last() -> None:
    world = World()
    first = lite("a", "one", "two", is_exclusive=True, claimed=frozenset({"one", "two"}))
    (version,) = world.heard(HERE, "a", changes=(first,)).lite_versions
    second = lite("b", "one", is_exclusive=True, claimed=frozenset({"one"}))
    world.heard(THERE, "b", changes=(second,))
    told = world.heard(HERE, since=version)
    (state,) = told.lite.values()
    assert (state.client.client_id, state.lite_topics, state.lost) == ("a", ("two",), ("one",))
    # The client repeats its complete list before it is notified.
    again = lite("a", "one", "two", version=state.version, is_exclusive=True)
    assert topics_of(world.heard(HERE, changes=(again,))) == {"a": ("two",)}


async def test_lite_topics_that_are_none_are_not_kept(receiver: Receiver) -> None:
    state = pb.LiteSubscription(name=named("c"), parent="chat", lite_topics=["no name!"])
    good = pb.LiteSubscription(name=named("c"), parent="chat", lite_topics=["one"])
    reply = await report(
        receiver,
        pb.ClientReport(name=named("c")),
        lite_changes=[pb.LiteChange(subscription=each) for each in (state, good)],
    )
    assert (reply.lite_versions[0], reply.lite_versions[1] > 0) == (0, True)
    state = pb.LiteSubscription(name=named("c"), parent="chat", version=1 << 62)
    reply = await report(receiver, lite_changes=[pb.LiteChange(subscription=state, is_known=True)])
    assert reply.lite_to < 1 << 61
