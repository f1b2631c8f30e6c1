"""Stub of a broker. Its streams pass records as bytes: protobuf would copy them."""

from typing import Any

from rockoon.net.append_replies import append_reply
from rockoon.net.large_replies import pull_stream_reply
from rockoon_proto.v1.broker_pb2 import PullStreamRequest
from rockoon_proto.v1.broker_pb2_grpc import BrokerStub

_SERVICE = "/rockoon.v1.Broker/"


def broker_stub(channel: Any) -> BrokerStub:
    """Return a stub whose AppendStream sends bytes and yields `Answers`, and whose PullStream
    yields `Replies`."""
    stub: BrokerStub = BrokerStub(channel)
    stub.AppendStream = channel.stream_stream(f"{_SERVICE}AppendStream", None, append_reply)
    stub.PullStream = channel.stream_stream(
        f"{_SERVICE}PullStream", PullStreamRequest.SerializeToString, pull_stream_reply
    )
    return stub
