"""Records in the form of RocketMQ's clients."""

import hashlib
import zlib

import pytest

from rockoon.errors import StoreCorrupt
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue
from rockoon_format.properties import encode
from rockoon_format.record import SYS_FLAG_COMPRESSED, Record, encode_host, encode_record
from rockoon_gateway.delivered import to_wire, transaction_id
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import (
    DigestType,
    Encoding,
    MessageType,
    Resource,
)

TOPIC = Resource(name="orders")


def stored(
    properties: dict[str, str],
    body: bytes = b"body",
    *,
    topic: str = "orders",
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    harm: bool = False,
) -> Message:
    """Return a message in the form of a broker."""
    frame = encode_record(
        Record(
            topic=topic.encode(),
            body=body,
            properties=encode(properties),
            queue_id=3,
            queue_offset=17,
            physical_offset=4711,
            sys_flag=sys_flag,
            born_timestamp_ms=1_700_000_000_123,
            born_host=encode_host("10.0.0.7", 50_000),
            store_timestamp_ms=1_700_000_000_456,
            store_host=encode_host("10.0.0.1", 10_911),
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
    )
    if harm:
        frame = frame.replace(body, body[::-1])
    return Message(Batch(MessageQueue(topic, "broker-a", 3), frame, [len(frame)]), 0)


def test_what_the_system_keeps_is_in_the_systems_fields_and_the_rest_is_the_users() -> None:
    wire = to_wire(
        stored({"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "01ABC", "colour": "red"}),
        TOPIC,
        attempt=2,
        receipt_handle="h",
    )
    system = wire.system_properties
    assert wire.topic == TOPIC
    assert wire.body == b"body"
    assert dict(wire.user_properties) == {"colour": "red"}
    assert (system.tag, list(system.keys), system.message_id) == ("TagA", ["k1", "k2"], "01ABC")
    assert system.body_digest.type == DigestType.MD5
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert system.body_encoding == Encoding.IDENTITY
    assert system.message_type == MessageType.NORMAL
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_456
    assert (system.born_host, system.store_host) == ("10.0.0.7", "10.0.0.1:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 17, 2)
    assert system.receipt_handle == "h"


def test_a_message_without_tag_id_or_handle_has_none_of_the_fields() -> None:
    message = stored({})
    system = to_wire(message, TOPIC).system_properties
    absent = ("tag", "receipt_handle", "message_group", "trace_context", "delivery_timestamp")
    assert [name for name in (*absent, "dead_letter_queue") if system.HasField(name)] == []
    assert system.message_id == message.offset_message_id


@pytest.mark.parametrize(
    ("properties", "message_type", "shown"),
    [
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO, {"__SHARDINGKEY": "g"}),
        ({"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "3"}, MessageType.DELAY, {}),
        ({"TIMER_DELIVER_MS": "1700000100000"}, MessageType.DELAY, {}),
        (
            {"TRAN_MSG": "true", "__transactionId__": "01ABC", "PGROUP": "orders"},
            MessageType.TRANSACTION,
            {"__transactionId__": "01ABC"},
        ),
        ({"__SEQ": "1", "ROCKOON_FAILURE": "no", "__RMQ.TRANSIENT.x": "y"}, MessageType.NORMAL, {}),
        ({"TRACE_CONTEXT": "00-1-2-01"}, MessageType.NORMAL, {"TRACE_CONTEXT": "00-1-2-01"}),
    ],
)
def test_the_type_follows_from_the_properties_and_only_some_are_shown(
    properties: dict[str, str], message_type: int, shown: dict[str, str]
) -> None:
    wire = to_wire(stored(properties), TOPIC)
    assert wire.system_properties.message_type == message_type
    assert dict(wire.user_properties) == shown


def test_message_group_trace_and_delivery_time_have_fields_of_their_own() -> None:
    properties = {"__SHARDINGKEY": "g", "TRACE_CONTEXT": "t", "TIMER_DELIVER_MS": "1700000100123"}
    system = to_wire(stored(properties), TOPIC).system_properties
    assert (system.message_group, system.trace_context) == ("g", "t")
    assert system.delivery_timestamp.ToMilliseconds() == 1_700_000_100_123


def test_the_time_at_which_the_sender_made_it_is_that_of_the_property() -> None:
    message = stored({"BORN_TIMESTAMP": "1600000000789", "__BORNHOST": "host-a"})
    system = to_wire(message, TOPIC).system_properties
    assert system.born_timestamp.ToMilliseconds() == 1_600_000_000_789
    assert system.born_host == "host-a"


def test_a_committed_message_bears_the_transaction_id_that_its_sender_was_told() -> None:
    properties = {"TRAN_MSG": "true", "__transactionId__": "01ABC", "UNIQ_KEY": "01ABC"}
    wire = to_wire(stored(properties, prepared_transaction_offset=4096), TOPIC)
    assert dict(wire.user_properties) == {"__transactionId__": transaction_id("broker-a", 4096)}


def test_a_delivery_time_that_is_none_is_left_out() -> None:
    system = to_wire(stored({"TIMER_DELIVER_MS": "soon"}), TOPIC).system_properties
    assert not system.HasField("delivery_timestamp")


def test_a_compressed_body_goes_out_as_it_was_sent_with_the_digest_of_that() -> None:
    body = b"a" * 1000
    wire = to_wire(stored({}, zlib.compress(body), sys_flag=SYS_FLAG_COMPRESSED), TOPIC)
    assert wire.body == body
    assert wire.system_properties.body_encoding == Encoding.IDENTITY
    assert wire.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


def test_a_dead_letter_says_where_it_comes_from() -> None:
    message = stored({"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "0A"}, topic="%DLQ%billing")
    dead = to_wire(message, Resource(name="%DLQ%billing"))
    assert dead.topic.name == "%DLQ%billing"
    assert dead.system_properties.dead_letter_queue.topic == "orders"
    assert dead.system_properties.dead_letter_queue.message_id == "0A"


def test_a_message_that_comes_by_way_of_the_retry_topic_is_of_its_own_topic() -> None:
    message = stored({"RETRY_TOPIC": "orders"}, topic="%RETRY%billing", reconsume_times=1)
    again = to_wire(message, TOPIC, attempt=2)
    assert again.topic == TOPIC
    assert not again.system_properties.HasField("dead_letter_queue")
    assert dict(again.user_properties) == {}


def test_a_body_that_is_not_what_was_stored_is_not_delivered() -> None:
    with pytest.raises(StoreCorrupt):
        to_wire(stored({}, b"abcdef", harm=True), TOPIC)
