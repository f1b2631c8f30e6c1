"""Values that a node must have in common with its cluster."""

import pytest

from rockoon_core.errors import WrongCluster
from rockoon_core.protocol import LEVEL, PROTOCOL
from rockoon_nameserver.request_checks import Fingerprints
from rockoon_proto.v1.nameserver_pb2 import OFFSET_SERVICE, RegisterNodeRequest
from support.nameserver import broker_node

OURS, OTHER = 0x1234, 0xABCD
FINGERPRINTS = Fingerprints("shop", "ns-a", {"tls": '"mutual"', "access": '"on"'})


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (
            RegisterNodeRequest(node=broker_node(), cluster_id=OTHER),
            "the store of 'broker-a' belongs to cluster 000000000000abcd, this one is "
            "0000000000001234",
        ),
        (
            RegisterNodeRequest(node=broker_node(), protocol=PROTOCOL + 1),
            f"'broker-a' speaks protocol {PROTOCOL + 1}, and nameserver 'ns-a' only {PROTOCOL}: "
            "upgrade the nameservers first",
        ),
        (
            RegisterNodeRequest(node=broker_node(level=LEVEL - 1)),
            f"'broker-a' is of a former version: it supports feature level {LEVEL - 1}, and the "
            f"upgrade of the cluster to level {LEVEL} is finished. Start a version that supports "
            f"level {LEVEL}",
        ),
        (
            RegisterNodeRequest(node=broker_node(shared_settings={"access": '"off"'})),
            "'broker-a' has access = \"off\", and nameserver 'ns-a' \"on\": it has to be the same "
            "everywhere",
        ),
    ],
)
def test_a_node_of_another_kind_of_cluster_is_refused_when_it_comes(
    request_: RegisterNodeRequest, reason: str
) -> None:
    with pytest.raises(WrongCluster) as refused:
        FINGERPRINTS.check(request_, OURS, LEVEL)
    assert str(refused.value) == reason
    # A node that already serves is not ended because of a nameserver with other settings.
    request_.lease_id = 7
    FINGERPRINTS.check(request_, OURS, LEVEL)


@pytest.mark.parametrize(
    "request_",
    [
        RegisterNodeRequest(node=broker_node()),
        RegisterNodeRequest(node=broker_node(), cluster_id=OURS, protocol=PROTOCOL),
        RegisterNodeRequest(node=broker_node(shared_settings={"access": '"on"', "flush": "x"})),
        RegisterNodeRequest(node=broker_node(shared_settings={"access": '"optional"'})),
    ],
)
def test_a_node_that_has_nothing_to_compare_or_nothing_different_is_taken(
    request_: RegisterNodeRequest,
) -> None:
    FINGERPRINTS.check(request_, OURS, LEVEL)


def test_a_node_of_a_former_version_is_taken_until_the_upgrade_is_finished() -> None:
    FINGERPRINTS.check(RegisterNodeRequest(node=broker_node(level=0)), OURS, 0)


def test_an_etcd_without_a_number_refuses_nobody() -> None:
    FINGERPRINTS.check(RegisterNodeRequest(node=broker_node(), cluster_id=OTHER), 0, LEVEL)


def test_differences_are_told_from_the_nameserver_and_another_node_of_the_kind() -> None:
    shared = {"tls": '"on"', "flush": '"sync"', "body_bytes_max": "1"}
    node = broker_node(shared_settings=shared)
    others = [
        node,
        broker_node("broker-0", shared_settings={}),
        broker_node("broker-b", shared_settings={**shared, "flush": '"async"'}),
        broker_node("broker-c", shared_settings={**shared, "body_bytes_max": "2"}),
        broker_node("offset", kind=OFFSET_SERVICE, shared_settings={"flush": "other"}),
    ]
    assert FINGERPRINTS.differences(node, others) == [
        'tls = "on", and "mutual" at nameserver \'ns-a\'',
        'flush = "sync", and "async" at \'broker-b\'',
    ]
    assert FINGERPRINTS.differences(others[1], others) == []
