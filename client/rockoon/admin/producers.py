"""Programs that send to a cluster: of the SDK, and clients of gateways.

    found = await cluster.admin.producers("orders")
    for each in found.producers:
        print(each.client_id, each.address, each.language, each.version)

Brokers know the streams of the SDK, the offset service knows the clients of all gateways.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rockoon.admin.reads import ask_offset_service, live_brokers
from rockoon.errors import NotPermitted, RockoonError
from rockoon_proto.v1 import broker_pb2 as broker_pb
from rockoon_proto.v1 import in_flight_pb2 as in_flight_pb

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


@dataclass(slots=True)
class ConnectedProducer:
    """A program that sends, or a gateway that sends for its clients. Unknown texts are empty."""

    client_id: str
    address: str = ""
    """Network address, in gRPC's notation."""
    language: str = ""
    version: str = ""
    """Version of the SDK."""
    key_id: str = ""
    """Access key that signs the calls; empty for unsigned calls."""
    gateway: str = ""
    """Name of the gateway that the client calls; empty for a program of the SDK and for a gateway
    itself."""
    is_gateway: bool = False
    """The stream is of a gateway, which sends for its clients."""
    brokers: list[str] = field(default_factory=list)
    """Brokers with a stream of the program, sorted; empty for a client of a gateway."""
    topics: list[str] = field(default_factory=list)
    """Topics that it sends to, as far as known, sorted; with a topic asked for, that one only."""
    sent_ms_ago: int | None = None
    """Milliseconds since its last message or, for a client of a gateway, its last call; None if it
    has sent nothing."""
    opened_ms_ago: int | None = None
    """Milliseconds since its oldest stream was opened; None for a client of a gateway."""


@dataclass(frozen=True, slots=True)
class ConnectedProducers:
    """Programs that send, sorted by client id."""

    producers: Sequence[ConnectedProducer]
    left_out: int
    """Number of further streams and clients, because a service lists at most 10,000."""
    errors: Mapping[str, RockoonError]
    """Broker, or "offset service" → the error, if it did not answer."""


OFFSET_SERVICE = "offset service"


async def connected_producers(cluster: "Connection", topic: str) -> ConnectedProducers:
    """Return the programs that send to a topic; see `Admin.producers`."""
    errors: dict[str, RockoonError] = {}

    async def of_broker(broker: str) -> broker_pb.ListAppendStreamsReply:
        try:
            reply: broker_pb.ListAppendStreamsReply = await cluster.call_broker(
                broker, "ListAppendStreams", broker_pb.ListAppendStreamsRequest(topic=topic)
            )
        except RockoonError as error:
            errors[broker] = error
            return broker_pb.ListAppendStreamsReply()
        return reply

    async def of_gateways() -> in_flight_pb.ListProducersReply:
        request = in_flight_pb.ListProducersRequest(topic=topic)
        try:
            reply: in_flight_pb.ListProducersReply = await ask_offset_service(
                cluster, "ListProducers", request
            )
        except RockoonError as error:
            errors[OFFSET_SERVICE] = error
            return in_flight_pb.ListProducersReply()
        return reply

    brokers = live_brokers(cluster)
    async with asyncio.TaskGroup() as tasks:
        asked = {broker: tasks.create_task(of_broker(broker)) for broker in brokers}
        clients = tasks.create_task(of_gateways())
    for error in errors.values():
        if isinstance(error, NotPermitted):
            # Every service would refuse; a partial list would look complete.
            raise error
    replies = {broker: task.result() for broker, task in asked.items()}
    left_out = sum(each.streams_count - len(each.streams) for each in replies.values())
    of_clients = clients.result()
    left_out += of_clients.producers_count - len(of_clients.producers)
    found = [*merged(replies), *map(client_of, of_clients.producers)]
    found.sort(key=lambda each: (each.client_id, each.key_id, each.address))
    return ConnectedProducers(found, left_out, dict(sorted(errors.items())))


def merged(
    replies: Mapping[str, broker_pb.ListAppendStreamsReply],
) -> Iterable[ConnectedProducer]:
    """Return one entry for each program: it has a stream to each broker, of each of its
    producers."""
    found: dict[tuple[str, str, str], ConnectedProducer] = {}
    for broker, reply in replies.items():
        for stream in reply.streams:
            agent = stream.agent
            # A program of a former version sends no id: its host is all that is known.
            name = agent.client_id, stream.key_id, "" if agent.client_id else stream.address
            of = found.setdefault(
                name,
                ConnectedProducer(
                    agent.gateway or agent.client_id,
                    stream.address,
                    agent.language,
                    agent.version,
                    stream.key_id,
                    is_gateway=bool(agent.gateway),
                ),
            )
            of.brokers = sorted({*of.brokers, broker})
            of.topics = sorted({*of.topics, *stream.topics})
            of.opened_ms_ago = max(of.opened_ms_ago or 0, stream.opened_ms_ago)
            if stream.HasField("sent_ms_ago"):
                known = of.sent_ms_ago
                ago = stream.sent_ms_ago
                of.sent_ms_ago = ago if known is None else min(known, ago)
    return found.values()


def client_of(producer: in_flight_pb.Producer) -> ConnectedProducer:
    details = producer.details
    return ConnectedProducer(
        producer.client_id,
        details.address,
        details.language,
        details.version,
        producer.key_id,
        producer.gateway,
        topics=sorted(producer.topics),
        sent_ms_ago=producer.heard_ms_ago,
    )
