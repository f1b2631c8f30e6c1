"""The ListAppendStreams call: programs that have an AppendStream open."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rockoon_broker.rpc.append_stream import AppendStreamCall
from rockoon_core.protocol import AGENT_METADATA_KEY
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_runtime.access.callers import Caller

STREAMS_LISTED_MAX = 10_000
TEXT_BYTES_MAX = 255


class AppendClient(NamedTuple):
    """The program of an AppendStream.

    Attributes:
        key_id: its access key; empty if calls are not signed.
        opened_seconds: monotonic.
    """

    agent: pb.Agent
    address: str
    key_id: str
    opened_seconds: float


def client_of(context: Any, caller: Caller | None, now_seconds: float) -> AppendClient:
    """Return the program of a new stream, from the metadata of its call.

    The metadata is only shown to operators. Metadata that cannot be decoded counts as missing.
    """
    found = (value for key, value in context.invocation_metadata() if key == AGENT_METADATA_KEY)
    raw = next(found, b"")
    agent = pb.Agent()
    try:
        agent = pb.Agent.FromString(raw)
    except (DecodeError, TypeError):
        agent = pb.Agent()
    texts = (agent.client_id, agent.language, agent.version, agent.gateway)
    if any(len(text.encode()) > TEXT_BYTES_MAX for text in texts):
        agent = pb.Agent()
    agent.DiscardUnknownFields()
    key_id = "" if caller is None else caller.key_id
    return AppendClient(agent, context.peer(), key_id, now_seconds)


def append_streams(
    streams: Mapping[AppendStreamCall, AppendClient], topic: str, now_seconds: float
) -> pb.ListAppendStreamsReply:
    """Return the open streams, the oldest first.

    Args:
        topic: return only streams that have sent to this topic, and only this topic of each
            stream, because the caller may not see other topics; empty: all streams and topics.
    """
    found = [
        (stream, client)
        for stream, client in streams.items()
        if not topic or topic in stream.topics
    ]
    listed = (state_of(*each, topic, now_seconds) for each in found[:STREAMS_LISTED_MAX])
    return pb.ListAppendStreamsReply(streams=listed, streams_count=len(found))


def state_of(
    stream: AppendStreamCall, client: AppendClient, topic: str, now_seconds: float
) -> pb.AppendStreamState:
    topics: Iterable[str] = [topic] if topic else stream.topics
    state = pb.AppendStreamState(
        agent=client.agent,
        address=client.address,
        key_id=client.key_id,
        opened_ms_ago=ms_between(client.opened_seconds, now_seconds),
        topics=topics,
    )
    if stream.last_seconds:
        state.sent_ms_ago = ms_between(stream.last_seconds, now_seconds)
    return state


def ms_between(then_seconds: float, now_seconds: float) -> int:
    return max(round((now_seconds - then_seconds) * 1000), 0)
