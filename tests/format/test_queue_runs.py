"""Queue entries of a scan, split into runs: equal in both kernels, and every entry is in one."""

import random

import numpy as np
import pytest

from rockoon_format.consume_queue import (
    ENTRY_BYTES,
    LogCutter,
    QueueRuns,
    decode_entries,
    queue_runs,
)
from rockoon_format.record import Record, encode_record
from rockoon_format.scan import Scan, scan
from support.kernels import needs_compiled, of_both
from support.seeds import seeds

FILE_ENTRIES = 5


def random_scan(choose: random.Random, count: int) -> Scan:
    """Records of some queues, whose offsets mostly continue, and sometimes jump."""
    next_offsets: dict[tuple[bytes, int], int] = {}
    frames = []
    for _ in range(count):
        queue = choose.choice([b"a", b"b", b"longer"]), choose.randrange(3)
        offset = next_offsets.get(queue, choose.randrange(9)) + choose.choice([0] * 9 + [3])
        next_offsets[queue] = offset + 1
        topic, number = queue
        section = b"TAGS\x01t%d\x02" % choose.randrange(4)
        frames.append(
            encode_record(
                Record(topic=topic, properties=section, queue_id=number, queue_offset=offset)
            )
        )
    log = b"".join(frames)
    return scan(log, 0, len(log))


def expected(records: Scan, listed: list[bool]) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Return each queue's entries, one by one: file, queue offset, position, size, code."""
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for row in range(records.count):
        if listed[row]:
            offset = int(records.queue_offsets[row])
            queue = int(records.topic_numbers[row]), int(records.queue_ids[row])
            place, size = int(records.offsets[row]), int(records.sizes[row])
            code = int(records.tag_codes[row])
            found.setdefault(queue, []).append((offset // FILE_ENTRIES, offset, place, size, code))
    return found


def told(runs: QueueRuns) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for row in range(len(runs.files)):
        content = runs.entries[runs.bounds[row] : runs.bounds[row + 1]]
        assert content
        queue = int(runs.topic_numbers[row]), int(runs.queue_ids[row])
        file, first = int(runs.files[row]), int(runs.first_offsets[row])
        for number, entry in enumerate(decode_entries(content).tolist()):
            found.setdefault(queue, []).append((file, first + number, *entry))
    return found


@needs_compiled
@pytest.mark.parametrize("seed", seeds(3))
def test_every_entry_is_in_a_run_of_its_queue_and_file(seed: int) -> None:
    choose = random.Random(seed)
    for count in (1, 7, 300):
        records = random_scan(choose, count)
        listed = np.array([choose.random() < 0.8 for _ in range(count)])
        runs, compiled = of_both(
            lambda records=records, listed=listed: queue_runs(  # type: ignore[misc]
                records, records.offsets, listed, FILE_ENTRIES
            )
        )
        assert told(runs) == told(compiled) == expected(records, listed.tolist())
        for name in ("topic_numbers", "queue_ids", "files", "first_offsets", "bounds"):
            assert getattr(runs, name).tolist() == getattr(compiled, name).tolist(), name
        assert runs.entries == compiled.entries
        assert len(runs.entries) == ENTRY_BYTES * int(listed.sum())


def frames_of(choose: random.Random, count: int, topics: list[bytes]) -> bytes:
    return b"".join(
        encode_record(
            Record(
                topic=choose.choice(topics),
                properties=b"TAGS\x01t%d\x02" % choose.randrange(4),
                queue_id=choose.randrange(3),
                queue_offset=number,
            )
        )
        for number in range(count)
    )


@needs_compiled
@pytest.mark.parametrize("seed", seeds(2))
def test_a_piece_that_is_left_open_leaves_no_trace_among_the_others(seed: int) -> None:
    choose = random.Random(seed)
    many = [b"topic-%d" % number for number in range(300)]
    pieces = [frames_of(choose, 200, many[:200]), frames_of(choose, 200, many)]
    marks = {"topic-7": len(pieces[0]) + 999, "topic-250": 1, "topic-8": 1 << 40}
    cutter = LogCutter(marks, FILE_ENTRIES)
    for _ in range(2):
        start = 0
        for piece in pieces:
            # Of new topics, of known ones, with messages of a delay, and truncated.
            for ending in (frames_of(choose, 1, [b"SCHEDULE_TOPIC_XXXX"]), bytes(50)):
                open_piece = frames_of(choose, 60, [*many, b"other-1", b"other-2"]) + ending
                assert not cutter.add(open_piece, len(open_piece), start)
            assert cutter.add(piece, len(piece), start)
            start += len(piece)
        topics, runs = cutter.taken()
        records = scan(b"".join(pieces), 0, start)
        assert topics == records.topics
        floors = np.array([marks.get(topic.decode(), 0) for topic in topics])
        listed = records.offsets >= floors[records.topic_numbers]
        assert told(runs) == expected(records, listed.tolist())
        assert not listed.all()


@needs_compiled
def test_of_no_records_there_are_no_runs() -> None:
    records = scan(b"", 0, 0)
    none = np.zeros(0, np.bool_)
    for runs in of_both(lambda: queue_runs(records, records.offsets, none, FILE_ENTRIES)):
        assert told(runs) == {}
        assert runs.bounds.tolist() == [0]
