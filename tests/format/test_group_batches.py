"""Several batches in one call equal one after another, and messages equal their records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rockoon_format import kernel
from rockoon_format.batch import (
    BatchError,
    GivenBatch,
    GroupAppendRules,
    check_batch,
    encode_batch,
    stamp_batch,
    stamp_batches,
)
from rockoon_format.batch_checking import SYS_FLAGS_ALLOWED
from rockoon_format.batch_encoding import (
    Envelope,
    FirstSequence,
    OwnProperties,
    encode_messages,
)
from rockoon_format.index_entries import index_entries
from rockoon_format.record import PROPERTY_CRC_ROOM, encode_host
from rockoon_format.scan import scan
from rockoon_format.sequences import encode_sequences
from rockoon_proto.v1.broker_pb2 import AppendRequest
from support.kernels import BOTH, needs_compiled, of_both, using
from support.random_messages import Messages, batches, bodies, hosts, many_examples, sections

HOST = encode_host("10.0.0.9", 10911)
FIRST_OFFSET = 1 << 40
NOW_MS = 1_700_000_000_000
LIMITS = {"body_bytes_max": 150, "properties_bytes_max": 300, "record_bytes_max": 5000}
ALL_FLAGS = {"sys_flags_allowed": SYS_FLAGS_ALLOWED}

bits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=1)


def alone(
    batch: GivenBatch, first: int, offset: int, *, with_room: bool
) -> tuple[bytes, bytes] | None:
    """Return bytes and entries of a batch that is appended alone; None if it is refused."""
    if len(batch.lengths) % 4:
        return None
    if kernel.is_compiled():
        sizes = np.frombuffer(batch.lengths, "<u4").astype(np.int64).tobytes()
        rules = (batch.topic.encode(), batch.queue_id, *LIMITS.values(), SYS_FLAGS_ALLOWED, False)
        # Batches that it leaves to NumPy, such as tags that are not UTF-8, are left out here.
        if kernel.native.check_batch(batch.frames, sizes, *rules) is None:
            return None
    try:
        layout = check_batch(
            batch.frames,
            np.frombuffer(batch.lengths, "<u4"),
            topic=batch.topic.encode(),
            queue_id=batch.queue_id,
            **LIMITS,
        )
    except BatchError:
        return None
    if with_room and not layout.has_room.all():
        return None
    stored, entries = stamp_batch(
        batch.frames,
        layout,
        first_queue_offset=first,
        first_physical_offset=offset,
        store_timestamp_ms=NOW_MS,
        store_host=HOST,
    )
    return stored.tobytes(), entries.tobytes()


@pytest.mark.parametrize("choice", BOTH)
@many_examples
@given(
    st.lists(st.tuples(batches(4), bits, st.integers(-1, 1)), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_batches_in_one_go_are_stored_as_one_after_the_other(
    choice: str,
    several: list[tuple[Messages, list[tuple[float, int]], int]],
    with_room: bool,
    is_repeated: bool,
) -> None:
    given_batches: list[GivenBatch] = []
    for number, (messages, harms, cut) in enumerate(several):
        with_rooms = [section + PROPERTY_CRC_ROOM for section in messages.sections[::2]]
        messages.sections[::2] = with_rooms
        frames, sizes = messages.encode()
        harmed = bytearray(frames)
        for place, bit in harms:
            harmed[int(place * len(harmed))] ^= 1 << bit
        lengths = sizes.astype("<u4").tobytes()
        lengths = lengths + b"\1" if cut > 0 else lengths[: len(lengths) + 4 * cut]
        topic = messages.topic.decode()
        given_batches.append(
            GivenBatch(bytes(harmed), lengths, topic, messages.queue_id, 10 * number)
        )
        if cut == 0:
            one = given_batches[-1]
            within = (3, 3 + len(harmed))
            given_batches[-1] = one._replace(source=b"abc" + one.source + b"d", bounds=within)
    if is_repeated:
        given_batches *= 2
    expected, stored = [], b""
    # Batches of one queue follow each other in it.
    following: dict[tuple[str, int], int] = {}
    rules = GroupAppendRules(**LIMITS, **ALL_FLAGS, with_room=with_room, store_host=HOST)
    with using(choice):
        for batch in given_batches:
            queue = (batch.topic, batch.queue_id)
            first = following.get(queue, batch.next_queue_offset)
            made = alone(batch, first, FIRST_OFFSET + len(stored), with_room=with_room)
            following[queue] = first if made is None else first + len(batch.lengths) // 4
            expected.append(None if made is None else made[1])
            stored += b"" if made is None else made[0]
    with using(choice):
        group = stamp_batches(
            given_batches,
            rules,
            with_keys=True,
            first_physical_offset=FIRST_OFFSET,
            store_timestamp_ms=NOW_MS,
        )
    if group.keys is not None:
        records = scan(stored, 0, len(stored), check_crc=False)
        keys = index_entries(stored, records, FIRST_OFFSET)
        assert group.keys == (keys.hashes.tobytes(), keys.offsets.tobytes())
    assert bytes(group.stored) == stored
    assert group.entries == expected


@pytest.mark.parametrize("choice", BOTH)
def test_no_batches_and_empty_ones_leave_nothing(choice: str) -> None:
    with using(choice):
        for given_batches in ([], [GivenBatch(b"", b"", "T", 0, 0)] * 2):
            group = stamp_batches(
                given_batches,
                GroupAppendRules(**LIMITS, **ALL_FLAGS, with_room=True, store_host=HOST),
                first_physical_offset=0,
                store_timestamp_ms=0,
            )
            assert bytes(group.stored) == b""
            assert group.entries == [None] * len(given_batches)


@many_examples
@given(
    st.lists(st.tuples(bodies, st.none() | st.tuples(sections, sections)), min_size=1, max_size=40),
    st.none() | st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**48 - 100)),
    hosts,
    st.sampled_from([b"T", b"t" * 127, b"u" * 128]),
    st.booleans(),
    st.sampled_from([0, 33_000]),
)
@needs_compiled
def test_messages_are_the_records_that_their_properties_would_make(
    messages: list[tuple[bytes, tuple[bytes, bytes] | None]],
    numbers: tuple[int, int] | None,
    host: bytes,
    topic: bytes,
    packed: bool,
    padding: int,
) -> None:
    ids = [b"%032d" % number for number in range(len(messages))]
    extras = {index: own for index, (_, own) in enumerate(messages) if own is not None}
    if 0 in extras:
        extras[0] = (extras[0][0] + bytes(padding), extras[0][1])
    first = None if numbers is None else FirstSequence(*numbers)
    behind = (
        [b""] * len(ids)
        if first is None
        else [each.tobytes() for each in encode_sequences(*first, len(ids))]
    )
    properties = [
        extras.get(index, (b"", b""))[0]
        + b"UNIQ_KEY\1"
        + own
        + b"\2"
        + extras.get(index, (b"", b""))[1]
        + behind[index]
        for index, own in enumerate(ids)
    ]
    flags = np.arange(len(ids), dtype=np.int32) if packed else 0
    all_bodies = [body for body, _ in messages]

    def as_records() -> object:
        try:
            frames, sizes = encode_batch(
                topic, 7, all_bodies, properties, 99, host, sys_flags=flags, room=True
            )
        except ValueError as error:
            return str(error)
        return frames, sizes.astype("<u4").tobytes()

    def as_messages(envelope: Envelope | None = None) -> object:
        own = OwnProperties(b"UNIQ_KEY\1", b"".join(ids), first)
        try:
            return encode_messages(topic, 7, all_bodies, extras, own, 99, host, flags, envelope)
        except ValueError as error:
            return str(error)

    by_numpy, by_compiled = of_both(as_messages)
    assert by_numpy == by_compiled
    if isinstance(by_numpy, tuple):
        whole = of_both(lambda: as_messages(Envelope(b"\x1a", b"\x22", b"rest")))
        request = AppendRequest(frames=by_numpy[0], record_lengths=by_numpy[1])
        assert whole == ((request.SerializeToString() + b"rest", by_numpy[1]),) * 2
    assert of_both(as_records) == (by_numpy, by_numpy)


def test_numbers_out_of_their_bounds_are_refused() -> None:
    own = OwnProperties(b"UNIQ_KEY\1", bytes(32), FirstSequence(0, 0))
    for sequence in (FirstSequence(0, 0), FirstSequence(1, -1), FirstSequence(1 << 64, 0)):
        with pytest.raises(ValueError, match="is not within"):
            encode_messages(b"T", 0, [b"x"], {}, own._replace(sequence=sequence), 0, HOST)
