"""What topics' attributes mean for compaction."""

import pytest

from rockoon_format.topic_attributes import (
    CLEANUP_POLICY,
    KNOWN_ATTRIBUTES,
    TOMBSTONE_RETENTION,
    TOMBSTONE_RETENTION_MS_DEFAULT,
    attribute_fault,
    is_compacted,
    tombstone_retention_ms,
    unknown_attribute_fault,
)


@pytest.mark.parametrize(
    ("topic", "policy", "compacted"),
    [
        ("T", "COMPACTION", True),
        ("T", "DELETE", False),
        ("T", None, False),
        ("T", "compaction", False),
        ("%RETRY%g", "COMPACTION", False),
        ("%DLQ%g", "COMPACTION", False),
    ],
)
def test_a_topic_is_compacted_when_its_policy_says_so(
    topic: str, policy: str | None, compacted: bool
) -> None:
    attributes = {} if policy is None else {CLEANUP_POLICY: policy}
    assert is_compacted(topic, attributes) is compacted


@pytest.mark.parametrize("text", ["", "-1", "1.5", "a day", "+1", "\u0665", "9" * 19, "9" * 5000])
def test_a_retention_that_is_no_number_is_refused_and_the_default_holds(text: str) -> None:
    fault = attribute_fault(TOMBSTONE_RETENTION, text)
    assert fault is not None
    assert "delete.retention.ms is" in fault
    assert tombstone_retention_ms({TOMBSTONE_RETENTION: text}) == TOMBSTONE_RETENTION_MS_DEFAULT


def test_tombstones_stay_as_long_as_is_said_or_a_day() -> None:
    assert tombstone_retention_ms({TOMBSTONE_RETENTION: "0"}) == 0
    assert tombstone_retention_ms({TOMBSTONE_RETENTION: "60000"}) == 60_000
    assert tombstone_retention_ms({}) == 86_400_000


def test_a_name_that_is_none_is_told_with_the_nearest_that_is() -> None:
    assert all(unknown_attribute_fault(name) is None for name in KNOWN_ATTRIBUTES)
    assert unknown_attribute_fault("delete.retention") == (
        "there is no attribute 'delete.retention': did you mean delete.retention.ms?"
    )
    assert "(there are cleanup.policy, " in str(unknown_attribute_fault("compression"))


def test_values_that_mean_nothing_here_may_be_anything() -> None:
    assert attribute_fault("message.type", "whatever") is None
    assert attribute_fault("queue.type", "SimpleCQ") is None
    assert attribute_fault("queue.type", "BatchCQ") == (
        "queue.type is BatchCQ: only RocketMQ supports queues of batch records"
    )
    assert attribute_fault(CLEANUP_POLICY, "DELETE") is None
    assert attribute_fault(CLEANUP_POLICY, "compaction") == (
        "cleanup.policy is 'compaction', neither DELETE nor COMPACTION"
    )
