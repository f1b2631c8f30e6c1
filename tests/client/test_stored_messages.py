"""Replies of several brokers as one: kept messages, their order, and errors of the rest."""

import pytest

from rockoon.admin.stored_messages import FoundMessages, merged, messages_of
from rockoon.errors import BrokerUnavailable
from rockoon_format.record import Record, encode_record


def answer(broker: str, *times_ms: int, unsearched: str = "") -> FoundMessages:
    """Return a broker's messages, with these store times, newest first."""
    records = [
        bytes(
            encode_record(
                Record(
                    topic=b"T",
                    body=f"{broker} {time_ms}".encode(),
                    queue_id=time_ms % 3,
                    physical_offset=time_ms * 100,
                    store_timestamp_ms=time_ms,
                )
            )
        )
        for time_ms in times_ms
    ]
    lengths = b"".join(len(record).to_bytes(4, "little") for record in records)
    return FoundMessages(
        messages=messages_of(broker, b"".join(records), lengths),
        unsearched={broker: unsearched} if unsearched else {},
        errors={},
        indexed_until_ms={broker: 1000},
    )


def test_messages_of_a_reply_know_their_own_queues() -> None:
    found = answer("broker-a", 5, 4, 3).messages
    assert [(each.queue.queue_id, each.body) for each in found] == [
        (2, b"broker-a 5"),
        (1, b"broker-a 4"),
        (0, b"broker-a 3"),
    ]
    assert {(each.queue.topic, each.queue.broker) for each in found} == {("T", "broker-a")}


def test_the_newest_of_all_brokers_come_first() -> None:
    found = merged([answer("broker-a", 9, 5, 1), answer("broker-b", 7, 5)], 10)
    assert [each.body for each in found.messages] == [
        b"broker-a 9",
        b"broker-b 7",
        b"broker-b 5",
        b"broker-a 5",
        b"broker-a 1",
    ]
    assert found.whole
    assert found.indexed_until_ms == {"broker-a": 1000, "broker-b": 1000}


def test_what_is_cut_off_is_said_of_the_broker_that_has_it() -> None:
    found = merged([answer("broker-a", 9, 8), answer("broker-b", 7)], 2)
    assert [each.store_timestamp_ms for each in found.messages] == [9, 8]
    assert found.unsearched == {"broker-b": "there are more than 2 messages"}
    assert not found.whole


@pytest.mark.parametrize("quiet", [True, False])
def test_a_broker_that_does_not_answer_leaves_the_whole_in_doubt(quiet: bool) -> None:
    away = FoundMessages((), {}, {"broker-b": BrokerUnavailable(broker="broker-b")}, {})
    lagging = answer("broker-b", unsearched="the index is behind")
    found = merged([answer("broker-a", 1), away if quiet else lagging], 10)
    assert len(found.messages) == 1
    assert not found.whole
    assert list(found.errors if quiet else found.unsearched) == ["broker-b"]
