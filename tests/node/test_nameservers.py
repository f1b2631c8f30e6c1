"""Calls to any nameserver: their order, and the next one after a failure."""

import asyncio
from collections.abc import Callable

import pytest

from rockoon_core.errors import NameserverUnavailable, TopicNotFound, WrongCluster
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1 import nameserver_pb2 as pb
from rockoon_runtime.settings import SettingsError
from support.broker_routes import BrokerRoutes
from support.waiting import DEADLINE_SECONDS

TellsOf = Callable[..., Nameservers]

NOBODY = "127.0.0.1:1"


async def revision_from(nameservers: Nameservers) -> int:
    reply = await nameservers.call(
        lambda stub: stub.GetRoute(
            pb.GetRouteRequest(), timeout=DEADLINE_SECONDS, metadata=nameservers.metadata
        )
    )
    return int(reply.revision)


async def test_who_does_not_answer_is_passed_over_and_who_did_is_asked_first(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with BrokerRoutes() as other:
        other.revision = 500
        nameservers = told_of(NOBODY, nameserver.address, other.address)
        assert [await revision_from(nameservers) for _ in range(3)] == [1, 1, 1]
        await nameserver.stop()
        assert [await revision_from(nameservers) for _ in range(2)] == [500, 500]
        await nameserver.start()


async def test_calls_that_fail_at_the_same_time_miss_no_nameserver(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    nameservers = told_of(NOBODY, nameserver.address)
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(revision_from(nameservers)) for _ in range(4)]
    assert [task.result() for task in asking] == [1, 1, 1, 1]


async def test_when_nobody_answers_the_last_one_is_named(told_of: TellsOf) -> None:
    with pytest.raises(NameserverUnavailable, match=r"at 127\.0\.0\.1:2"):
        await revision_from(told_of(NOBODY, "127.0.0.1:2"))


async def test_an_answer_that_is_final_is_not_asked_for_again(
    nameserver: BrokerRoutes, told_of: TellsOf
) -> None:
    async with BrokerRoutes() as other:
        await other.create_topic("T", {"broker-a": 1})
        nameservers = told_of(nameserver.address, other.address)
        request = pb.DeleteTopicRequest(name="T")
        with pytest.raises(TopicNotFound):
            await nameservers.call(
                lambda stub: stub.DeleteTopic(request, metadata=nameservers.metadata)
            )
        assert "T" in other.topics


async def test_a_nameserver_of_another_cluster_refuses(told_of: TellsOf) -> None:
    other = BrokerRoutes()
    other.cluster = "other"
    async with other:
        with pytest.raises(WrongCluster, match="this is cluster 'other'"):
            await revision_from(told_of(other.address))


def test_a_service_that_was_told_of_no_nameserver_is_refused() -> None:
    with pytest.raises(SettingsError, match="nameservers is empty"):
        Nameservers((), "rockoon")
