"""Conversion of messages between replicas from and to the wire (replica.proto)."""

import itertools
from collections.abc import Sequence

from rockoon_core.errors import InvalidArgument
from rockoon_core.replication_rules import Boundary
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_replica.messages import Ack, Chunk, Hello, Welcome

BOUNDARIES_MAX = 65_536


def boundaries_to_wire(boundaries: Sequence[Boundary]) -> list[pb.EpochBoundary]:
    return [
        pb.EpochBoundary(epoch=each.epoch, first=each.first, end=each.end) for each in boundaries
    ]


def hello_to_wire(log: str, hello: Hello) -> pb.FollowerSays:
    told = pb.FollowerHello(
        log=log,
        epoch=hello.epoch,
        replica_id=hello.replica,
        boundaries=boundaries_to_wire(hello.boundaries),
        end=hello.end,
        min_offset=hello.min_offset,
    )
    return pb.FollowerSays(hello=told)


def hello_from_wire(told: pb.FollowerHello) -> Hello:
    """Raises InvalidArgument for invalid fields."""
    if not told.replica_id:
        raise InvalidArgument(reason="a follower must have an id")
    if told.epoch < 1 or not 0 <= told.min_offset <= told.end:
        raise InvalidArgument(
            reason=f"epoch {told.epoch}, a log from {told.min_offset} to {told.end}"
        )
    if len(told.boundaries) > BOUNDARIES_MAX:
        raise InvalidArgument(
            reason=f"{len(told.boundaries)} epochs, at most {BOUNDARIES_MAX} are allowed"
        )
    boundaries = tuple(Boundary(each.epoch, each.first, each.end) for each in told.boundaries)
    for before, after in itertools.pairwise(boundaries):
        if after.epoch <= before.epoch or after.first < before.end:
            raise InvalidArgument(reason=f"epoch {after.epoch} follows epoch {before.epoch}")
    if any(not 0 <= each.first <= each.end <= told.end for each in boundaries):
        raise InvalidArgument(reason="an epoch is outside of the log")
    return Hello(told.epoch, told.replica_id, boundaries, told.min_offset, told.end)


def welcome_to_wire(welcome: Welcome) -> pb.LeaderSays:
    told = pb.LeaderWelcome(
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
    return pb.LeaderSays(welcome=told)


def welcome_from_wire(told: pb.LeaderWelcome) -> Welcome:
    return Welcome(
        epoch=told.epoch,
        leader=told.leader_id,
        truncate_to=None if told.remake else told.truncate_to,
        tail_crc=told.tail_crc,
        leader_end=told.leader_end,
        min_offset=told.log_min_offset,
        dropped=tuple(told.dropped_below.items()),
        generation_end=told.generation_end,
    )


def chunk_to_wire(chunk: Chunk, crc: int) -> pb.LeaderSays:
    """Convert a chunk; `crc`: CRC-32 of its data."""
    said = pb.LeaderSays()
    # Filled directly: a message that is assigned to a field is copied with all its bytes.
    told = said.chunk
    told.leader_id = chunk.leader
    told.epoch = chunk.epoch
    told.offset = chunk.offset
    told.data = chunk.data
    told.crc = crc
    told.committed_end = chunk.committed_end
    told.log_min_offset = chunk.min_offset
    told.round = chunk.round
    told.generation = chunk.generation
    return said


def chunk_from_wire(told: pb.LeaderChunk) -> Chunk:
    return Chunk(
        epoch=told.epoch,
        leader=told.leader_id,
        offset=told.offset,
        data=told.data,
        committed_end=told.committed_end,
        min_offset=told.log_min_offset,
        round=told.round,
        generation=told.generation,
    )


def ack_to_wire(ack: Ack) -> pb.FollowerSays:
    told = pb.FollowerAck(
        durable_end=ack.durable_end,
        round=ack.round,
        lacking=ack.is_lacking,
        writes_fail=ack.writes_fail,
        damaged=ack.is_damaged,
    )
    return pb.FollowerSays(ack=told)


def ack_from_wire(told: pb.FollowerAck) -> Ack:
    return Ack(told.durable_end, told.round, told.lacking, told.writes_fail, told.damaged)
