"""The compiled kernel beside NumPy, on whole, torn and hostile bytes: both say the same."""

import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format import kernel
from rockoon_format.batch import BatchError, check_batch, stamp_batch, with_checksums
from rockoon_format.batch_layout import BatchLayout
from rockoon_format.record import PROPERTY_CRC_ROOM, encode_host, with_room
from support.kernels import is_compiled, needs_compiled, of_both
from support.random_messages import Messages, batches, many_examples

HOST = encode_host("10.0.0.9", 10911)
# So many of the same records are not checked one by one.
MANY = 25

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
    """Some bits flipped, each at a part of the way and with a number in its byte."""
    changed = bytearray(data)
    for place, bit in harms:
        changed[int(place * len(changed))] ^= 1 << bit
    return bytes(changed)


def columns_of(found: object) -> dict[str, object]:
    """Fields of a dataclass; arrays as their type and items."""
    values = {each.name: getattr(found, each.name) for each in fields(found)}  # type: ignore[arg-type]
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def checked(frames: bytes, sizes: object, messages: Messages, limit: int) -> object:
    """The layout and what is stored of it, or why the batch is refused."""
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
    # Torn: the last record is shorter or longer than it is said to be.
    sizes = sizes.astype(np.int64)
    sizes[-1] += cut
    torn = frames[: int(sizes.sum())]
    by_numpy, by_compiled = of_both(lambda: checked(torn, sizes, messages, limit))
    assert by_compiled == by_numpy


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
    native = kernel.chosen(kernel.COMPILED)
    assert native is not None
    lengths = sizes.astype(np.int64).tobytes()
    assert native.check_batch(frames, lengths, b"orders", 3, 100, 100, 500, 0, False) is not None
    assert native.check_batch(frames, lengths, b"orders", 4, 100, 100, 500, 0, False) is None
    with pytest.raises(ValueError, match="not the batch"):
        native.stamp_batch(frames[:-1], bytes(8 * MANY), 0, 0, 0, HOST)
    with pytest.raises(ValueError, match="not the batch"):
        native.stamp_batch(frames, bytes(8 * MANY), 0, 0, 0, b"short")


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
