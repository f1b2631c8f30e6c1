"""A store that Apache RocketMQ wrote opens and reads back, record for record."""

import pytest

from rockoon_format.batch import ScanEnd, scan
from rockoon_format.checkpoint import CHECKPOINT_BYTES, decode_checkpoint, encode_checkpoint
from rockoon_format.consume_queue import decode_entries, encode_entries
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.record import decode_record, encode_record
from support import golden_store

pytestmark = pytest.mark.usefixtures("each_kernel")

FIRST = f"commitlog/{0:020d}"
SECOND = f"commitlog/{4096:020d}"


def test_the_first_file_holds_nine_records_and_a_blank() -> None:
    log = golden_store.files()[FIRST]
    found = scan(log, 0, len(log))
    assert found.offsets.tolist() == [0, 178, 293, 401, 558, 688, 818, 946, 1082]
    assert (found.end, found.position) == (ScanEnd.BLANK, 1316)
    assert log[1316:1324].hex() == "00000adccbd43194"
    assert found.has_queue_entry.tolist() == [True] * 4 + [False] * 2 + [True] * 3
    assert found.topics == [
        b"TopicTest",
        b"SCHEDULE_TOPIC_XXXX",
        golden_store.RETRY_TOPIC.encode(),
    ]


def test_the_second_file_holds_three_records_and_then_nothing() -> None:
    log = golden_store.files()[SECOND]
    found = scan(log, 0, len(log))
    assert (found.offsets + 4096).tolist() == [4096, 7206, 7328]
    assert (found.end, found.position + 4096) == (ScanEnd.ZERO, 7450)
    assert found.physical_offsets.tolist() == [4096, 7206, 7328]


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_every_record_is_written_again_byte_for_byte(name: str) -> None:
    log = golden_store.files()[name]
    found = scan(log, 0, len(log))
    for offset, size in zip(found.offsets.tolist(), found.sizes.tolist(), strict=True):
        assert encode_record(decode_record(log, offset)) == log[offset : offset + size]


def test_garbage_behind_the_last_record_is_not_read() -> None:
    log = bytearray(golden_store.files()[SECOND])
    log[7450 - 4096 : 7550 - 4096] = b"\x55" * 100
    found = scan(log, 0, len(log))
    assert (found.count, found.end) == (3, ScanEnd.TRUNCATED)
    assert found.position + 4096 == 7450


def test_a_changed_body_byte_ends_the_log_before_its_record() -> None:
    log = bytearray(golden_store.files()[SECOND])
    log[7328 - 4096 + 88] ^= 1
    found = scan(log, 0, len(log))
    assert (found.count, found.end) == (2, ScanEnd.BAD_CRC)
    assert found.position + 4096 == 7328


def test_the_consume_queues_follow_from_the_log() -> None:
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for start in (0, 4096):
        log = golden_store.files()[f"commitlog/{offset_to_file_name(start)}"]
        found = scan(log, 0, len(log))
        for index in range(found.count):
            if not found.has_queue_entry[index]:
                continue
            topic = found.topics[int(found.topic_numbers[index])].decode()
            queue = queues.setdefault((topic, int(found.queue_ids[index])), [])
            assert found.queue_offsets[index] == len(queue)
            queue.append(
                (
                    start + int(found.offsets[index]),
                    int(found.sizes[index]),
                    int(found.tag_codes[index]),
                )
            )
    written = [path for path in golden_store.files() if path.startswith("consumequeue/")]
    assert len(written) == len(queues) == 4
    for (topic, queue_id), entries in queues.items():
        content = golden_store.queue_file(topic, queue_id)
        assert [entry.item() for entry in decode_entries(content)[: len(entries)]] == entries
        rebuilt = encode_entries(*map(list, zip(*entries, strict=True))).tobytes()
        assert rebuilt.ljust(golden_store.QUEUE_FILE_BYTES, b"\0") == content


def test_the_checkpoint_is_written_again_byte_for_byte() -> None:
    page = golden_store.files()["checkpoint"]
    assert len(page) == CHECKPOINT_BYTES
    checkpoint = decode_checkpoint(page)
    assert checkpoint.log_timestamp_ms >= 1_700_000_000_000
    assert encode_checkpoint(checkpoint) == page
