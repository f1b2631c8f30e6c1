"""Batches that a broker stores once although several processes may send them.

The producer id of such a batch is a hash of its scope and its messages, and its first sequence
number is 0. A repeat in the same queue, from any process, therefore has the numbers of the first
attempt, and the broker answers it with the stored messages. A batch with other messages has another
id: the broker never mistakes it for a repeat. The broker remembers an id as long as any other
producer's (`producer_memory_hours`, `producer_sequences_max`); after that, it appends a repeat.

The ids and times of the stored messages are those of the first attempt. A repeat cannot know them,
so results have an `offset_message_id`, and an empty `message_id`.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.producer.outgoing import Body, Extras

BYTES_MAX = 8 << 20
"""Maximum size of a batch, as for `batch_bytes_max`."""
MESSAGES_MAX = 65_536

_SIZES = struct.Struct(">III")


class OnceMessage(NamedTuple):
    """A message of `Producer.send_once`; the fields are arguments of `Producer.send`."""

    body: Body
    keys: str | Sequence[str] | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None


def check_once(messages: int, size: int) -> None:
    """Check the size of a batch, in messages and bytes; raises InvalidArgument."""
    if not 0 < messages <= MESSAGES_MAX or size > BYTES_MAX:
        reason = f"a batch has 1 to {MESSAGES_MAX} messages with {BYTES_MAX} bytes in total"
        raise InvalidArgument(reason=f"{reason}, not {messages} with {size}")


def once_id(scope: bytes, messages: Sequence[tuple[bytes, Extras]]) -> int:
    """Return the producer id of a batch, 1 to 2^64 - 1.

    Args:
        scope: as for `Producer.send_once`.
        messages: bodies with their encoded properties.
    """
    digest = hashlib.blake2b(scope, digest_size=8, person=b"rockoon once")
    digest.update(_SIZES.pack(len(scope), len(messages), 0))
    for body, (head, tail) in messages:
        digest.update(_SIZES.pack(len(body), len(head), len(tail)))
        digest.update(body)
        digest.update(head + tail)
    return int.from_bytes(digest.digest()) or 1
