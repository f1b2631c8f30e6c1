"""Columns of records for ReadLog and Pull replies, in Arrow's layout; the kernel cuts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.store.log.reading import LogChunk
from rockoon_broker.store.reading.reader import GetResult
from rockoon_core.errors import InvalidArgument
from rockoon_core.wire_fields import bytes_tag, varint
from rockoon_format import kernel
from rockoon_format.frames import IntArray
from rockoon_format.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rockoon_format.record import SYS_FLAG_COMPRESSED
from rockoon_proto.v1 import broker_pb2

# More than the columns of any version so far: a request may name unknown columns.
COLUMNS_MAX = 256

# The columns before it have the numbers of the kernel's fields.
_TOPIC, _BODY = broker_pb2.COLUMN_TOPIC, broker_pb2.COLUMN_BODY
_PROPERTIES: dict[int, bytes] = {
    broker_pb2.COLUMN_KEYS: PROPERTY_KEYS.encode(),
    broker_pb2.COLUMN_TAGS: PROPERTY_TAGS.encode(),
    broker_pb2.COLUMN_UNIQUE_KEY: PROPERTY_UNIQ_KEY.encode(),
}
# Columns with data of the producer, which only checksums protect.
_CHECKED = frozenset({_BODY, *_PROPERTIES})

_READ_LOG_TAG = bytes_tag(broker_pb2.ReadLogReply.COLUMNS_FIELD_NUMBER)
_PULL_TAG = bytes_tag(broker_pb2.PullReply.COLUMNS_FIELD_NUMBER)
_COLUMN_TAG = bytes_tag(broker_pb2.LogColumns.COLUMNS_FIELD_NUMBER)
_PART_TAGS = [
    bytes_tag(getattr(broker_pb2.LogColumnValues, f"{name}_FIELD_NUMBER"))
    for name in ("VALUES", "BOUNDS", "VALIDITY")
]


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The columns that a request names; at least one."""

    numbers: Sequence[int]

    @classmethod
    def of(
        cls, request: broker_pb2.ReadLogRequest | broker_pb2.PullRequest
    ) -> "WantedColumns | None":
        """Return the columns of a request; None if the reply must have whole records.

        Raises:
            InvalidArgument: a column is named twice, or there are too many.
        """
        if len(request.columns) > COLUMNS_MAX:
            raise InvalidArgument(reason=f"{len(request.columns)} columns, more than {COLUMNS_MAX}")
        numbers = list(request.columns)
        if len(set(numbers)) < len(numbers):
            raise InvalidArgument(reason="a column is named twice")
        # A column of a newer version: its client understands records too.
        is_known = all(broker_pb2.COLUMN_PHYSICAL_OFFSET <= each <= _BODY for each in numbers)
        return cls(numbers) if numbers and is_known else None

    def of_chunk(self, chunk: LogChunk, kept: NDArray[np.bool_]) -> list[bytes] | None:
        """Return the columns of some records as pieces of a serialised ReadLogReply.

        None if their reader must have the whole records: see `_cut`, or a record has another
        physical offset than its own.

        Args:
            kept: mask of the records, bool[n].
        """
        records = chunk.records
        starts = records.offsets[kept]
        if (records.physical_offsets[kept] != chunk.start + starts).any():
            return None
        return self._cut(chunk.frames, starts, records.sizes[kept], _READ_LOG_TAG)

    def of_messages(self, found: GetResult) -> list[bytes] | None:
        """Return the columns of a queue's messages as pieces of a serialised PullReply.

        None if there are no messages, or their reader must have the whole records; see `_cut`.
        """
        if not found.count:
            return None
        sizes = found.lengths.astype(np.int64)
        return self._cut(found.frames, np.cumsum(sizes) - sizes, sizes, _PULL_TAG)

    def _cut(
        self, frames: bytes, starts: IntArray, sizes: IntArray, tag: bytes
    ) -> list[bytes] | None:
        """Return the columns of records as pieces of a serialised reply.

        None if their reader must have the whole records: one is damaged or compressed, a text is
        not UTF-8, or there is no compiled kernel.

        Args:
            frames: bytes with the records.
            starts, sizes: position in `frames` and size in bytes of each record, int64[n].
            tag: of the field of the reply.
        """
        window = kernel.native.Window.at(frames, starts.tobytes(), sizes.tobytes())
        if window is None:
            return None
        if _BODY in self.numbers and window.sys_flags() & SYS_FLAG_COMPRESSED:
            return None
        if not _CHECKED.isdisjoint(self.numbers) and window.damaged():
            return None
        found = self._columns(window)
        return None if found is None else _batch(tag, len(starts), found)

    def _columns(self, window: Any) -> list[list[Any]] | None:
        """Return the buffers of each column, as fields of LogColumnValues; None if a text is not
        UTF-8."""
        fields = [each for each in self.numbers if each < _TOPIC]
        named = [each for each in self.numbers if each in _PROPERTIES]
        laid, topics, bodies, properties, _ = window.columns(
            fields,
            _TOPIC in self.numbers,
            _BODY in self.numbers,
            [_PROPERTIES[each] for each in named],
            False,
        )
        found = {number: [column] for number, column in zip(fields, laid, strict=True)}
        texts = dict(zip(named, properties, strict=True))
        if topics is not None:
            texts[_TOPIC] = topics
        if not all(is_utf8 for _, _, is_utf8, _ in texts.values()):
            return None
        if bodies is not None:
            texts[_BODY] = bodies
        for number, (bounds, content, _, valid) in texts.items():
            found[number] = [content, bounds] if valid is None else [content, bounds, valid]
        return [found[number] for number in self.numbers]


def _batch(tag: bytes, count: int, columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Return a LogColumns as pieces of a serialised reply; protobuf would copy them twice.

    Args:
        tag: of the field of the reply.
        count: number of records.
        columns: buffers of each column, as fields of LogColumnValues.
    """
    pieces = [broker_pb2.LogColumns(records=count).SerializeToString()]
    for buffers in columns:
        parts: list[bytes] = []
        for part_tag, buffer in zip(_PART_TAGS, buffers, strict=False):
            parts += [part_tag + varint(len(buffer)), bytes(buffer)]
        pieces += [_COLUMN_TAG + varint(sum(map(len, parts))), *parts]
    return [tag + varint(sum(map(len, pieces))), *pieces]
