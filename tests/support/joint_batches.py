"""Batches as this SDK sends them, alone or several in one message of an append stream."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from rockoon_broker.rpc.append_stream import AppendStreamCall
from rockoon_format.batch import encode_batch
from rockoon_format.sequences import encode_sequences
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import BORN_HOST, NOW_MS


def batch(
    topic: str, queue_id: int, *bodies: bytes, numbers: tuple[int, int] | None = None, **more: Any
) -> pb.AppendRequest:
    """Return a request as this SDK makes it: with room for checksums, numbered if requested."""
    sections = [b""] * len(bodies)
    if numbers is not None:
        sections = [each.tobytes() for each in encode_sequences(*numbers, len(bodies))]
        more |= {"producer_id": numbers[0], "first_sequence": numbers[1]}
    frames, lengths = encode_batch(
        topic.encode(), queue_id, list(bodies), sections, NOW_MS, BORN_HOST, room=True
    )
    packed = np.asarray(lengths, "<u4").tobytes()
    return pb.AppendRequest(
        topic=topic, queue_id=queue_id, frames=frames, record_lengths=packed, **more
    )


def joint(*requests: Any) -> Any:
    """Return one message with all batches, in their order."""
    message = pb.AppendRequest()
    message.CopyFrom(requests[0])
    message.more.extend(requests[1:])
    return message


async def answers_of(stream: AppendStreamCall) -> AsyncIterator[pb.AppendReply]:
    """Yield the decoded replies of a stream."""
    async for answer in stream.answers():
        yield pb.AppendReply.FromString(answer)
