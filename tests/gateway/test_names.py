"""Names in requests of clients."""

import pytest

from rockoon_gateway.codes import Refusal
from rockoon_gateway.names import (
    NAMESPACE_CHARACTERS_MAX,
    checked_group,
    checked_topic,
    cluster_name,
    is_in,
    plain_name,
    resource_of,
)
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource


def test_what_answers_repeat_of_a_resource_is_short() -> None:
    # A field that no resource has.
    unknown = Message(body=bytes(1000)).SerializeToString()
    namespace = "n" * NAMESPACE_CHARACTERS_MAX
    sent = Resource(resource_namespace=namespace, name="o").SerializeToString() + unknown
    for checked in (checked_topic, checked_group):
        resource = Resource.FromString(sent)
        assert resource.ByteSize() > 1000
        assert checked(resource, "") == f"{namespace}%o"
        assert resource == Resource(resource_namespace=namespace, name="o")
        assert resource.ByteSize() < 300


@pytest.mark.parametrize(
    ("namespace", "name", "in_cluster"),
    [
        ("", "orders", "orders"),
        ("", "shop%orders", "shop%orders"),
        ("", "%DLQ%shop%billing", "%DLQ%shop%billing"),
        ("shop", "orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("shop", "other%orders", "shop%other%orders"),
        ("shop", "%DLQ%other%billing", "%DLQ%shop%other%billing"),
        ("shop", "shopping", "shop%shopping"),
    ],
)
def test_a_resource_is_one_name_in_the_cluster_and_back(
    namespace: str, name: str, in_cluster: str
) -> None:
    resource = Resource(resource_namespace=namespace, name=name)
    if namespace:
        assert checked_topic(resource, "another") == in_cluster
    assert cluster_name(resource) == in_cluster
    assert resource_of(in_cluster, namespace) == Resource(resource_namespace=namespace, name=name)
    # The caller's namespace is used for a resource without one, from then on.
    bare = Resource(name=name)
    assert cluster_name(bare, namespace) == checked_topic(bare, namespace) == in_cluster
    assert bare == resource
    assert is_in(in_cluster, namespace)


def test_a_name_that_has_its_namespace_already_gets_no_second_one() -> None:
    for name in ("shop%orders", "%RETRY%shop%billing", "%DLQ%shop%billing"):
        assert cluster_name(Resource(resource_namespace="shop", name=name)) == name
    assert cluster_name(Resource(resource_namespace="shop")) == ""


def test_a_name_of_another_namespace_stays_whole() -> None:
    for name in ("orders", "shopping%orders", "%DLQ%billing", "%DLQ%shopping%billing"):
        assert plain_name(name, "shop") == name
        assert resource_of(name, "shop") == Resource(name=name)
        assert not is_in(name, "shop")


@pytest.mark.parametrize(
    ("namespace", "topic", "group"),
    [
        ("shop", "TBW102", "CID_RMQ_SYS_TRANS"),
        ("rmq_sys_", "wheel_timer", "CID_RMQ_SYS_"),
        ("shop", "%LITE%chat|one", ""),
        ("shop", "", ""),
        ("shop", "t" * 123, "g" * 116),
        ("n" * (NAMESPACE_CHARACTERS_MAX + 1), "o", "g"),
        ("CID_RMQ_SYS_", "a b", "g"),
        ("sh%op", "orders", "billing"),
    ],
)
def test_names_that_the_brokers_use_or_nobody_may_are_refused_in_a_namespace(
    namespace: str, topic: str, group: str
) -> None:
    for checked, name, code in (
        (checked_topic, topic, Code.ILLEGAL_TOPIC),
        (checked_group, group, Code.ILLEGAL_CONSUMER_GROUP),
    ):
        for resource, caller in (
            (Resource(resource_namespace=namespace, name=name), ""),
            (Resource(name=name), namespace),
        ):
            with pytest.raises(Refusal) as refused:
                checked(resource, caller)
            assert refused.value.code == code


def test_the_length_of_a_name_counts_with_its_namespace() -> None:
    assert checked_topic(Resource(resource_namespace="shop", name="t" * 122), "")
    assert checked_group(Resource(resource_namespace="shop", name="g" * 115), "")
    dead = Resource(resource_namespace="shop", name="%DLQ%" + "g" * 115)
    assert checked_topic(dead, "") == "%DLQ%shop%" + "g" * 115
    with pytest.raises(Refusal, match="128 characters, more than 127, with its namespace 'shop'"):
        checked_topic(Resource(resource_namespace="shop", name="t" * 123), "")
