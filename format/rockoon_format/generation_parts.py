"""Parts of a generation: records back to back, and the entries with their positions.

The `.records` file contains only CommitLog records, byte for byte, in order of (topic, queue, queue
offset). The `.entries` file is mapped, not parsed: little-endian columns that start at multiples of
eight bytes, with zeros between them.

    bytes    field                          then, of t topics, s slices, n rows, k keys
    0-7      magic                          t x (length u16, UTF-8)    topics, in byte order
    8-11     version, u32                   i64[s + 1]  slice_starts
    12-15    topics t, u32                  i64[n]      queue_offsets
    16-19    slices s, u32                  i64[n]      positions
    20-23    bytes of all topics, u32       i64[n]      store_timestamps_ms
    24-31    rows n, u64                    i64[n]      tag_codes
    32-39    keys k, u64                    i64[n]      physical_offsets
                                            i64[n]      kept_since_ms
                                            u32[n]      sizes
                                            u32[s]      slice_topics
                                            u32[s]      slice_queues
                                            i32[k]      key_hashes
                                            u32[k]      key_rows

The `.superseded` file has one bit for each row, the lowest bit of the first byte for row 0: 1 if a
later record superseded the row's record, which readers then leave out. Bits after the last row are
zero. A part without superseded records does not have the file.

The files have no checksums; the manifest of their generation has them.

The entries can be computed from the records, or compared with them.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rockoon_format.index_entries import key_hashes
from rockoon_format.record import RECORD_BYTES_MIN, Buffer
from rockoon_format.scan import Scan, ScanEnd, scan

# Positions in a part must fit into a mapping and an int on every platform.
PART_BYTES_MAX = 2**31 - 1

_MAGIC = b"RKPARTEN"
_VERSION = 1
_HEAD = struct.Struct("<8sIIIIQQ")
_TOPIC_LENGTH = struct.Struct("<H")
_ALIGNMENT = 8
assert _HEAD.size == 40
assert _HEAD.size % _ALIGNMENT == 0

_ROW_COLUMNS = (
    "queue_offsets",
    "positions",
    "store_timestamps_ms",
    "tag_codes",
    "physical_offsets",
    "kept_since_ms",
)


class GenerationError(ValueError):
    """A generation, or a file of one, that is not valid; the message names the position."""


@dataclass(frozen=True, slots=True)
class EntriesColumn:
    """One column of an `.entries` file."""

    start: int
    """Position of its first byte."""
    dtype: np.dtype[Any]
    count: int

    def bytes_of(self, rows: slice) -> slice:
        """Return the bytes of the given items."""
        width = self.dtype.itemsize
        return slice(self.start + width * rows.start, self.start + width * rows.stop)


@dataclass(frozen=True, slots=True)
class EntriesLayout:
    """Positions of topics and columns in an `.entries` file, for partial reads."""

    HEAD_BYTES: ClassVar[int] = _HEAD.size
    """Length of the file's head, which determines the layout."""

    topics: int
    """Number of topics."""
    names: slice
    """Bytes of the topics' names."""
    columns: Mapping[str, EntriesColumn]
    """Columns by the names of `PartEntries`, in the order of the file."""
    file_bytes: int

    @classmethod
    def of(cls, head: Buffer) -> "EntriesLayout":
        """Read a file's head; raises GenerationError for another format or version."""
        view = memoryview(head)
        if len(view) < _HEAD.size:
            raise GenerationError(f"{len(view)} bytes are too few for a part's entries")
        magic, version, topics, slices, names_bytes, rows, keys = _HEAD.unpack_from(view)
        if magic != _MAGIC:
            raise GenerationError(f"{bytes(magic)!r} does not begin a part's entries")
        if version != _VERSION:
            raise GenerationError(f"entries of version {version}; {_VERSION} is known")
        names = slice(_HEAD.size, _HEAD.size + names_bytes)
        at = _aligned(names.stop)
        columns = {}
        for name, dtype, count in _layout(slices, rows, keys):
            columns[name] = EntriesColumn(at, np.dtype(dtype), count)
            at = _aligned(at + columns[name].dtype.itemsize * count)
        return cls(topics, names, columns, at)

    def decode_topics(self, names: bytes) -> tuple[str, ...]:
        """Decode the topics' names, in order; raises GenerationError if they are not valid."""
        return _decode_topics(names, self.topics)


@dataclass(frozen=True, slots=True, eq=False)
class PartEntries:
    """Position and fields of each record of a part; n rows by (topic, queue, queue offset).

    A slice is the rows of one queue; each slice has rows. Columns may be read-only views of a
    file's bytes.
    """

    topics: tuple[str, ...]
    """Topics of the slices, in byte order."""
    slice_topics: NDArray[np.uint32]
    """u4[s]: index in `topics` of each slice."""
    slice_queues: NDArray[np.uint32]
    """u4[s]: queue id of each slice."""
    slice_starts: NDArray[np.int64]
    """i8[s + 1]: first row of each slice; the last item is n."""
    queue_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Byte of the `.records` file at which each record starts."""
    store_timestamps_ms: NDArray[np.int64]
    tag_codes: NDArray[np.int64]
    """As in a ConsumeQueue's entry."""
    physical_offsets: NDArray[np.int64]
    """Position of the record in the CommitLog."""
    kept_since_ms: NDArray[np.int64]
    """Creation time of the first generation that contained the record, epoch milliseconds."""
    sizes: NDArray[np.uint32]
    """u4[n]: bytes of each record."""
    key_hashes: NDArray[np.int32]
    """i4[k], ascending: `hashes.index_key_hash` of `topic#key`, for UNIQ_KEY and each of KEYS."""
    key_rows: NDArray[np.uint32]
    """u4[k]: the row of each hash; ascending where hashes are equal."""
    superseded: NDArray[np.bool_] | None = None
    """bool[n]: rows that readers leave out; None if there are none. Not in the `.entries` file."""

    def __len__(self) -> int:
        """Number of rows, superseded ones too."""
        return len(self.queue_offsets)

    @property
    def records(self) -> int:
        """Number of rows that are not superseded."""
        gone = 0 if self.superseded is None else int(np.count_nonzero(self.superseded))
        return len(self) - gone

    def with_superseded(self, content: Buffer) -> "PartEntries":
        """Return the same entries with the rows of a `.superseded` file. Raises GenerationError:
        the file belongs to a part with another number of rows."""
        bits = np.frombuffer(content, np.uint8)
        if len(bits) != superseded_bytes(len(self)):
            raise GenerationError(f"{len(bits)} bytes of superseded rows for {len(self)} rows")
        rows = np.unpackbits(bits, bitorder="little").view(np.bool_)
        if rows[len(self) :].any():
            raise GenerationError(f"a superseded row after the last of {len(self)}")
        return replace(self, superseded=rows[: len(self)])

    def kept_rows(self, rows: slice | None = None) -> NDArray[np.int64]:
        """Return the numbers of the rows that are not superseded, ascending. `rows`: the rows to
        look at, with both bounds; all if None."""
        start, stop = (0, len(self)) if rows is None else (rows.start, rows.stop)
        if self.superseded is None:
            return np.arange(start, stop)
        return start + np.flatnonzero(~self.superseded[start:stop])

    def next_kept(self, row: int) -> int:
        """Return the first row from `row` on that is not superseded; one must exist."""
        # `argmin` of booleans ends at the first False.
        return row if self.superseded is None else row + int(self.superseded[row:].argmin())

    def last_kept(self, row: int) -> int:
        """Return the last row up to `row` that is not superseded; one must exist."""
        return row if self.superseded is None else row - int(self.superseded[row::-1].argmin())

    @property
    def records_bytes(self) -> int:
        """Length of the `.records` file."""
        return int(self.positions[-1]) + int(self.sizes[-1]) if len(self) else 0

    def slices(self) -> Iterator[tuple[str, int, slice]]:
        """Topic, queue id and rows of each slice, in order."""
        starts = self.slice_starts.tolist()
        numbers, queues = self.slice_topics.tolist(), self.slice_queues.tolist()
        for number, queue, first, last in zip(numbers, queues, starts, starts[1:], strict=False):
            yield self.topics[number], queue, slice(first, last)

    def rows_with_key(self, key_hash: int) -> NDArray[np.uint32]:
        """Rows of kept records that have a key with this hash, ascending; may contain
        duplicates.
        """
        first = int(np.searchsorted(self.key_hashes, np.int32(key_hash), "left"))
        last = int(np.searchsorted(self.key_hashes, np.int32(key_hash), "right"))
        rows = self.key_rows[first:last]
        return rows if self.superseded is None else rows[~self.superseded[rows]]

    def row_at(self, physical_offset: int) -> int | None:
        """Return the row of the kept record with this position in the log; None if there is none.

        Physical offsets ascend within a slice, so all slices are searched in parallel.
        """
        low, ends = self.slice_starts[:-1].copy(), self.slice_starts[1:]
        high = ends.copy()
        while (low < high).any():
            middle = (low + high) // 2
            below = low < high
            below &= self.physical_offsets[np.minimum(middle, len(self) - 1)] < physical_offset
            high = np.where(below, high, np.minimum(middle, high))
            low = np.where(below, middle + 1, low)
        found = low[low < ends]
        found = found[self.physical_offsets[found] == physical_offset]
        if self.superseded is not None:
            found = found[~self.superseded[found]]
        return int(found[0]) if len(found) else None

    def encode(self) -> bytes:
        """Return the `.entries` file; raises GenerationError if they are not valid (see
        `check`)."""
        self.check()
        names = b"".join(_encode_topic(topic) for topic in self.topics)
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            len(self.topics),
            len(self.slice_topics),
            len(names),
            len(self),
            len(self.key_hashes),
        )
        pieces = [head, names, bytes(-len(names) % _ALIGNMENT)]
        for name, dtype, count in _layout(len(self.slice_topics), len(self), len(self.key_hashes)):
            column = np.ascontiguousarray(getattr(self, name), dtype)
            pieces.append(column.tobytes())
            pieces.append(bytes(-count * column.itemsize % _ALIGNMENT))
        return b"".join(pieces)

    @classmethod
    def decode(cls, buffer: Buffer) -> "PartEntries":
        """View the bytes of an `.entries` file, without copying columns. `buffer`: the whole file;
        wrap an mmap in a memoryview. The columns refer to it. Raises GenerationError: another
        format or version, a wrong length, or rows, slices or keys that are out of order."""
        view = memoryview(buffer)
        layout = EntriesLayout.of(view)
        if layout.file_bytes != len(view):
            raise GenerationError(
                f"entries of {len(view)} bytes, and {layout.file_bytes} by their counts"
            )
        at = layout.names.stop
        found: dict[str, Any] = {}
        for name, column in layout.columns.items():
            _check_padding(view[at : column.start])
            found[name] = np.frombuffer(view, column.dtype, column.count, column.start)
            at = column.start + found[name].nbytes
        _check_padding(view[at:])
        topics = layout.decode_topics(bytes(view[layout.names]))
        entries = cls(topics=topics, **found)
        entries.check()
        return entries

    def check(self) -> None:
        """Raise GenerationError if rows, slices or keys are out of order or out of bounds."""
        self._check_lengths()
        self._check_slices()
        ends = self.positions + self.sizes
        _refuse_rows(self.sizes < RECORD_BYTES_MIN, self, "is smaller than any record")
        _refuse_rows(
            self.positions != np.append(0, ends[:-1])[: len(ends)],
            self,
            "does not start where the one before ends",
        )
        if self.records_bytes > PART_BYTES_MAX:
            raise GenerationError(
                f"a part of {self.records_bytes} bytes, more than {PART_BYTES_MAX}"
            )
        _refuse_rows(
            (self.queue_offsets < 0) | (self.physical_offsets < 0), self, "has a negative offset"
        )
        if len(self):
            # Within a slice, queue offsets and physical offsets ascend.
            same = np.ones(len(self), np.bool_)
            same[self.slice_starts[:-1]] = False
            late = np.zeros(len(self), np.bool_)
            late[1:] = self.queue_offsets[1:] <= self.queue_offsets[:-1]
            late[1:] |= self.physical_offsets[1:] <= self.physical_offsets[:-1]
            _refuse_rows(late & same, self, "does not follow the one before in its queue")
        hashes, rows = self.key_hashes, self.key_rows
        unordered = hashes[1:] < hashes[:-1]
        unordered |= (hashes[1:] == hashes[:-1]) & (rows[1:] < rows[:-1])
        if unordered.any() or (hashes < 0).any() or (rows >= len(self)).any():
            raise GenerationError("the keys' hashes are not in order, or name no row")

    def _check_lengths(self) -> None:
        lengths = {len(getattr(self, name)) for name in (*_ROW_COLUMNS, "sizes")}
        if (
            len(lengths) != 1
            or len(self.slice_topics) != len(self.slice_queues)
            or len(self.slice_starts) != len(self.slice_topics) + 1
            or len(self.key_hashes) != len(self.key_rows)
        ):
            raise GenerationError("columns of different lengths")

    def _check_slices(self) -> None:
        if any(late <= early for early, late in pairwise(self.topics)):
            raise GenerationError(f"topics out of order: {', '.join(self.topics)}")
        starts = self.slice_starts
        if starts[0] != 0 or starts[-1] != len(self) or (starts[1:] <= starts[:-1]).any():
            raise GenerationError("the slices do not divide the rows")
        if set(self.slice_topics.tolist()) != set(range(len(self.topics))):
            raise GenerationError("the slices are not those of the topics")
        topics, queues = self.slice_topics, self.slice_queues
        late = topics[1:] < topics[:-1]
        late |= (topics[1:] == topics[:-1]) & (queues[1:] <= queues[:-1])
        if late.any():
            row = int(starts[int(late.argmax()) + 1])
            byte = int(self.positions[row])
            raise GenerationError(f"byte {byte}: the record does not follow in (topic, queue)")


def superseded_bytes(rows: int) -> int:
    """Length of the `.superseded` file of a part with this number of rows."""
    return -(-rows // 8)


def encode_superseded(rows: NDArray[np.bool_]) -> bytes:
    """Return the `.superseded` file; see `PartEntries.superseded`."""
    return np.packbits(rows, bitorder="little").tobytes()


def _layout(slices: int, rows: int, keys: int) -> list[tuple[str, str, int]]:
    """Name, type and number of items of each column of the file, in order."""
    return [
        ("slice_starts", "<i8", slices + 1),
        *((name, "<i8", rows) for name in _ROW_COLUMNS),
        ("sizes", "<u4", rows),
        ("slice_topics", "<u4", slices),
        ("slice_queues", "<u4", slices),
        ("key_hashes", "<i4", keys),
        ("key_rows", "<u4", keys),
    ]


def _aligned(count: int) -> int:
    return count + -count % _ALIGNMENT


def _check_padding(between: memoryview) -> None:
    if any(between):
        raise GenerationError("the padding between two columns is not zero")


def _encode_topic(topic: str) -> bytes:
    name = topic.encode()
    return _TOPIC_LENGTH.pack(len(name)) + name


def _decode_topics(names: bytes, count: int) -> tuple[str, ...]:
    topics = []
    at = 0
    try:
        for _ in range(count):
            (length,) = _TOPIC_LENGTH.unpack_from(names, at)
            at += _TOPIC_LENGTH.size
            topics.append(names[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise GenerationError(f"the names of the topics: {error}") from error
    if at != len(names):
        raise GenerationError(f"the names of the topics take {at} bytes, not {len(names)}")
    return tuple(topics)


def _refuse_rows(wrong: NDArray[np.bool_], entries: PartEntries, fault: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise GenerationError(f"byte {entries.positions[row]} (row {row}): the record {fault}")


_RECORDS_PER_SCAN = 65_536
_KEYS_STEP = 1 << 20


def part_entries(records: Buffer, kept_since_ms: ArrayLike) -> PartEntries:
    """Compute the entries of a part from its records.

    Args:
        records: the whole `.records` file; wrap an mmap in a memoryview. Read once, in chunks.
        kept_since_ms: int64[n], see `PartEntries`.

    Raises:
        GenerationError: a record is damaged, out of order, or of a kind that no queue lists; the
            text names its byte. Or the length of `kept_since_ms` is not the number of records.
    """
    view = memoryview(records)
    if len(view) > PART_BYTES_MAX:
        raise GenerationError(f"a part of {len(view)} bytes, more than {PART_BYTES_MAX}")
    kept = np.array(kept_since_ms, "<i8")
    topics: dict[bytes, int] = {}
    scans: list[Scan] = []
    numbers: list[NDArray[np.int64]] = []
    hashes: list[NDArray[np.int64]] = []
    rows: list[NDArray[np.int64]] = []
    count = 0
    for found in _scans(view):
        known = [topics.setdefault(topic, len(topics)) for topic in found.topics]
        numbers.append(np.array(known, np.int64)[found.topic_numbers])
        keyed, key_hash = _keys(view, found)
        rows.append(keyed + count)
        hashes.append(key_hash)
        scans.append(found)
        count += found.count
    if kept.shape != (count,):
        raise GenerationError(f"{count} records, and {kept.size} values of kept_since_ms")
    all_hashes = _joined(hashes, "<i4")
    order = np.argsort(all_hashes, kind="stable")
    ranks = np.argsort(np.argsort(np.array(list(topics), object), kind="stable"), kind="stable")
    topic_numbers = ranks[_joined(numbers, np.int64)]
    queue_ids = _joined([found.queue_ids for found in scans], np.int64)
    if (queue_ids < 0).any():
        raise GenerationError("a record has a negative queue id")
    starts = _slice_starts(topic_numbers, queue_ids)
    entries = PartEntries(
        topics=tuple(topic.decode() for topic in sorted(topics)),
        slice_topics=topic_numbers[starts].astype("<u4"),
        slice_queues=queue_ids[starts].astype("<u4"),
        slice_starts=np.append(starts, count).astype("<i8"),
        queue_offsets=_joined([found.queue_offsets for found in scans], "<i8"),
        positions=_joined([found.offsets for found in scans], "<i8"),
        store_timestamps_ms=_joined([found.store_timestamps_ms for found in scans], "<i8"),
        tag_codes=_joined([found.tag_codes for found in scans], "<i8"),
        physical_offsets=_joined([found.physical_offsets for found in scans], "<i8"),
        kept_since_ms=kept,
        sizes=_joined([found.sizes for found in scans], "<u4"),
        key_hashes=all_hashes[order],
        key_rows=_joined(rows, "<u4")[order],
    )
    entries.check()
    return entries


def check_part(records: Buffer, entries: PartEntries) -> None:
    """Compare entries with their records; checks the CRC of every record.

    Args:
        records: the whole `.records` file.
        entries: the content of its `.entries` file; only `kept_since_ms` is not checked.

    Raises:
        GenerationError: the records are damaged, or the entries differ; the text names the
            position.
    """
    for _ in part_checks(records, entries):
        pass


def part_checks(records: Buffer, entries: PartEntries) -> Iterator[int]:
    """`check_part` in steps of some MiB; yields the position up to which the part is right.

    Needs the memory of one step.
    """
    entries.check()
    numbers = {topic.encode(): number for number, topic in enumerate(entries.topics)}
    row = keys = fingerprint = 0
    for found in _scans(memoryview(records)):
        end = row + found.count
        if end > len(entries):
            byte = int(found.offsets[len(entries) - row])
            raise GenerationError(f"byte {byte}: a record without an entry")
        rows = np.arange(row, end)
        which = np.searchsorted(entries.slice_starts, rows, "right") - 1
        topics = np.array([numbers.get(topic, -1) for topic in found.topics], np.int64)
        for name, stated, true in (
            ("position", entries.positions[row:end], found.offsets),
            ("size", entries.sizes[row:end], found.sizes),
            ("topic", entries.slice_topics[which], topics[found.topic_numbers]),
            ("queue", entries.slice_queues[which], found.queue_ids),
            ("queue offset", entries.queue_offsets[row:end], found.queue_offsets),
            ("physical offset", entries.physical_offsets[row:end], found.physical_offsets),
            ("store time", entries.store_timestamps_ms[row:end], found.store_timestamps_ms),
            ("tag code", entries.tag_codes[row:end], found.tag_codes),
        ):
            if (stated != true).any():
                index = int((stated != true).argmax())
                raise GenerationError(
                    f"byte {found.offsets[index]}: the {name} of the record differs "
                    f"from row {row + index}"
                )
        keyed, hashes = _keys(memoryview(records), found)
        keys += len(keyed)
        fingerprint += _fingerprint(hashes, keyed + row)
        row = end
        yield found.position
    if row != len(entries):
        raise GenerationError(f"{len(entries)} entries, and {row} records")
    stated_fingerprint = sum(
        _fingerprint(
            entries.key_hashes[at : at + _KEYS_STEP], entries.key_rows[at : at + _KEYS_STEP]
        )
        for at in range(0, len(entries.key_hashes), _KEYS_STEP)
    )
    if (keys, fingerprint % 2**64) != (len(entries.key_hashes), stated_fingerprint % 2**64):
        raise GenerationError("the keys' hashes do not match the records")


def _fingerprint(hashes: NDArray[Any], rows: NDArray[Any]) -> int:
    """Hash of a set of pairs: the sum of the pairs, each mixed as in SplitMix64."""
    mixed = hashes.astype(np.uint64) << np.uint64(32) | rows.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def _keys(view: memoryview, found: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Record number and hash of each key of some records."""
    start = int(found.offsets[0])
    return key_hashes(
        np.frombuffer(view[start : found.position], np.uint8),
        found.properties_starts - start,
        found.properties_lengths,
        found.sys_flags,
        [_topic_text(topic, found) for topic in found.topics],
        found.topic_numbers,
    )


def _scans(view: memoryview) -> Iterator[Scan]:
    """Yield the records, checked, in chunks of at least one."""
    at = 0
    while at < len(view):
        found = scan(view, at, len(view), records_max=_RECORDS_PER_SCAN)
        if found.end not in (ScanEnd.LIMIT, ScanEnd.END):
            raise GenerationError(f"byte {found.position}: not a whole record: {found.end.value}")
        if not found.has_queue_entry.all():
            odd = int(found.offsets[int(found.has_queue_entry.argmin())])
            raise GenerationError(f"byte {odd}: a record that no queue lists")
        yield found
        at = found.position


def _slice_starts(
    topic_numbers: NDArray[np.int64], queue_ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows at which the topic or queue changes."""
    other = np.ones(len(queue_ids), np.bool_)
    other[1:] = (topic_numbers[1:] != topic_numbers[:-1]) | (queue_ids[1:] != queue_ids[:-1])
    return np.flatnonzero(other)


def _joined(columns: Sequence[NDArray[np.int64]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, np.int64), *columns]).astype(dtype, copy=False)


def _topic_text(topic: bytes, found: Scan) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise GenerationError(f"chunk at byte {found.offsets[0]}: a topic is not UTF-8") from error
