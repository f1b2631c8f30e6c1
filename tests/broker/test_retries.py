"""A message whose consumer has failed: retries and dead letters."""

import pytest

from rockoon_broker.retries.retries import (
    FAILURE_BYTES_MAX,
    FailureReport,
    GroupRetryRules,
    RetryRules,
    returned,
    rules_of,
)
from rockoon_core.errors import PropertiesTooLarge
from rockoon_format.message_id import encode_offset_id
from rockoon_format.properties import decode, encode
from rockoon_format.record import Record, encode_host
from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig, RouteUpdate

HOST = encode_host("127.0.0.1", 10911)
RULES = RetryRules()
PLAIN = FailureReport()


def record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "topic": b"orders",
        "body": b"one pie",
        "properties": encode({"TAGS": "TagA", "KEYS": "7", "colour": "red", "UNIQ_KEY": "AB"}),
        "queue_id": 2,
        "flag": 5,
        "queue_offset": 11,
        "physical_offset": 4096,
        "born_timestamp_ms": 1234,
        "born_host": encode_host("10.1.2.3", 555),
        "store_timestamp_ms": 2345,
        "store_host": HOST,
        **changes,
    }
    return Record(**fields)  # type: ignore[arg-type]


def test_the_first_failure_brings_a_message_back_at_level_3_as_it_was() -> None:
    made = returned(record(), "g", RULES, PLAIN, 0)
    assert not made.dead
    assert made.topic == "%RETRY%g"
    assert made.record.reconsume_times == 1
    assert made.origin_message_id == encode_offset_id(HOST, 4096)
    assert decode(made.record.properties) == {
        "TAGS": "TagA",
        "KEYS": "7",
        "colour": "red",
        "UNIQ_KEY": "AB",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": made.origin_message_id,
        "DELAY": "3",
    }
    kept = ("body", "flag", "born_timestamp_ms", "born_host")
    assert [getattr(made.record, name) for name in kept] == [
        getattr(record(), name) for name in kept
    ]
    assert made.record.properties.startswith(b"TAGS\x01")


def test_sixteen_retries_at_growing_levels_then_a_dead_letter() -> None:
    levels: list[str | None] = []
    current, origin = record(), encode_offset_id(HOST, 4096)
    for failures in range(1, 18):
        made = returned(current, "g", RULES, PLAIN, 0)
        properties = decode(made.record.properties)
        levels.append(properties.get("DELAY"))
        assert made.record.reconsume_times == failures
        assert (properties["RETRY_TOPIC"], made.origin_message_id) == ("orders", origin)
        assert made.dead is (failures == 17)
        # As the delay delivers it: at another position, with its own properties still in the text.
        current = record(
            topic=made.record.topic,
            queue_id=made.record.queue_id,
            physical_offset=10_000 * failures,
            properties=encode({**properties, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0"}),
            reconsume_times=failures,
        )
    assert levels == [*map(str, range(3, 19)), None]
    assert made.topic == "%DLQ%g"
    assert not {"REAL_TOPIC", "REAL_QID", "DELAY"} & decode(made.record.properties).keys()


@pytest.mark.parametrize(
    ("rules", "failure", "failed_before", "dead"),
    [
        (RetryRules(attempts_max=3), PLAIN, 2, False),
        (RetryRules(attempts_max=3), PLAIN, 3, True),
        (RetryRules(attempts_max=0), PLAIN, 0, True),
        (RetryRules(attempts_max=3), FailureReport(attempts_max=5), 4, False),
        (RetryRules(attempts_max=30), FailureReport(attempts_max=2), 2, True),
        (RetryRules(attempts_max=30), FailureReport(attempts_max=0), 0, True),
        (RULES, FailureReport(delay_level=-1), 0, True),
        # RocketMQ removes it.
        (RetryRules(queues=0), PLAIN, 0, True),
    ],
)
def test_who_decides_when_it_is_enough(
    rules: RetryRules, failure: FailureReport, failed_before: int, dead: bool
) -> None:
    original = record(topic=b"%RETRY%g", reconsume_times=failed_before)
    assert returned(original, "g", rules, failure, 0).dead is dead


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (FailureReport(delay_level=-1), 3),
        (FailureReport(delay_level=-1, deliveries=5), 7),
        (FailureReport(delay_level=-1, deliveries=-5), 3),
        (FailureReport(delay_level=-1, deliveries=2**31 - 1), 2**31 - 1),
        (FailureReport(deliveries=5), 3),
    ],
)
def test_a_dead_letter_counts_deliveries_that_were_not_sent_back(
    failure: FailureReport, attempts: int
) -> None:
    original = record(topic=b"%RETRY%g", reconsume_times=2)
    made = returned(original, "g", RULES, failure, 0)
    assert made.record.reconsume_times == attempts


@pytest.mark.parametrize(
    ("failure", "properties"),
    [
        (FailureReport(delay_level=1), {"DELAY": "1"}),
        (FailureReport(delay_level=2, delay_ms=70), {"DELAY": "2"}),
        (FailureReport(delay_ms=70), {"TIMER_DELAY_MS": "70"}),
        (PLAIN, {"DELAY": "5"}),
    ],
)
def test_the_consumer_may_choose_the_delay(
    failure: FailureReport, properties: dict[str, str]
) -> None:
    original = record(
        topic=b"%RETRY%g",
        reconsume_times=2,
        properties=encode({"DELAY": "9", "TIMER_DELAY_SEC": "4", "RETRY_TOPIC": "orders"}),
    )
    made = decode(returned(original, "g", RULES, failure, 0).record.properties)
    said = {name: text for name, text in made.items() if name.startswith(("DELAY", "TIMER"))}
    assert said == properties


def test_dead_letters_of_another_group_have_failed_there_and_not_here() -> None:
    original = record(
        topic=b"%DLQ%other",
        reconsume_times=17,
        properties=encode({"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "AB"}),
    )
    made = returned(original, "g", RULES, PLAIN, 0)
    assert (made.dead, made.record.reconsume_times) == (False, 1)
    assert decode(made.record.properties)["RETRY_TOPIC"] == "orders"


def test_retry_queues_are_filled_in_turn() -> None:
    rules = RetryRules(queues=3)
    chosen = [returned(record(), "g", rules, PLAIN, turn).record.queue_id for turn in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_committed_transaction_comes_back_as_an_ordinary_message_still_compressed() -> None:
    original = record(sys_flag=0x8 | 0x1 | 0x300, prepared_transaction_offset=77)
    made = returned(original, "g", RULES, PLAIN, 0).record
    assert (made.sys_flag, made.prepared_transaction_offset) == (0x301, 0)


def test_the_reason_is_noted_in_bounds_and_replaced_by_the_next() -> None:
    reason = "\x01ValueError: " + "ü" * 1000
    made = returned(record(), "g", RULES, FailureReport(reason=reason), 0)
    noted = decode(made.record.properties)["ROCKOON_FAILURE"]
    assert noted.startswith("ValueError: ü")
    assert len(noted.encode()) <= FAILURE_BYTES_MAX
    again = returned(made.record, "g", RULES, PLAIN, 0)
    assert "ROCKOON_FAILURE" not in decode(again.record.properties)


def test_a_reason_with_nuls_is_noted_without_them() -> None:
    made = returned(record(), "g", RULES, FailureReport(reason="\0" * 600 + "end"), 0)
    assert decode(made.record.properties)["ROCKOON_FAILURE"] == "end"


def test_a_reason_that_does_not_fit_is_left_out_and_what_must_be_noted_is_not() -> None:
    nearly = record(properties=encode({"x": "y" * 32_500}))
    made = returned(nearly, "g", RULES, FailureReport(reason="r" * 500), 0)
    assert "ROCKOON_FAILURE" not in decode(made.record.properties)
    with pytest.raises(PropertiesTooLarge):
        returned(record(properties=encode({"x": "y" * 32_760})), "g", RULES, PLAIN, 0)


def test_rules_follow_the_routes() -> None:
    def group(name: str, **config: int) -> Group:
        return Group(config=GroupConfig(name=name, **config))  # type: ignore[arg-type]

    rules = GroupRetryRules()
    rules.apply(RouteUpdate(snapshot=True, groups=[group("a"), group("b", retry_queues=0)]))
    assert rules.of("a") == RetryRules(16, 1)
    assert rules.of("b") == RetryRules(16, 0)
    rules.apply(RouteUpdate(groups=[group("a", retry_attempts_max=0)], removed_groups=["b"]))
    assert rules.of("a") == RetryRules(0, 1)
    assert rules.of("b") is None
    rules.apply(RouteUpdate(snapshot=True))
    assert rules.of("a") is None
    assert rules_of(GroupConfig(name="a", retry_attempts_max=5)) == RetryRules(5, 1)
