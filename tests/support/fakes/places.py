"""Message queues as fakes name them."""

from google.protobuf.message import Message as ProtoMessage

from rockoon_proto.v1 import offset_pb2 as offset_wire

Place = tuple[str, str, int]
"""Topic, broker, queue id."""


def place_of(ref: offset_wire.QueueRef) -> Place:
    return (ref.topic, ref.broker, ref.queue_id)


def ref_of(place: Place) -> ProtoMessage:
    return offset_wire.QueueRef(topic=place[0], broker=place[1], queue_id=place[2])
