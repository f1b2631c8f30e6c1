"""Generations: parts of records with their entries, and the manifest over them."""

import hashlib
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from rockoon_format.batch import encode_batch
from rockoon_format.generation import (
    TAIL_BYTES,
    CoveredQueue,
    EntriesLayout,
    GenerationError,
    GenerationPart,
    GenerationTopic,
    LogTail,
    Manifest,
    PartEntries,
    check_order,
    check_part,
    decode_current,
    encode_current,
    encode_superseded,
    generation_name,
    part_entries,
    part_names,
)
from rockoon_format.hashes import index_key_hash, tags_code
from rockoon_format.properties import encode
from rockoon_format.record import (
    TRANSACTION_PREPARED,
    Record,
    decode_record,
    encode_record,
    record_size,
)
from support.seeds import seeds

MADE_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Part:
    """Return a part's records one by one, and as bytes."""

    records: list[Record]
    frames: bytes
    starts: list[int]

    @property
    def entries(self) -> PartEntries:
        return part_entries(self.frames, [MADE_MS] * len(self.records))


def part_of(records: list[Record]) -> Part:
    pieces = [encode_record(record) for record in records]
    starts = [sum(map(len, pieces[:index])) for index in range(len(pieces))]
    return Part(records, b"".join(pieces), starts)


def some_part(chance: random.Random, base: int = 0, first_offset: int = 0) -> Part:
    """Return random survivors of a few queues; their offsets in the log begin at `base`."""
    records = []
    for topic in ("prices", "stocks", "trades"):
        for queue_id in sorted(chance.sample(range(9), 3)):
            offset, physical = first_offset, base
            for _ in range(chance.randrange(1, 30)):
                offset += chance.randrange(1, 5)
                physical += chance.randrange(100, 5000)
                keys = " ".join(f"k{chance.randrange(20)}" for _ in range(chance.randrange(3)))
                properties = {"TAGS": chance.choice("AB"), "UNIQ_KEY": f"id{offset}"}
                if keys:
                    properties["KEYS"] = keys
                records.append(
                    Record(
                        topic=topic.encode(),
                        body=chance.randbytes(chance.choice([0, 10, 3000])),
                        properties=encode(properties),
                        queue_id=queue_id,
                        queue_offset=offset,
                        physical_offset=physical,
                        store_timestamp_ms=MADE_MS + physical,
                    )
                )
    return part_of(records)


def plain_keys(record: Record) -> list[str]:
    """Return the keys of the record, from its properties one by one."""
    found = {}
    for pair in record.properties.decode().split("\x02"):
        name, _, value = pair.partition("\x01")
        found[name] = value
    keys = [found.get("UNIQ_KEY", ""), *found.get("KEYS", "").split(" ")]
    return [f"{record.topic.decode()}#{key}" for key in keys if key]


def manifest_of(parts: list[Part]) -> Manifest:
    """Return the manifest of a maker: every queue is covered from 0 to after its last record."""
    queues: dict[tuple[str, int], list[int]] = {}
    described = []
    for number, part in enumerate(parts):
        entries = part.entries.encode()
        for record in part.records:
            key = (record.topic.decode(), record.queue_id)
            queues.setdefault(key, []).append(record.queue_offset)
        physical = [record.physical_offset for record in part.records]
        described.append(
            GenerationPart(
                number=number,
                log_start=min(physical),
                log_end=max(physical) + 1,
                records=len(part.records),
                records_bytes=len(part.frames),
                records_sha256=hashlib.sha256(part.frames).hexdigest(),
                entries_bytes=len(entries),
                entries_sha256=hashlib.sha256(entries).hexdigest(),
            )
        )
    end = described[-1].log_end if described else 5000
    topics = tuple(
        GenerationTopic(
            topic,
            0,
            tuple(
                CoveredQueue(queue, 0, max(offsets) + 1, len(offsets))
                for (name, queue), offsets in sorted(queues.items())
                if name == topic
            ),
        )
        for topic in sorted({topic for topic, _ in queues})
    )
    tail = LogTail(max(0, end - TAIL_BYTES), min(end, TAIL_BYTES), 99)
    return Manifest(2, 1, MADE_MS, 0, end, tail, topics, tuple(described))


def with_part(manifest: Manifest, place: int, **changes: int | str) -> Manifest:
    parts = list(manifest.parts)
    parts[place] = replace(parts[place], **changes)  # type: ignore[arg-type]
    return replace(manifest, parts=tuple(parts))


def with_queue(manifest: Manifest, **changes: int) -> Manifest:
    """Return the manifest with another statement about its first queue."""
    topic = manifest.topics[0]
    queue = replace(topic.queues[0], **changes)
    changed = replace(topic, queues=(queue, *topic.queues[1:]))
    return replace(manifest, topics=(changed, *manifest.topics[1:]))


@pytest.fixture(params=seeds(1))
def seed(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


# Parts.


def test_entries_say_of_each_record_where_it_is_and_what_a_queue_lists(
    chance: random.Random,
) -> None:
    part = some_part(chance)
    entries = part.entries
    assert len(entries) == len(part.records)
    assert entries.records_bytes == len(part.frames)
    for row, record in enumerate(part.records):
        position = int(entries.positions[row])
        assert position == part.starts[row]
        assert int(entries.sizes[row]) == record_size(part.frames, position)
        assert decode_record(part.frames, position) == record
        assert int(entries.queue_offsets[row]) == record.queue_offset
        assert int(entries.physical_offsets[row]) == record.physical_offset
        assert int(entries.store_timestamps_ms[row]) == record.store_timestamp_ms
        assert int(entries.kept_since_ms[row]) == MADE_MS
        tag = record.properties.decode()[len("TAGS\x01")]
        assert int(entries.tag_codes[row]) == tags_code(tag)


def test_slices_are_the_rows_of_each_queue(chance: random.Random) -> None:
    part = some_part(chance)
    found = [
        (topic, queue, row)
        for topic, queue, rows in part.entries.slices()
        for row in range(rows.start, rows.stop)
    ]
    places = [(record.topic.decode(), record.queue_id) for record in part.records]
    assert found == [(*place, row) for row, place in enumerate(places)]


def test_a_place_in_the_log_leads_to_its_record(chance: random.Random) -> None:
    part = some_part(chance)
    entries = part.entries
    places = [record.physical_offset for record in part.records]
    for place in places:
        row = entries.row_at(place)
        assert row is not None
        assert places[row] == place
    for other in (0, max(places) + 1, *(place + 1 for place in places)):
        assert (entries.row_at(other) is None) is (other not in places)
    assert part_entries(b"", []).row_at(0) is None


def test_a_key_leads_to_each_record_that_bears_it(chance: random.Random) -> None:
    part = some_part(chance)
    entries = part.entries
    wanted: dict[int, list[int]] = {}
    for row, record in enumerate(part.records):
        for key in plain_keys(record):
            wanted.setdefault(index_key_hash(key), []).append(row)
    assert len(entries.key_hashes) == sum(map(len, wanted.values()))
    for key_hash, rows in wanted.items():
        assert entries.rows_with_key(key_hash).tolist() == rows
    assert entries.rows_with_key(index_key_hash("prices#nobody")).tolist() == []


def test_entries_are_read_as_they_were_written(chance: random.Random, tmp_path: Path) -> None:
    part = some_part(chance)
    written = part.entries.encode()
    assert len(written) % 8 == 0
    check_part(part.frames, PartEntries.decode(written))
    assert PartEntries.decode(written).encode() == written


def test_a_file_is_read_piece_by_piece_by_its_layout(chance: random.Random) -> None:
    entries = some_part(chance).entries
    content = entries.encode()
    layout = EntriesLayout.of(content[: EntriesLayout.HEAD_BYTES])
    assert layout.file_bytes == len(content)
    assert layout.decode_topics(content[layout.names]) == entries.topics
    for name, column in layout.columns.items():
        expected = getattr(entries, name)
        assert column.count == len(expected)
        rows = slice(column.count // 3, column.count)
        found = np.frombuffer(content[column.bytes_of(rows)], column.dtype)
        assert found.tolist() == expected[rows].tolist()


def test_a_part_of_many_chunks_is_one(chance: random.Random) -> None:
    bodies = [chance.randbytes(1 << 20)] * 20
    records = [
        Record(
            topic=b"big",
            body=body,
            properties=encode({"KEYS": "k"}),
            queue_offset=number,
            physical_offset=number * 2_000_000,
        )
        for number, body in enumerate(bodies)
    ]
    part = part_of(records)
    assert part.entries.queue_offsets.tolist() == list(range(20))
    assert part.entries.positions.tolist() == part.starts
    assert part.entries.rows_with_key(index_key_hash("big#k")).tolist() == list(range(20))


def test_a_part_without_records() -> None:
    entries = part_entries(b"", [])
    assert len(entries) == 0
    again = PartEntries.decode(entries.encode())
    assert list(again.slices()) == []
    assert again.rows_with_key(1).tolist() == []
    check_part(b"", again)


@pytest.mark.parametrize("step", [1, 7])
def test_every_byte_of_the_entries_matters(chance: random.Random, step: int) -> None:
    part = part_of(some_part(chance).records[:3])
    written = part.entries.encode()
    kept_start = written.index(np.array([MADE_MS] * 3, "<i8").tobytes())
    for at in range(chance.randrange(step), len(written), step):
        if kept_start <= at < kept_start + 24:
            # Only the manifest's checksum covers these.
            continue
        damaged = bytearray(written)
        damaged[at] ^= 0xFF
        with pytest.raises(GenerationError):
            check_part(part.frames, PartEntries.decode(bytes(damaged)))


def test_entries_of_a_wrong_length_are_refused(chance: random.Random) -> None:
    written = some_part(chance).entries.encode()
    for wrong in (b"", written[:20], written[:-8], written + bytes(8)):
        with pytest.raises(GenerationError):
            PartEntries.decode(wrong)


def test_a_damaged_record_is_refused_with_its_place(chance: random.Random) -> None:
    part = some_part(chance)
    row = max(range(len(part.records)), key=lambda row: len(part.records[row].body))
    damaged = bytearray(part.frames)
    damaged[part.starts[row] + 90] ^= 1
    with pytest.raises(GenerationError, match=rf"byte {part.starts[row]}: .*bad crc"):
        part_entries(bytes(damaged), [MADE_MS] * len(part.records))


def test_bytes_behind_the_last_record_are_refused(chance: random.Random) -> None:
    part = some_part(chance)
    for tail in (b"\0", bytes(100), part.frames[:50]):
        with pytest.raises(GenerationError, match=rf"byte {len(part.frames)}"):
            part_entries(part.frames + tail, [MADE_MS] * len(part.records))


def test_records_out_of_order_are_refused_with_their_place() -> None:
    def record(topic: bytes, queue: int, offset: int, physical: int) -> Record:
        return Record(topic=topic, queue_id=queue, queue_offset=offset, physical_offset=physical)

    first = record(b"b", 1, 5, 500)
    for late in (
        record(b"a", 1, 6, 600),
        record(b"b", 0, 6, 600),
        record(b"b", 1, 5, 600),
        record(b"b", 1, 6, 500),
    ):
        part = part_of([first, late])
        with pytest.raises(GenerationError, match=f"byte {part.starts[1]}"):
            _ = part.entries


def test_a_record_that_no_queue_lists_is_refused() -> None:
    part = part_of([Record(topic=b"t", sys_flag=TRANSACTION_PREPARED)])
    with pytest.raises(GenerationError, match="byte 0: a record that no queue lists"):
        _ = part.entries


def test_times_since_when_of_another_number_are_refused(chance: random.Random) -> None:
    part = some_part(chance)
    with pytest.raises(GenerationError, match="records, and"):
        part_entries(part.frames, [MADE_MS])


def test_records_as_a_producer_encodes_them() -> None:
    frames, _ = encode_batch(
        b"t", 3, [b"x"], [encode({"KEYS": "a b"})], MADE_MS, bytes(4) + bytes(4)
    )
    entries = part_entries(frames, [0])
    assert list(entries.slices()) == [("t", 3, slice(0, 1))]
    assert entries.rows_with_key(index_key_hash("t#b")).tolist() == [0]


# The manifest.


def test_a_manifest_is_read_as_it_was_written(chance: random.Random) -> None:
    manifest = manifest_of([some_part(chance)])
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.records == manifest.parts[0].records


def test_a_manifest_that_begins_with_zeros_is_refused_in_one_sentence() -> None:
    """A power cut leaves this file; the reason is in the broker's log and its description."""
    with pytest.raises(GenerationError, match="not a manifest") as refused:
        Manifest.from_json(bytes(512) + b"text" * 250_000)
    assert len(str(refused.value)) < 300


def test_a_manifest_of_nothing_left_is_one() -> None:
    nothing = manifest_of([])
    topic = GenerationTopic("gone", 12, (CoveredQueue(0, 3, 9, 0),))
    manifest = replace(nothing, topics=(GenerationTopic("empty", 0, ()), topic))
    assert Manifest.from_json(manifest.to_json()) == manifest
    check_order(manifest, [])


def test_a_manifest_of_which_any_byte_changed_is_refused(chance: random.Random) -> None:
    text = manifest_of([some_part(chance)]).to_json()
    for _ in range(500):
        damaged = bytearray(text)
        at = chance.randrange(len(text))
        damaged[at] ^= 1 << chance.randrange(7)
        # White space may differ without effect; another manifest is never the result.
        try:
            assert Manifest.from_json(bytes(damaged)).to_json() == text
        except GenerationError:
            continue


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b'{"manifest": 7, "sha256": ""}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(GenerationError):
        Manifest.from_json(text)


def test_superseded_rows_are_left_out(chance: random.Random) -> None:
    part = some_part(chance)
    gone = np.array([chance.random() < 0.5 for _ in part.records], np.bool_)
    gone[0], gone[-1] = True, False
    encoded = encode_superseded(gone)
    entries = part.entries.with_superseded(encoded)
    kept = [row for row in range(len(gone)) if not gone[row]]
    assert entries.kept_rows().tolist() == kept
    assert (len(entries), entries.records) == (len(gone), len(kept))
    for row in range(len(gone)):
        assert entries.next_kept(row) == min(each for each in kept if each >= row)
        if row >= kept[0]:
            assert entries.last_kept(row) == max(each for each in kept if each <= row)
        physical = part.records[row].physical_offset
        found = {other for other in kept if part.records[other].physical_offset == physical}
        assert (entries.row_at(physical) in found) if found else entries.row_at(physical) is None
    for key in {key for record in part.records for key in plain_keys(record)}:
        rows = part.entries.rows_with_key(index_key_hash(key)).tolist()
        wanted = [row for row in rows if not gone[row]]
        assert entries.rows_with_key(index_key_hash(key)).tolist() == wanted
    for wrong in (encoded[:-1], encoded + b"\0"):
        with pytest.raises(GenerationError, match="bytes of superseded rows"):
            part.entries.with_superseded(wrong)
    if len(gone) % 8:
        with pytest.raises(GenerationError, match="after the last"):
            part.entries.with_superseded(encoded[:-1] + b"\xff")


def test_a_manifest_counts_what_is_kept_and_what_is_superseded(chance: random.Random) -> None:
    part = some_part(chance)
    whole = manifest_of([part])
    topic = whole.topics[0]
    queue = topic.queues[0]
    gone = np.zeros(len(part.records), np.bool_)
    gone[0] = True
    encoded = encode_superseded(gone)
    made = replace(
        with_queue(whole, records=queue.records - 1),
        parts=(
            replace(
                whole.parts[0],
                records=len(gone) - 1,
                superseded=1,
                superseded_sha256=hashlib.sha256(encoded).hexdigest(),
            ),
        ),
    )
    assert Manifest.from_json(made.to_json()) == made
    check_order(made, [part.entries.with_superseded(encoded)])
    with pytest.raises(GenerationError, match="by the manifest"):
        check_order(made, [part.entries])
    with pytest.raises(GenerationError, match="in version 1"):
        replace(made, version=1).to_json()
    with pytest.raises(GenerationError, match="is not a checksum"):
        with_part(made, 0, superseded_sha256="").to_json()


def test_a_manifest_of_the_former_version_is_read_and_written_as_it_was(
    chance: random.Random,
) -> None:
    former = replace(manifest_of([some_part(chance)]), version=1)
    text = former.to_json()
    content = json.loads(text)["manifest"]
    assert not {"superseded", "superseded_sha256"} & content["parts"][0].keys()
    assert "oldest_tombstone_ms" not in content["topics"][0]
    found = Manifest.from_json(text)
    assert found.to_json() == text
    # The time since which its tombstones are kept is unknown.
    assert {topic.oldest_tombstone_ms for topic in found.topics} == {1}


def test_a_manifest_of_a_later_version_is_refused(chance: random.Random) -> None:
    whole = json.loads(manifest_of([some_part(chance)]).to_json())
    whole["manifest"]["version"] = 3
    text = json.dumps(whole["manifest"], sort_keys=True, separators=(",", ":"))
    whole["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(GenerationError, match="version 3"):
        Manifest.from_json(json.dumps(whole).encode())


def test_manifests_that_contradict_themselves_are_not_written(chance: random.Random) -> None:
    good = manifest_of([some_part(chance), some_part(chance, base=10**6, first_offset=10**4)])
    good.check()
    tail = good.log_tail
    for wrong in (
        replace(good, replaces=2),
        replace(good, log_start=good.log_end + 1),
        replace(good, log_tail=replace(tail, start=tail.start - 1)),
        replace(good, log_tail=LogTail(good.log_end - TAIL_BYTES - 1, TAIL_BYTES + 1, 0)),
        replace(good, topics=good.topics[::-1]),
        replace(good, topics=good.topics * 2),
        replace(good, topics=(replace(good.topics[0], topic="a b"), *good.topics[1:])),
        replace(good, topics=good.topics[:-1]),
        replace(good, parts=good.parts[::-1]),
        with_part(good, 1, number=2),
        with_part(good, 1, log_start=0),
        with_part(good, 1, log_end=good.log_end + 1),
        with_part(good, 1, records_bytes=2**31),
        with_queue(good, records=10**6),
        with_queue(good, covered_from=10**6),
    ):
        with pytest.raises(GenerationError):
            wrong.to_json()


def test_manifest_and_entries_belong_together(chance: random.Random) -> None:
    parts = [some_part(chance), some_part(chance, base=10**6, first_offset=10**4)]
    entries = [part.entries for part in parts]
    good = manifest_of(parts)
    check_order(good, entries)
    place = (good.topics[0].topic.encode(), good.topics[0].queues[0].queue)
    first = min(
        record.queue_offset for part in parts for record in part.records if _place(record) == place
    )
    for wrong in (
        with_part(good, 0, records=good.parts[0].records + 1),
        with_part(good, 0, records_bytes=1),
        with_part(good, 0, log_start=good.parts[0].log_start + 1),
        with_part(good, 0, log_end=good.parts[0].log_end - 1),
        with_queue(good, covered_from=first + 1),
        with_queue(good, covered_to=first),
        with_queue(good, records=good.topics[0].queues[0].records + 1),
        with_queue(good, queue=77),
        replace(good, topics=(replace(good.topics[0], dropped_below=10**7), *good.topics[1:])),
        replace(good, parts=good.parts[:1]),
    ):
        with pytest.raises(GenerationError):
            check_order(wrong, entries)


def test_a_queue_that_goes_back_in_a_later_part_is_refused(chance: random.Random) -> None:
    part, again = some_part(chance), some_part(chance, base=10**6)
    manifest = manifest_of([part, again])
    both = set(map(_place, part.records)) & set(map(_place, again.records))
    if not both:
        again = part_of([replace(part.records[0], physical_offset=10**6)])
        manifest = manifest_of([part, again])
    with pytest.raises(GenerationError, match="is not between"):
        check_order(manifest, [part.entries, again.entries])


def _place(record: Record) -> tuple[bytes, int]:
    return record.topic, record.queue_id


def test_current_is_read_as_it_was_written() -> None:
    assert decode_current(encode_current(7)) == 7
    for wrong in (b"", b"{}", b"7", b'{"generation": 0}', b'{"generation": -1}', b"\xff", b"null"):
        with pytest.raises(GenerationError):
            decode_current(wrong)


def test_names() -> None:
    assert generation_name(7) == "00000000000000000007"
    assert part_names(3) == ("00003.records", "00003.entries")
    with pytest.raises(ValueError, match="100000"):
        part_names(100_000)
