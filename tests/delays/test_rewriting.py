"""Conversion of records to delayed ones and back, as RocketMQ writes and reads them."""

import pytest

from rockoon_broker.delays.rewriting import (
    DelayRules,
    Undeliverable,
    closing,
    delivered,
    stored_once_more,
    waiting_record,
)
from rockoon_broker.pending.pending_queue import named_source
from rockoon_format.delay_levels import DELAY_LEVELS_MS
from rockoon_format.properties import decode
from rockoon_format.record import (
    SYS_FLAG_COMPRESSED,
    Record,
    decode_record,
    encode_host,
    encode_record,
)

RULES = DelayRules(DELAY_LEVELS_MS, 259_200)
LONG_TOPIC = b"%RETRY%" + b"g" * 123


def test_a_level_goes_where_rocketmq_puts_it() -> None:
    record = Record(topic=b"topicDelay", body=b"delayed", properties=b"DELAY\x013\x02")
    aside = waiting_record(record, 0, RULES)
    assert (aside.topic, aside.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert aside.record.properties == (
        b"DELAY\x013\x02REAL_TOPIC\x01topicDelay\x02REAL_QID\x010\x02"
    )


def test_a_level_above_the_last_is_the_last_in_the_record_too() -> None:
    aside = waiting_record(Record(topic=b"T", properties=b"DELAY\x0177\x02"), 0, RULES)
    assert aside.queue_id == 17
    assert decode(aside.record.properties)["DELAY"] == "18"


def test_what_comes_back_is_the_message_with_another_hosts_bits_gone() -> None:
    record = Record(
        topic=LONG_TOPIC,
        queue_id=3,
        body=b"zipped",
        flag=9,
        sys_flag=SYS_FLAG_COMPRESSED,
        born_host=encode_host("::1", 7),
        reconsume_times=4,
        properties=b"TAGS\x01a\x02DELAY\x012\x02",
    )
    kept = decode_record(encode_record(waiting_record(record, 0, RULES).record))
    # As an old store with another address may contain it.
    stored = Record(
        **{
            **{name: getattr(kept, name) for name in kept.__slots__},
            "physical_offset": 0,
            "store_host": encode_host("::2", 8),
            "sys_flag": kept.sys_flag | 0x8,
        }
    )
    back = decode_record(encode_record(delivered(stored)))
    assert (back.topic, back.queue_id, back.body) == (LONG_TOPIC, 3, b"zipped")
    assert (back.flag, back.reconsume_times, back.born_host) == (9, 4, record.born_host)
    assert back.sys_flag == SYS_FLAG_COMPRESSED | 0x10
    assert back.prepared_transaction_offset == named_source(0) == -1
    assert back.properties.startswith(record.properties)


@pytest.mark.parametrize(
    "properties", [b"", b"REAL_TOPIC\x01T\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02"]
)
def test_a_record_that_does_not_say_where_it_goes_goes_nowhere(properties: bytes) -> None:
    with pytest.raises(Undeliverable):
        delivered(Record(topic=b"SCHEDULE_TOPIC_XXXX", properties=properties))


def test_each_time_it_is_stored_once_more_is_counted() -> None:
    record = Record(topic=b"SCHEDULE_TOPIC_XXXX", physical_offset=70, properties=b"a\x01b\x02")
    once = stored_once_more(record, 5).record
    twice = decode(stored_once_more(once, 5).record.properties)
    assert (once.topic, once.queue_id) == (b"rmq_sys_wheel_timer", 0)
    assert once.prepared_transaction_offset == named_source(70)
    assert twice == {"a": "b", "TIMER_ROLL_TIMES": "2", "TIMER_OUT_MS": "5"}


def test_a_closing_record_names_what_it_closes() -> None:
    aside = closing(4711, "cancelled", "ID", 99, ("127.0.0.1", 1))
    assert (aside.topic, aside.queue_id) == ("rmq_sys_wheel_timer", 1)
    assert aside.record.prepared_transaction_offset == named_source(4711)
    assert decode(aside.record.properties) == {"TAGS": "cancelled", "TIMER_DEL_UNIQKEY": "ID"}
