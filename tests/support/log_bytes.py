"""CommitLog bytes made in memory."""

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rockoon_format.batch import check_batch, encode_batch, patch_batch
from rockoon_format.record import encode_host

HOST = encode_host("127.0.0.1", 10911)
STORED_MS = 1_700_000_000_000


def log_bytes(
    chance: random.Random,
    base: int,
    *,
    records: int = 0,
    bodies: Sequence[bytes] = (),
) -> tuple[NDArray[np.uint8], list[int]]:
    """Return records back to back as a broker stores them.

    Args:
        chance: chooses topics, queues, properties and, without `bodies`, the bodies.
        base: physical offset of the first record.
        records: number of records with random bodies.
        bodies: bodies, instead of `records`.

    Returns:
        The bytes, uint8[n], and the start of each record in them.
    """
    sizes = (0, 1, 30, 700, 5000)
    chosen = bodies or [chance.randbytes(chance.choice(sizes)) for _ in range(records)]
    pieces: list[NDArray[np.uint8]] = []
    starts: list[int] = []
    offsets: dict[tuple[bytes, int], int] = {}
    position = 0
    for number, body in enumerate(chosen):
        # A topic of more than 127 bytes makes a V2 record.
        topic = chance.choice([b"orders", b"bills", b"t" * 130])
        queue_id = chance.randrange(4)
        properties = chance.choice(
            [b"", b"TAGS\x01TagA\x02", b"KEYS\x01k%d\x02TAGS\x01TagB" % number, b"a\x01b\x02" * 9]
        )
        frames, lengths = encode_batch(topic, queue_id, [body], [properties], STORED_MS, HOST)
        layout = check_batch(
            frames,
            lengths,
            topic=topic,
            queue_id=queue_id,
            body_bytes_max=1 << 22,
            record_bytes_max=1 << 23,
        )
        record = np.frombuffer(bytearray(frames), np.uint8)
        first = offsets.get((topic, queue_id), 0)
        patch_batch(
            record,
            layout,
            first_queue_offset=first,
            first_physical_offset=base + position,
            store_timestamp_ms=STORED_MS + number,
            store_host=HOST,
        )
        offsets[topic, queue_id] = first + 1
        starts.append(position)
        pieces.append(record)
        position += len(record)
    return np.concatenate(pieces), starts
