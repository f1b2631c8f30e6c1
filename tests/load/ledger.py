"""Reports of senders and groups from the workers to the checker, as one file.

    | kind u8 | name bytes u16 | rows u32 | name | rows x (stream, first, end) i64 |

Little-endian. The master appends what workers report; the auditor follows the file to the END.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from load.checker import Checker

_HEAD = struct.Struct("<BHI")
_ROW_BYTES = 24

Rows = NDArray[np.int64]


class Kind(IntEnum):
    """Kind of a frame."""

    SENT = 1
    """The name is a topic; a row is the end of a stream's sent numbers."""
    ACKNOWLEDGED = 2
    """The name is a topic."""
    CLOSED = 3
    """No name; the senders of these streams have ended."""
    GIVEN = 4
    """The name is a group."""
    GROUP = 5
    """The name is a group's and, each on a line, those of its topics; no rows."""
    END = 6
    """The last frame."""


Frame = tuple[Kind, str, Rows]


def encode(kind: Kind, name: str = "", rows: Sequence[tuple[int, int, int]] | Rows = ()) -> bytes:
    """A frame.

    Args:
        kind: meaning of the frame.
        name: name of a topic or a group.
        rows: stream, first number, one more than the last.
    """
    packed = np.asarray(rows, "<i8").reshape(-1, 3)
    raw_name = name.encode()
    return _HEAD.pack(kind, len(raw_name), len(packed)) + raw_name + packed.tobytes()


def decode(raw: bytes) -> tuple[list[Frame], int]:
    """Return the complete frames at the beginning of some bytes, and their size."""
    frames: list[Frame] = []
    at = 0
    while at + _HEAD.size <= len(raw):
        kind, name_bytes, count = _HEAD.unpack_from(raw, at)
        rows_at = at + _HEAD.size + name_bytes
        end = rows_at + count * _ROW_BYTES
        if end > len(raw):
            break
        rows = np.frombuffer(raw, "<i8", count * 3, rows_at).reshape(-1, 3)
        frames.append((Kind(kind), raw[at + _HEAD.size : rows_at].decode(), rows))
        at = end
    return frames, at


def apply(checker: Checker, frames: Sequence[Frame]) -> bool:
    """Report frames to a checker; return whether the END is among them."""
    for kind, name, rows in frames:
        if kind is Kind.GROUP:
            group, *topics = name.split("\n")
            checker.group(group, topics)
        for stream, first, end in rows.tolist():
            if kind is Kind.SENT:
                checker.sent(name, stream, end)
            elif kind is Kind.ACKNOWLEDGED:
                checker.acknowledged(name, stream, first, end)
            elif kind is Kind.CLOSED:
                checker.closed(stream)
            elif kind is Kind.GIVEN:
                checker.given_run(name, stream, first, end)
    return any(kind is Kind.END for kind, _, _ in frames)


class LedgerFile:
    """A ledger that another process is writing.

    Args:
        path: it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new_frames(self) -> Iterator[Frame]:
        """Return the complete frames that were added since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            frames, used = decode(file.read())
        self._at += used
        yield from frames


def runs_of(streams: NDArray[np.uint64], sequences: NDArray[np.int64]) -> Rows:
    """Return messages in any order as runs of consecutive ones; a repeated one is in two runs."""
    if not len(streams):
        return np.zeros((0, 3), np.int64)
    order = np.lexsort((sequences, streams))
    streams, sequences = streams[order], sequences[order]
    breaks = (np.diff(sequences) != 1) | (streams[1:] != streams[:-1])
    starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.concatenate((starts[1:], [len(streams)])) - 1
    columns = (streams[starts].astype(np.int64), sequences[starts], sequences[ends] + 1)
    return np.stack(columns, axis=1)
