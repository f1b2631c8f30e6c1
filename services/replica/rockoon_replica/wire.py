"""Conversion of messages between replicas from and to the wire (replica.proto)."""

import itertools
from collections.abc import Sequence

from rockoon_core.errors import InvalidArgument
from rockoon_core.replication_rules import Boundary
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_replica.messages import Ack, Hello, RecordChunk, Welcome

BOUNDARIES_MAX = 65_536


def boundaries_to_wire(boundaries: Sequence[Boundary]) -> list[pb.EpochBoundary]:
    return [
        pb.EpochBoundary(epoch=each.epoch, first=each.first, end=each.end) for each in boundaries
    ]


def hello_to_wire(log: str, hello: Hello) -> pb.FollowerSays:
    message = pb.FollowerHello(
        log=log,
        epoch=hello.epoch,
        replica_id=hello.replica,
        boundaries=boundaries_to_wire(hello.boundaries),
        end=hello.end,
        min_offset=hello.min_offset,
    )
    return pb.FollowerSays(hello=message)


def hello_from_wire(message: pb.FollowerHello) -> Hello:
    """Convert a follower's Hello from the wire. Raises InvalidArgument for invalid fields."""
    if not message.replica_id:
        raise InvalidArgument(reason="a follower must have an id")
    if message.epoch < 1 or not 0 <= message.min_offset <= message.end:
        raise InvalidArgument(
            reason=f"epoch {message.epoch}, a log from {message.min_offset} to {message.end}"
        )
    if len(message.boundaries) > BOUNDARIES_MAX:
        raise InvalidArgument(
            reason=f"{len(message.boundaries)} epochs, at most {BOUNDARIES_MAX} are allowed"
        )
    boundaries = tuple(Boundary(each.epoch, each.first, each.end) for each in message.boundaries)
    for before, after in itertools.pairwise(boundaries):
        if after.epoch <= before.epoch or after.first < before.end:
            raise InvalidArgument(reason=f"epoch {after.epoch} follows epoch {before.epoch}")
    if any(not 0 <= each.first <= each.end <= message.end for each in boundaries):
        raise InvalidArgument(reason="an epoch is outside of the log")
    return Hello(message.epoch, message.replica_id, boundaries, message.min_offset, message.end)


def welcome_to_wire(welcome: Welcome) -> pb.LeaderSays:
    message = pb.LeaderWelcome(
        leader_id=welcome.leader,
        epoch=welcome.epoch,
        remake=welcome.truncate_to is None,
        truncate_to=welcome.truncate_to or 0,
        leader_end=welcome.leader_end,
        log_min_offset=welcome.min_offset,
        tail_crc=welcome.tail_crc,
        dropped_below=dict(welcome.dropped),
        generation_end=welcome.generation_end,
    )
    return pb.LeaderSays(welcome=message)


def welcome_from_wire(message: pb.LeaderWelcome) -> Welcome:
    return Welcome(
        epoch=message.epoch,
        leader=message.leader_id,
        truncate_to=None if message.remake else message.truncate_to,
        tail_crc=message.tail_crc,
        leader_end=message.leader_end,
        min_offset=message.log_min_offset,
        dropped=tuple(message.dropped_below.items()),
        generation_end=message.generation_end,
    )


def chunk_to_wire(chunk: RecordChunk, crc: int) -> pb.LeaderSays:
    """Convert a chunk to the wire; `crc`: CRC-32 of its data."""
    envelope = pb.LeaderSays()
    # Filled directly: a message that is assigned to a field is copied with all its bytes.
    message = envelope.chunk
    message.leader_id = chunk.leader
    message.epoch = chunk.epoch
    message.offset = chunk.offset
    message.data = chunk.data
    message.crc = crc
    message.committed_end = chunk.committed_end
    message.log_min_offset = chunk.min_offset
    message.round = chunk.round
    message.generation = chunk.generation
    return envelope


def chunk_from_wire(message: pb.LeaderChunk) -> RecordChunk:
    return RecordChunk(
        epoch=message.epoch,
        leader=message.leader_id,
        offset=message.offset,
        data=message.data,
        committed_end=message.committed_end,
        min_offset=message.log_min_offset,
        round=message.round,
        generation=message.generation,
    )


def ack_to_wire(ack: Ack) -> pb.FollowerSays:
    message = pb.FollowerAck(
        durable_end=ack.durable_end,
        round=ack.round,
        lacking=ack.is_lacking,
        writes_fail=ack.writes_fail,
        damaged=ack.is_damaged,
    )
    return pb.FollowerSays(ack=message)


def ack_from_wire(message: pb.FollowerAck) -> Ack:
    return Ack(
        message.durable_end, message.round, message.lacking, message.writes_fail, message.damaged
    )
