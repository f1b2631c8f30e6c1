"""Names that clients give."""

import pytest

from rockoon_gateway.codes import Refusal
from rockoon_gateway.names import NAMESPACE_CHARACTERS_MAX, checked_group, checked_topic
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Message, Resource


def test_what_answers_repeat_of_a_resource_is_short() -> None:
    # A field that no resource has.
    unknown = Message(body=bytes(1000)).SerializeToString()
    namespace = "n" * NAMESPACE_CHARACTERS_MAX
    sent = Resource(resource_namespace=namespace, name="orders").SerializeToString() + unknown
    for checked in (checked_topic, checked_group):
        resource = Resource.FromString(sent)
        assert resource.ByteSize() > 1000
        assert checked(resource) == "orders"
        assert resource == Resource(resource_namespace=namespace, name="orders")
        assert resource.ByteSize() < 300


def test_a_long_namespace_is_refused() -> None:
    resource = Resource(resource_namespace="n" * (NAMESPACE_CHARACTERS_MAX + 1), name="orders")
    for checked, code in (
        (checked_topic, Code.ILLEGAL_TOPIC),
        (checked_group, Code.ILLEGAL_CONSUMER_GROUP),
    ):
        with pytest.raises(Refusal) as refused:
            checked(resource)
        assert refused.value.code == code
