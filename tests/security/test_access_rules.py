"""Every call of a service has a rule; permissions cover exactly their objects."""

from typing import get_args

import pytest
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from rockoon_broker.rpc import access_rules as broker
from rockoon_core.errors import InvalidArgument, NotPermitted
from rockoon_core.key_checks import granted
from rockoon_core.signature import verifier_of
from rockoon_format import names
from rockoon_format.names import topic_need
from rockoon_nameserver import server as nameserver
from rockoon_offset import access_rules as offset
from rockoon_proto.v1 import (
    access_pb2,
    broker_pb2,
    in_flight_pb2,
    logs_pb2,
    nameserver_pb2,
    offset_pb2,
    settings_pb2,
)
from rockoon_proto.v1.access_pb2 import (
    ACCESS_ADMIN,
    ACCESS_READ,
    ACCESS_WRITE,
    AccessAction,
    AccessKeyInfo,
    AccessPermission,
)
from rockoon_runtime.access import keys
from rockoon_runtime.access.keys import KeyTable, KnownKey, require
from rockoon_runtime.access.rules import Rules

SERVICES: dict[str, tuple[Rules, list[FileDescriptor]]] = {
    "nameserver": (
        nameserver.RULES,
        [
            nameserver_pb2.DESCRIPTOR,
            logs_pb2.DESCRIPTOR,
            access_pb2.DESCRIPTOR,
            settings_pb2.DESCRIPTOR,
        ],
    ),
    "broker": (broker.RULES, [broker_pb2.DESCRIPTOR]),
    "offset": (offset.RULES, [offset_pb2.DESCRIPTOR, in_flight_pb2.DESCRIPTOR]),
}


def methods(files: list[FileDescriptor]) -> dict[str, MethodDescriptor]:
    """By the name with which they are called."""
    return {
        f"/{service.full_name}/{method.name}": method
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


@pytest.mark.parametrize("service", SERVICES)
def test_every_call_of_a_service_has_exactly_one_rule(service: str) -> None:
    rules, files = SERVICES[service]
    assert set(rules) == set(methods(files))


@pytest.mark.parametrize("service", SERVICES)
def test_every_rule_understands_the_request_that_it_is_for(service: str) -> None:
    rules, files = SERVICES[service]
    for name, method in methods(files).items():
        request = GetMessageClass(method.input_type)()
        for action, resource in rules[name].needs(request):
            assert action in ("read", "write", "admin", "see"), name
            assert resource == "cluster" or resource.startswith(("topic:", "group:")), name


def test_keys_are_never_open_and_nodes_are_registered_by_services() -> None:
    for name, rule in nameserver.RULES.items():
        assert rule.never_open == name.startswith("/rockoon.v1.AccessKeys/"), name
    for name in ("NameServer/RegisterNode", "NameServer/UnregisterNode", "AccessKeys/WatchKeys"):
        assert nameserver.RULES[f"/rockoon.v1.{name}"].services_only


def key(**permissions: list[AccessAction]) -> KnownKey:
    made = [
        AccessPermission(resource=resource.replace("__", ":"), actions=actions)
        for resource, actions in permissions.items()
    ]
    return KnownKey(AccessKeyInfo(key_id="k", permissions=made))


def test_a_permission_is_for_one_action_and_one_name() -> None:
    reader = key(topic__orders=[ACCESS_READ])
    assert reader.may("read", "topic:orders")
    assert reader.may("see", "topic:orders")
    for action, resource in (
        ("write", "topic:orders"),
        ("admin", "topic:orders"),
        ("read", "topic:orders2"),
        ("read", "topic:order"),
        ("read", "group:orders"),
        ("see", "topic:other"),
        ("read", "cluster"),
    ):
        assert not reader.may(action, resource), (action, resource)  # type: ignore[arg-type]


def test_a_star_stands_for_the_rest_of_the_name_in_its_own_kind() -> None:
    info = AccessKeyInfo(key_id="k")
    info.permissions.add(resource="topic:orders-*", actions=[ACCESS_WRITE])
    writer = KnownKey(info)
    assert writer.may("write", "topic:orders-eu")
    assert writer.may("write", "topic:orders-")
    assert not writer.may("write", "topic:orders")
    assert not writer.may("write", "group:orders-eu")


def test_answers_are_those_of_the_key_as_it_is_now() -> None:
    keys = KeyTable(tuple)
    info = AccessKeyInfo(key_id="k")
    info.permissions.add(resource="topic:a", actions=[ACCESS_READ])
    assert keys.replace([info]) == {"k"}
    before = keys.get("k")
    assert before is not None
    assert before.may("read", "topic:a")
    assert keys.replace([info]) == set()
    assert keys.get("k") is before
    assert keys.replace([AccessKeyInfo(key_id="k")]) == {"k"}
    after = keys.get("k")
    assert after is not None
    assert not after.may("read", "topic:a")


def test_a_key_that_asks_for_long_names_takes_no_memory_for_them() -> None:
    asking = key(topic__orders=[ACCESS_READ])
    for number in range(10):
        assert not asking.may("read", f"topic:{number}{'x' * 1_000_000}")
    assert sum(len(resource) for _, resource in asking._answers) < 1_000
    assert key(**{"topic__*": [ACCESS_READ]}).may("read", f"topic:{'x' * 1_000}")


def test_a_name_that_is_refused_is_one_line_of_a_log_and_short() -> None:
    asking = key(topic__orders=[ACCESS_READ])
    for name in ("x\n2026-11-22 CRITICAL made up", "\x1b[2J" + "y" * 1_000_000):
        with pytest.raises(NotPermitted) as refused:
            require(asking, "read", f"topic:{name}")
        assert str(refused.value).isprintable()
        assert refused.value.to_wire().ByteSize() < 2_000


def test_nobody_becomes_the_services_own_key_by_being_called_so() -> None:
    keys = KeyTable(lambda: ("the cluster secret",))
    keys.replace([AccessKeyInfo(key_id="rockoon", verifier=b"mine")])
    cluster = keys.get("rockoon")
    assert cluster is not None
    assert cluster.verifiers(0) == (verifier_of("the cluster secret"),)


@pytest.mark.parametrize(
    ("topic", "need"),
    [
        ("orders", ("read", "topic:orders")),
        ("%RETRY%billing", ("read", "group:billing")),
        ("%DLQ%billing", ("read", "group:billing")),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ("admin", "cluster")),
        ("rmq_sys_wheel_timer", ("admin", "cluster")),
    ],
)
def test_a_groups_topics_follow_the_group_and_the_brokers_own_the_cluster(
    topic: str, need: tuple[str, str]
) -> None:
    assert topic_need("read", topic) == need


def test_formats_and_services_call_actions_and_the_cluster_the_same() -> None:
    # Neither may import the other.
    assert get_args(names.Action) == get_args(keys.Action)
    assert names.CLUSTER == keys.CLUSTER


def test_permissions_are_added_and_taken_resource_by_resource() -> None:
    def permission(resource: str, *actions: AccessAction) -> AccessPermission:
        return AccessPermission(resource=resource, actions=actions)

    orders = permission("topic:orders", ACCESS_READ)
    both = granted([orders], [permission("topic:orders", ACCESS_WRITE)])
    assert both == [permission("topic:orders", ACCESS_READ, ACCESS_WRITE)]
    assert granted(both, [], [orders]) == [permission("topic:orders", ACCESS_WRITE)]
    assert granted(both, [], both) == []
    with pytest.raises(InvalidArgument, match="was not granted"):
        granted([permission("topic:*", ACCESS_READ)], [], [orders])
    with pytest.raises(InvalidArgument, match="was not granted"):
        granted([orders], [], [permission("topic:orders", ACCESS_READ, ACCESS_ADMIN)])
    for wrong in ("orders", "topic:", "topic:a*b", "queue:a", "topic:a b", "cluster:*", "*"):
        with pytest.raises(InvalidArgument, match="is no resource"):
            granted([], [permission(wrong, ACCESS_READ)])
    with pytest.raises(InvalidArgument, match="permissions are"):
        granted([], [permission("topic:orders")])
    many = [permission(f"topic:t{number}", ACCESS_READ) for number in range(257)]
    with pytest.raises(InvalidArgument, match="more than 256"):
        granted([], many)
