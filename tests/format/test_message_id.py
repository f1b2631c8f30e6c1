"""Ids of messages, and names of topics and groups."""

import pytest

from rockoon_format import names
from rockoon_format.message_id import (
    OffsetMessageId,
    UniqueKeys,
    decode_offset_id,
    encode_offset_id,
)
from rockoon_format.record import encode_host
from support.kernels import needs_compiled, of_both


@pytest.mark.parametrize(
    ("address", "offset", "text"),
    [
        ("127.0.0.1", 123, "7F00000100002A9F000000000000007B"),
        ("127.0.0.1", 0, "7F00000100002A9F0000000000000000"),
        ("::1", 123, "0000000000000000000000000000000100002A9F000000000000007B"),
    ],
)
def test_an_offset_id_is_that_of_apache(address: str, offset: int, text: str) -> None:
    host = encode_host(address, 10911)
    assert encode_offset_id(host, offset) == text
    assert decode_offset_id(text) == OffsetMessageId(host, offset)
    assert decode_offset_id(text.lower()) == OffsetMessageId(host, offset)


@pytest.mark.parametrize(
    "text", ["", "7F", "G" * 32, "7F00000100002A9F80000000000000FF", " " * 32, "7F 0" * 8]
)
def test_other_text_is_no_offset_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_offset_id(text)


def test_a_message_is_never_before_the_log() -> None:
    with pytest.raises(ValueError, match="no message"):
        encode_offset_id(encode_host("::1", 1), -1)
    with pytest.raises(ValueError, match="no message"):
        encode_offset_id(b"123", 1)


def test_a_unique_key_is_made_of_address_pid_instance_time_and_count() -> None:
    address = bytes.fromhex("fd000000000000000000000000000002")
    keys = UniqueKeys(address, 0x16988, 0x5FFD2B27, month_start_ms=1_000_000)
    taken = keys.take(2, 1_000_000 + 0x6540AF61)
    prefix = b"FD00000000000000000000000000000269885FFD2B276540AF61"
    assert taken == prefix + b"0000" + prefix + b"0001"
    assert keys.take(1, 1_000_000) == prefix[:-8] + b"000000000002"


@needs_compiled
def test_both_kernels_make_the_same_unique_keys() -> None:
    def made() -> list[bytes]:
        keys = UniqueKeys(bytes.fromhex("0a9ff0fe"), 0xFFFF, 0xABCDEF09, 0)
        return [keys.take(count, 0xFEDCBA98) for count in (0, 1, 32, 33, 65_535, 70_000, 2)]

    by_numpy, compiled = of_both(made)
    assert by_numpy == compiled


def test_the_counter_wraps_without_touching_the_rest() -> None:
    keys = UniqueKeys(bytes([10, 0, 0, 1]), 1, -1, 0)
    together = keys.take(65537, 5)
    taken = [together[start : start + 32] for start in range(0, len(together), 32)]
    assert taken[65535] == b"0A0000010001FFFFFFFF00000005FFFF"
    assert taken[65536] == b"0A0000010001FFFFFFFF000000050000"
    assert keys.take(1, 5) == b"0A0000010001FFFFFFFF000000050001"
    assert len(set(taken[:65536])) == 65536


def test_a_few_keys_are_made_as_many_are() -> None:
    few, many = (UniqueKeys(bytes(range(4)), 77, 88, 0) for _ in range(2))
    one_by_one = b"".join(few.take(count, 99) for count in (1, 30, 32, 2, 35))
    assert one_by_one == many.take(100, 99)


def test_time_is_counted_from_the_month_that_was_begun_last() -> None:
    keys = UniqueKeys(bytes(4), 0, 0, 0)
    keys.begin_month(100)
    assert keys.take(1, 107)[20:28] == b"00000007"
    assert keys.take(0, 107) == b""
    with pytest.raises(ValueError, match="address"):
        UniqueKeys(b"", 0, 0, 0)


@pytest.mark.parametrize("topic", ["T", "a-b_c|d%E9", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%g"])
def test_topics_that_may_be(topic: str) -> None:
    assert names.topic_fault(topic) is None


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"),
        ("t" * 128, "128 characters, more than 127"),
        ("%RETRY%" + "g" * 249, "256 characters, more than 255"),
        ("a b", "other than"),
        ("a.b", "other than"),
        ("a/../b", "other than"),
        ("\u4e2d", "other than"),
        ("a\n", "other than"),
    ],
)
def test_topics_that_may_not_be(topic: str, reason: str) -> None:
    assert reason in (names.topic_fault(topic) or "")


def test_groups_have_their_own_limit() -> None:
    assert names.group_fault("g" * 120) is None
    assert "121 characters, more than 120" in (names.group_fault("g" * 121) or "")
    assert "the group is empty" in (names.group_fault("") or "")
    assert names.topic_fault(names.retry_topic("g" * 120)) is None


def test_topics_of_the_broker_itself_are_known() -> None:
    assert names.is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert not names.is_system_topic("TopicTest")
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.is_retry_topic("%RETRY%g")
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_dlq_topic("%DLQ%g")
