"""The compiled kernel beside NumPy, on complete, torn and hostile bytes: equal results."""

import inspect
import os
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rockoon_format import kernel, numpy_kernel
from rockoon_format.batch import (
    BatchError,
    Columns,
    check_batch,
    decode_columns,
    encode_batch,
    scan,
    stamp_batch,
    with_checksums,
)
from rockoon_format.batch_checking import BatchLayout
from rockoon_format.checksums import crc32
from rockoon_format.columns import OnlyRecord, only_record
from rockoon_format.consume_queue import LogCutter, queue_runs
from rockoon_format.frames import crcs, locate, slices, tags_codes
from rockoon_format.index_entries import index_entries, keys_within
from rockoon_format.record import (
    MAGIC_V1,
    PROPERTY_CRC_ROOM,
    Record,
    RecordError,
    encode_blank,
    encode_host,
    encode_record,
    with_room,
)
from rockoon_format.sequences import encode_sequences, find_sequences
from support.kernels import is_compiled, needs_compiled, of_both, using
from support.random_messages import Messages, batches, many_examples

HOST = encode_host("10.0.0.9", 10911)
# This number of equal records is not checked one by one.
MANY = 25

# A record whose size field is smaller than any record.
TOO_SHORT = (40).to_bytes(4) + MAGIC_V1.to_bytes(4, signed=True) + bytes(100)

bits = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
endings = st.sampled_from(
    [
        b"",
        PROPERTY_CRC_ROOM,
        PROPERTY_CRC_ROOM.replace(b"-", b"7"),
        PROPERTY_CRC_ROOM.replace(b"_", b"-", 1),
        PROPERTY_CRC_ROOM[:-1] + b"\3",
    ]
)


def flipped(data: bytes, harms: list[tuple[float, int]]) -> bytes:
    """Return bytes with some bits flipped; each position is a share of the length."""
    changed = bytearray(data)
    for place, bit in harms:
        changed[int(place * len(changed))] ^= 1 << bit
    return bytes(changed)


def columns_of(found: object) -> dict[str, object]:
    """Return fields of a dataclass; arrays as their type and items."""
    values = {each.name: getattr(found, each.name) for each in fields(found)}  # type: ignore[arg-type]
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def checked(frames: bytes, sizes: object, messages: Messages, limit: int) -> object:
    """Return the layout and its stored form, or the reason why the batch is refused."""
    try:
        layout: BatchLayout = check_batch(
            frames,
            sizes,  # type: ignore[arg-type]
            topic=messages.topic,
            queue_id=messages.queue_id,
            body_bytes_max=limit,
            properties_bytes_max=limit,
            record_bytes_max=100 * limit,
        )
    except BatchError as error:
        return error.reason, error.index, str(error)
    made = []
    for batch in ((frames, layout), with_checksums(frames, layout)):
        stored, entries = stamp_batch(
            *batch,
            first_queue_offset=7,
            first_physical_offset=1 << 40,
            store_timestamp_ms=1_700_000_000_000,
            store_host=HOST,
        )
        made.append((stored.tobytes(), entries.tobytes()))
    return columns_of(layout), made


@needs_compiled
@many_examples
@given(
    batches(6),
    st.lists(bits, max_size=3),
    endings,
    st.sampled_from([1, MANY]),
    st.sampled_from([200, 9, 1000]),
    st.integers(-30, 30),
)
def test_both_kernels_take_the_same_batches_and_store_the_same_bytes(
    messages: Messages,
    harms: list[tuple[float, int]],
    ending: bytes,
    times: int,
    limit: int,
    cut: int,
) -> None:
    for section in range(0, len(messages.sections), 2):
        messages.sections[section] = messages.sections[section] + ending
    frames, sizes = messages.encode()
    frames, sizes = flipped(frames, harms) * times, np.tile(sizes, times)
    by_numpy, by_compiled = of_both(lambda: checked(frames, sizes, messages, limit))
    assert by_compiled == by_numpy
    # Torn: the last record is shorter or longer than its size field.
    sizes = sizes.astype(np.int64)
    sizes[-1] += cut
    torn = frames[: int(sizes.sum())]
    by_numpy, by_compiled = of_both(lambda: checked(torn, sizes, messages, limit))
    assert by_compiled == by_numpy


def encoded(messages: Messages, *, room: bool) -> object:
    """Return the batch, or the reason why it is invalid."""
    try:
        frames, sizes = encode_batch(
            messages.topic,
            messages.queue_id,
            messages.bodies,
            messages.sections,
            np.array(messages.born_ms, np.int64) if room else messages.born_ms[0],
            messages.born_host,
            flags=messages.flags[0] if room else np.array(messages.flags, np.int32),
            sys_flags=messages.sys_flags[0] if room else np.array(messages.sys_flags, np.int32),
            room=room,
        )
    except ValueError as error:
        return str(error)
    return frames, sizes.dtype, sizes.tolist()


@needs_compiled
@many_examples
@given(batches(6), st.booleans(), st.sampled_from([0, 32_760, 32_767, 32_768]))
def test_both_kernels_encode_the_same(messages: Messages, room: bool, padding: int) -> None:
    messages.sections[-1] += bytes(max(padding - len(messages.sections[-1]), 0))
    by_numpy, by_compiled = of_both(lambda: encoded(messages, room=room))
    assert by_compiled == by_numpy


COLUMNS = [
    name for name, value in vars(Columns).items() if isinstance(value, cached_property | property)
]


def decoded(frames: bytes, sizes: NDArray[np.uint32], *, within: bool, compared: bool) -> object:
    """Return every column of the records, or the reason why they are invalid.

    Args:
        within: other bytes surround them.
        compared: damage is queried before.
    """
    bounds = (5, 5 + len(frames)) if within else None
    frames = b"front" + frames + b"behind" if within else frames
    try:
        columns = decode_columns(frames, sizes, bounds, compared=compared)
    except RecordError as error:
        return error.reason, str(error)
    found = {name: getattr(columns, name) for name in COLUMNS}
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    }


def alone(frame: bytes) -> OnlyRecord | None:
    """Return NumPy's columns of a single record."""
    with using(kernel.NUMPY):
        try:
            columns = decode_columns(frame, [len(frame)])
        except RecordError:
            return None
        flags, offsets = columns.sys_flags, columns.queue_offsets
        damaged = len(columns.damaged) == 1
        return OnlyRecord(int(offsets[0]), int(flags[0]), columns.bodies[0], damaged)


def scanned(log: bytes, position: int, end: int, options: dict[str, object]) -> object:
    """Return the result of a scan, and its keys."""
    found = scan(memoryview(log), position, end, **options)  # type: ignore[arg-type]
    keys = index_entries(log, found, 77)
    return columns_of(found), columns_of(keys)


def passed(log: bytes, marks: dict[str, int]) -> tuple[object, object]:
    """Return keys and queue entries of the records in the bytes, the latter of twice as many; None
    if there are other bytes, or the compiled kernel does not decide."""
    if kernel.is_compiled():
        keys = keys_within(log, len(log), 77)
        cutter = LogCutter(marks, 5)
        # An undecided case leaves no result.
        is_cut = cutter.add(log, len(log), 77) and cutter.add(log, len(log), 77 + len(log))
        topics, runs = cutter.taken()
        assert is_cut or not topics
        return keys if keys is None else columns_of(keys), (
            topics,
            columns_of(runs),
        ) if is_cut else None
    found = scan(log + log, 0, 2 * len(log), check_crc=False)
    once = scan(log, 0, len(log), check_crc=False)
    if once.position != len(log):
        return None, None
    floors = np.array([marks.get(topic.decode(errors="replace"), 0) for topic in found.topics])
    physical = found.offsets + 77
    listed = found.has_queue_entry & (physical >= floors[found.topic_numbers])
    runs = queue_runs(found, physical, listed, 5)
    return columns_of(index_entries(log, once, 77)), (found.topics, columns_of(runs))


def stored(messages: Messages, ending: bytes, times: int) -> tuple[bytes, NDArray[np.uint32]]:
    """Return the batch as a broker stores it, some records with a checksum."""
    for section in range(0, len(messages.sections), 2):
        messages.sections[section] += ending
    frames, sizes = messages.encode()
    frames, sizes = frames * times, np.tile(sizes, times)
    try:
        layout = check_batch(
            frames,
            sizes,
            topic=messages.topic,
            queue_id=messages.queue_id,
            body_bytes_max=1 << 20,
            record_bytes_max=1 << 20,
        )
    except BatchError:
        return frames, sizes
    written, _ = stamp_batch(
        frames,
        layout,
        first_queue_offset=0,
        first_physical_offset=0,
        store_timestamp_ms=5,
        store_host=HOST,
    )
    return written.tobytes(), sizes


@needs_compiled
@many_examples
@given(
    batches(5),
    st.lists(bits, max_size=3),
    endings,
    st.sampled_from([1, MANY]),
    st.just(0) | st.integers(0, 200),
    st.sampled_from([b"", bytes(40), encode_blank(40), b"\0\0\1\0" + bytes(36), TOO_SHORT]),
    st.fixed_dictionaries(
        {
            "check_crc": st.booleans(),
            "checksums": st.booleans(),
            "checksums_from": st.sampled_from([None, 0, 500]),
            "with_tag_codes": st.booleans(),
            "records_max": st.sampled_from([1, 7, 4096]),
        }
    ),
)
def test_both_kernels_read_the_same_of_whole_torn_and_damaged_logs(
    messages: Messages,
    harms: list[tuple[float, int]],
    ending: bytes,
    times: int,
    cut: int,
    behind: bytes,
    options: dict[str, object],
) -> None:
    frames, sizes = stored(messages, ending, times)
    frames = flipped(frames, harms)
    for how in ({"within": True, "compared": True}, {"within": False, "compared": False}):
        by_numpy, by_compiled = of_both(lambda how=how: decoded(frames, sizes, **how))  # type: ignore[misc]
        assert by_compiled == by_numpy
    first = frames[: int(sizes[0])]
    around = b"front" + first + b"behind"
    with using(kernel.COMPILED):
        assert only_record(around, 5, 5 + len(first), compared=True) == alone(first)
        assert only_record(around, 5, 6 + len(first), compared=True) is None
    log = b"front" + frames[: len(frames) - cut] + behind
    # Bytes that begin with a record are used without a copy, others are copied.
    for data, at, end in ((log, 5, len(log)), (log, 5, max(len(log) - 7, 5)), (log[5:], 0, None)):
        by_numpy, by_compiled = of_both(
            lambda data=data, at=at, end=end: scanned(data, at, end or len(data), options)  # type: ignore[misc]
        )
        assert by_compiled == by_numpy


@needs_compiled
@many_examples
@given(
    batches(5),
    st.lists(bits, max_size=2),
    endings,
    st.sampled_from([1, MANY]),
    st.sampled_from([0, 0, 1, 60]),
    st.sampled_from([{}, {"T": 500, "TopicTest": 77}]),
)
def test_one_pass_over_a_log_finds_what_a_scan_of_it_says(
    messages: Messages,
    harms: list[tuple[float, int]],
    ending: bytes,
    times: int,
    cut: int,
    marks: dict[str, int],
) -> None:
    frames, _ = stored(messages, ending, times)
    frames = flipped(frames, harms)
    log = frames[: max(len(frames) - cut, 0)]
    (keys, entries), (quick_keys, quick_entries) = of_both(lambda: passed(log, marks))
    # It does not decide about texts that are not UTF-8, and about bytes that are no log.
    assert quick_keys in (None, keys)
    assert quick_entries in (None, entries)
    if (
        log
        and not harms
        and not cut
        and messages.topic.isascii()
        and b"".join(messages.sections).isascii()
    ):
        assert quick_keys == keys
        assert quick_entries == entries


@needs_compiled
@many_examples
@given(batches(5), st.lists(bits, max_size=3), endings, st.integers(0, 1 << 40), st.booleans())
def test_both_kernels_find_the_same_sequences(
    messages: Messages, harms: list[tuple[float, int]], ending: bytes, first: int, cut: bool
) -> None:
    numbers = encode_sequences(7, first, len(messages.sections))
    for at, number in enumerate(numbers):
        messages.sections[at] += number.tobytes()[cut and at % 2 :] + ending
    frames, sizes = messages.encode()
    frames, starts = flipped(frames, harms), np.cumsum(sizes) - sizes
    by_numpy, by_compiled = of_both(lambda: columns_of(find_sequences(frames, starts, sizes)))
    assert by_compiled == by_numpy


@needs_compiled
@given(st.binary(max_size=1000))
def test_both_kernels_have_the_checksum_that_zlib_has(data: bytes) -> None:
    assert of_both(lambda: crc32(data)) == (zlib.crc32(data), zlib.crc32(data))


@needs_compiled
def test_records_longer_than_the_kernel_copies_at_first_are_walked_to_their_end() -> None:
    records = [encode_record(Record(topic=b"T", body=bytes(n))) for n in (1, 1 << 18, 9, 1 << 17)]
    log = b"".join(records) * 3 + bytes(100)
    for records_max in (1, 2, 12, 99):
        by_numpy, by_compiled = of_both(
            lambda most=records_max: scanned(log, 0, len(log), {"records_max": most})  # type: ignore[misc]
        )
        assert by_compiled == by_numpy


@needs_compiled
@given(st.binary(min_size=91, max_size=400), st.lists(st.integers(0, 309), max_size=5))
def test_both_kernels_locate_alike_in_bytes_that_are_no_records(
    data: bytes, starts: list[int]
) -> None:
    at = np.array([start for start in starts if start <= len(data) - 91], np.int64)
    by_numpy, by_compiled = of_both(lambda: columns_of(locate(data, at)))
    assert by_compiled == by_numpy
    lengths = np.minimum(at, len(data) - at)
    for work in (tags_in, crcs, slices):
        by_numpy, by_compiled = of_both(
            lambda work=work: list(work(data, at, lengths))  # type: ignore[misc]
        )
        assert by_compiled == by_numpy


def tags_in(data: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Any:
    """Compute tag codes of pieces as if they were properties."""
    parts = locate(data, np.zeros(len(starts), np.int64))
    return tags_codes(data, replace(parts, properties_starts=starts, properties_lengths=lengths))


@needs_compiled
def test_the_compiled_kernel_answers_itself_for_what_producers_send() -> None:
    messages = Messages(
        topic=b"orders",
        queue_id=3,
        bodies=[bytes(100)] * MANY,
        sections=[with_room(b"TAGS\x01t%d\x02KEYS\x01k\x02" % n) for n in range(MANY)],
        born_ms=[1] * MANY,
        born_host=HOST,
        flags=[0] * MANY,
        sys_flags=[0] * MANY,
    )
    frames, sizes = messages.encode()
    with using(kernel.COMPILED):
        native = kernel.native
    lengths = sizes.astype(np.int64).tobytes()
    assert native.check_batch(frames, lengths, b"orders", 3, 100, 100, 500, 0, False) is not None
    assert native.check_batch(frames, lengths, b"orders", 4, 100, 100, 500, 0, False) is None
    everything = (len(frames), 1 << 20, MANY, True, True, None, True)
    assert native.scan(frames, *everything) is not None
    assert native.decode(frames, lengths, 0, len(frames), True) is not None
    assert native.decode(frames, lengths, 0, len(frames) - 1, True) is None
    assert native.decode(frames, lengths, 0, len(frames) + 1, True) is None
    assert native.decode(frames + b"?", lengths, 0, len(frames) + 1, True) is None
    assert native.only_record(frames, 0, len(frames), True) is None
    assert native.only_record(frames, 0, int(sizes[0]), True) is not None
    assert native.slices(frames, bytes(8), len(frames).to_bytes(8, sys.byteorder)) == [frames]
    assert native.slices(frames, bytes(8), (len(frames) + 1).to_bytes(8, sys.byteorder)) is None
    with pytest.raises(ValueError, match="not the batch"):
        native.stamp_batch(frames[:-1], bytes(8 * MANY), 0, 0, 0, HOST)
    with pytest.raises(ValueError, match="not the batch"):
        native.stamp_batch(frames, bytes(8 * MANY), 0, 0, 0, b"short")


@needs_compiled
def test_both_kernels_have_the_same_functions() -> None:
    with using(kernel.COMPILED):
        compiled = kernel.native
    for name in set(compiled.__all__) - {"INTERFACE", "Window", "http2"}:
        theirs, own = getattr(compiled, name), getattr(numpy_kernel, name)
        if isinstance(own, type):
            methods = {each for each in vars(theirs) if not each.startswith("_")}
            assert methods <= set(vars(own)), name
        elif own is not numpy_kernel.general_path:
            assert [*inspect.signature(own).parameters] == [*inspect.signature(theirs).parameters]


@needs_compiled
def test_lengths_that_are_only_claimed_take_no_memory() -> None:
    claimed = np.full(1_000_000, 91, np.uint32)
    with using(kernel.COMPILED):
        tracemalloc.start()
        with pytest.raises(RecordError):
            decode_columns(bytes(100), claimed)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Some columns of numbers, and not the 128 bytes of a record's fields.
    assert peak_bytes < 40 * len(claimed)


@needs_compiled
def test_pieces_of_negative_lengths_are_left_to_numpy() -> None:
    starts, lengths = np.array([30, 40]), np.array([-50, 3])
    by_numpy, by_compiled = of_both(lambda: slices(bytes(range(100)), starts, lengths))
    assert by_compiled == by_numpy
    assert slices(b"abcdef", np.array([1, 2], np.uint32), np.array([2, 3], np.uint32)) == [
        b"bc",
        b"cde",
    ]


def test_the_environment_chooses_the_kernel() -> None:
    def name(choice: str) -> str:
        code = "from rockoon_format import kernel; print(kernel.name())"
        made = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, kernel.VARIABLE: choice},
            capture_output=True,
            text=True,
            check=False,
        )
        return made.stdout.strip() or made.stderr.strip().splitlines()[-1]

    assert name(kernel.NUMPY) == kernel.NUMPY
    assert name("") == (kernel.COMPILED if is_compiled() else kernel.NUMPY)
    assert name("fast").startswith("ValueError: ROCKOON_KERNEL is 'fast'")
    if not is_compiled():
        assert name(kernel.COMPILED).startswith("ImportError: ROCKOON_KERNEL is compiled")
