"""The body of a message of a load test: its stream, its number, and its due time.

    0        4       8        16         24        32     36      40
    | magic  | run   | stream | sequence | due µs  | size | check | padding ...

A stream is a sequence of messages of one sender that stay in order: all have one key or one queue,
and are numbered from 0 without gaps. `check` depends on all fields, so that a body that was not
sent cannot look like a sent one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("run", "<u4"),
        ("stream", "<u8"),
        ("sequence", "<u8"),
        ("due_us", "<i8"),
        ("size", "<u4"),
        ("check", "<u4"),
    ]
)
HEADER_BYTES = 40
assert HEADER.itemsize == HEADER_BYTES

MAGIC = 0x4C4F4144
LANES_MAX = 1 << 16
SENDERS_MAX = 1 << 40

Headers = NDArray[np.void]

# Odd, so that a multiplication loses nothing (Knuth's and Murmur's constants).
_FACTORS = tuple(
    np.uint64(factor)
    for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD)
)


def stream_of(sender: int, lane: int) -> int:
    """Return the number of a stream.

    Args:
        sender: unique in the run, from 0.
        lane: number of the sender's stream, from 0.
    """
    assert 0 <= sender < SENDERS_MAX
    assert 0 <= lane < LANES_MAX
    return sender * LANES_MAX + lane


def encode(
    run: int, stream: int, first: int, due_us: NDArray[np.int64], body_bytes: int
) -> list[bytes]:
    """Return bodies of consecutive messages of a stream.

    Args:
        run: id of the load test's run, 32 bits.
        stream: see `stream_of`.
        first: sequence number of the first.
        due_us: due time of each, epoch microseconds, int64[n].
        body_bytes: size of each body, at least `HEADER_BYTES`.
    """
    assert body_bytes >= HEADER_BYTES
    headers = np.zeros(len(due_us), HEADER)
    headers["magic"] = MAGIC
    headers["run"] = run
    headers["stream"] = stream
    headers["sequence"] = np.arange(first, first + len(due_us), dtype=np.uint64)
    headers["due_us"] = due_us
    headers["size"] = body_bytes
    headers["check"] = _check(headers)
    raw = headers.tobytes()
    padding = b"x" * (body_bytes - HEADER_BYTES)
    return [raw[at : at + HEADER_BYTES] + padding for at in range(0, len(raw), HEADER_BYTES)]


def decode(bodies: Sequence[bytes], run: int) -> tuple[Headers, int]:
    """Return the headers of messages of a run, in their order, and the number of invalid ones: of
    another run, or changed."""
    raw = b"".join([body[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0") for body in bodies])
    headers = np.frombuffer(raw, HEADER)
    sizes = np.fromiter(map(len, bodies), np.uint32, len(bodies))
    good = (
        (headers["magic"] == MAGIC)
        & (headers["run"] == np.uint32(run))
        & (headers["size"] == sizes)
        & (headers["check"] == _check(headers))
    )
    wrong = len(bodies) - int(np.count_nonzero(good))
    return (headers[good] if wrong else headers), wrong


def _check(headers: Headers) -> NDArray[np.uint32]:
    mixed = headers["stream"] * _FACTORS[0]
    mixed ^= headers["sequence"] * _FACTORS[1]
    mixed ^= headers["due_us"].astype(np.uint64) * _FACTORS[2]
    mixed ^= (headers["run"].astype(np.uint64) << np.uint64(32)) + headers["size"]
    mixed *= _FACTORS[3]
    return (mixed >> np.uint64(32)).astype(np.uint32)
