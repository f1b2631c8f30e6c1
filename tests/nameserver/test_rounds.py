"""Times at which a nameserver does its regular work together."""

import pytest

from rockoon_nameserver.follower import Rounds
from rockoon_nameserver.nodes import RENEW_SHARE_MAX
from rockoon_node.registration import MARGIN, ROUND
from rockoon_proto.v1 import nameserver_pb2 as pb
from support.etcd import EtcdServer
from support.nameserver import broker_node, running_nameserver


@pytest.mark.parametrize(
    ("now", "left"), [(0, 4), (1, 3), (2.9, 1.1), (3.5, 4.5), (4, 4), (4.001, 3.999), (103.2, 4.8)]
)
def test_who_comes_too_near_waits_for_the_one_after_it(now: float, left: float) -> None:
    assert Rounds(4.0, lambda: now).seconds_left() == pytest.approx(left)


def test_whoever_was_there_once_comes_with_the_others() -> None:
    now = 0.0
    rounds = Rounds(3.6, lambda: now)
    met = set()
    for came in (0.0, 0.7, 1.9, 3.5):
        now = came
        for _ in range(3):
            # Each reply needs a moment.
            now += rounds.seconds_left() + 0.01
        met.add(round((now - 0.01) % 3.6, 6) % 3.6)
    assert met == {0.0}


def test_always_is_always() -> None:
    assert Rounds(0.0, lambda: 1.5).seconds_left() == 0.0


def test_a_renewal_that_nobody_answers_ends_before_its_lease_does() -> None:
    assert RENEW_SHARE_MAX + ROUND < 1 - MARGIN


async def test_nodes_are_told_to_renew_their_leases_at_the_same_moment(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    async with running_nameserver(
        etcd=(shared_etcd.endpoint,), cluster=cluster, node_lease_seconds=60
    ) as nameserver:
        told = []
        for name in ("a", "b", "c"):
            request = pb.RegisterNodeRequest(node=broker_node(name))
            reply = await nameserver.call("RegisterNode", request)
            told.append(reply.renew_seconds)
            assert 0 < reply.renew_seconds <= RENEW_SHARE_MAX * reply.ttl_seconds
        # One after another, so the same moment is nearer each time; or it is the one after it.
        assert told == sorted(told, reverse=True) or max(told) > 20
