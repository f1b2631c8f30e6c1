"""List of the producers that gateways report: entries, expiry and bounds."""

from collections.abc import Sequence
from typing import Any

import pytest
from offset.cluster import Cluster

from rockoon_offset.in_flight import producers as module
from rockoon_offset.in_flight.producers import KnownProducer, KnownProducers, ProducerName
from rockoon_proto.v1.in_flight_pb2 import (
    ClientDetails,
    ListProducersReply,
    ListProducersRequest,
    ProducerReport,
    ReportClientsRequest,
)
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceStub

LEASE_MS = 60_000


def sender(
    name: str,
    heard_at_ms: int,
    *topics: str,
    gateway: str = "gateway-a",
    goodbye: bool = False,
    hostname: str = "",
) -> KnownProducer:
    details = ClientDetails(language="JAVA", hostname=hostname)
    return KnownProducer(
        ProducerName(name, ""), details, gateway, heard_at_ms, topics or ("orders",), goodbye
    )


def names(known: KnownProducers, now_ms: int, topic: str = "") -> list[str]:
    return [each.name.client_id for each in known.of_topic(topic, now_ms)]


def test_producers_are_listed_by_topic_until_they_are_silent_or_say_goodbye() -> None:
    known = KnownProducers(LEASE_MS)
    known.report([sender("b", 1000), sender("a", 2000, "orders", "payments")], 2000)
    assert names(known, 2000) == ["a", "b"]
    assert names(known, 2000, "payments") == ["a"]
    assert names(known, 2000, "nothing") == []
    assert names(known, 1000 + LEASE_MS, "orders") == ["a", "b"]
    assert names(known, 1001 + LEASE_MS, "orders") == ["a"]
    known.report([sender("a", 3000, goodbye=True)], 3000)
    assert names(known, 3000) == ["b"]


def test_the_gateway_that_has_heard_a_producer_last_decides() -> None:
    known = KnownProducers(LEASE_MS)
    known.report([sender("a", 5000, "new", gateway="gateway-b")], 5000)
    known.report([sender("a", 4000, "old")], 5001)
    (found,) = known.of_topic("", 5001)
    assert (found.gateway, found.topics) == ("gateway-b", ("new",))
    known.report([sender("a", 4000, goodbye=True)], 5002)
    assert names(known, 5002) == ["a"]


def test_producers_of_other_topics_are_not_sorted() -> None:
    compared = 0

    class CountedId(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__lt__(self, other)

    known = KnownProducers(LEASE_MS)
    known.report([sender(CountedId(name), 1000) for name in "dacb"], 1000)
    assert names(known, 1000, "payments") == []
    assert compared == 0
    assert names(known, 1000, "orders") == ["a", "b", "c", "d"]
    assert compared > 0


def test_the_table_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 2)
    known = KnownProducers(LEASE_MS)
    known.report([sender(name, 1000) for name in "abc"], 1000)
    assert names(known, 1000) == ["b", "c"]
    known = KnownProducers(LEASE_MS, bytes_max=200)
    known.report([sender(name, 1000, hostname="h" * 120) for name in "ab"], 1000)
    assert names(known, 1000) == ["b"]
    # Their entries are free again.
    known.report([sender("a", 1000)], 1000)
    assert names(known, 1000) == ["a", "b"]


async def reported(cluster: Cluster, *producers: ProducerReport) -> None:
    request = ReportClientsRequest(gateway="gateway-a", gateway_id="one", producers=producers)
    await in_flight(cluster).ReportClients(request)


def in_flight(cluster: Cluster) -> Any:
    return InFlightServiceStub(cluster.channel)


async def listed(cluster: Cluster, topic: str = "") -> ListProducersReply:
    request = ListProducersRequest(topic=topic)
    return await in_flight(cluster).ListProducers(request)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "wrong",
    [
        {"client_id": ""},
        {"client_id": "x" * 256},
        {"topics": ["no topic"]},
        {"topics": [f"t{number}" for number in range(33)]},
        {"heard_ms_ago": -1},
    ],
    ids=str,
)
async def test_an_invalid_producer_does_not_spoil_a_report(
    cluster: Cluster, wrong: dict[str, Any]
) -> None:
    good = ProducerReport(client_id="good", topics=["orders", "payments"])
    fields = {"client_id": "bad", "topics": ["orders"], **wrong}
    await reported(cluster, ProducerReport(**fields), good)
    reply = await listed(cluster)
    assert [each.client_id for each in reply.producers] == ["good"]
    assert (reply.producers_count, reply.producers[0].gateway) == (1, "gateway-a")
    # Other topics of a producer are not named: the caller may not see them.
    (found,) = (await listed(cluster, "orders")).producers
    assert found.topics == ["orders"]


async def test_reports_and_listings_have_bounds(cluster: Cluster) -> None:
    many: Sequence[ProducerReport] = [ProducerReport(client_id="a")] * 1025
    with pytest.raises(Exception, match="more than 1024 producers in one call"):
        await reported(cluster, *many)
    with pytest.raises(Exception, match="the topic 'no topic' has a character"):
        await listed(cluster, "no topic")
