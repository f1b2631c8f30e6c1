"""Valid and invalid ReceiveMessage requests, as a table."""

import pytest
from google.protobuf.duration_pb2 import Duration

from rockoon_gateway.codes import Refusal
from rockoon_gateway.consuming.receive_rules import (
    HELD_MS_MAX,
    RENEWED_MS,
    receive_options,
    subscription_of,
)
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, FilterType
from rockoon_proto.apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest

SIMPLE = {"batch_size": 8, "invisible_duration": Duration(seconds=30)}


def request(**fields: object) -> ReceiveMessageRequest:
    return ReceiveMessageRequest(**{**SIMPLE, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("polling_seconds", "remaining_seconds", "waited"),
    [
        (20, 23, 20),
        (20, None, 20),
        (40, 40, 20),  # Rust
        (10, 13.1, 10),
        (1, 30, 5),
        (0, 3, 0),
        (20, 10, 9.5),
        (20, 5.2, 4.7),
        (None, 23.1, 20),  # C++ push, Go simple
        (None, 8.5, 7),
        (None, None, 20),
    ],
)
def test_a_poll_ends_before_its_client_gives_up(
    polling_seconds: float | None, remaining_seconds: float | None, waited: float
) -> None:
    given = {}
    if polling_seconds is not None:
        given["long_polling_timeout"] = Duration(seconds=int(polling_seconds))
    wish = receive_options(request(**given), remaining_seconds)
    assert wish.wait_seconds == pytest.approx(waited)


def test_a_deadline_too_near_to_poll_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        receive_options(request(long_polling_timeout=Duration(seconds=20)), 4.9)
    assert refused.value.code == Code.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize(("asked", "given"), [(-1, 1), (0, 1), (1, 1), (32, 32), (50, 32)])
def test_a_batch_has_1_to_32_messages(asked: int, given: int) -> None:
    assert receive_options(request(batch_size=asked), 30).messages_max == given


@pytest.mark.parametrize(
    ("milliseconds", "reason"),
    [
        (0, "the invisibleTime is too small: 0 ms"),
        (9_999, "the invisibleTime is too small: 9999 ms"),
        (12 * 3_600_000 + 1, "the invisibleTime is too large: 43200001 ms"),
    ],
)
def test_an_invisible_time_out_of_range_is_refused_with_the_words_of_rocketmqs_proxy(
    milliseconds: int, reason: str
) -> None:
    duration = Duration()
    duration.FromMilliseconds(milliseconds)
    with pytest.raises(Refusal) as refused:
        receive_options(request(invisible_duration=duration), 30)
    assert refused.value.code == Code.ILLEGAL_INVISIBLE_TIME
    assert str(refused.value) == f"{reason}, expected 10000 to 43200000 ms"


@pytest.mark.parametrize("seconds", [10, 12 * 3600])
def test_the_bounds_themselves_are_allowed(seconds: int) -> None:
    wish = receive_options(request(invisible_duration=Duration(seconds=seconds)), 30)
    assert (wish.visible_after_ms, wish.held_ms_max) == (seconds * 1000, 0)


def test_what_is_renewed_has_the_gateways_time_whatever_the_client_names() -> None:
    wish = receive_options(request(auto_renew=True, invisible_duration=Duration(seconds=1)), 30)
    assert (wish.visible_after_ms, wish.held_ms_max) == (RENEWED_MS, HELD_MS_MAX)
    bare = ReceiveMessageRequest(batch_size=1, auto_renew=True)
    assert receive_options(bare, 30).visible_after_ms == RENEWED_MS


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (FilterType.TAG, "*", "*"),
        (FilterType.TAG, "", "*"),
        (FilterType.FILTER_TYPE_UNSPECIFIED, "", "*"),
        (FilterType.TAG, " TagB||  TagA ", "TagA || TagB"),
        (FilterType.TAG, "x" * 16_384, "x" * 16_384),
        (FilterType.SQL, "a > 5 AND TAGS = 'x'", "SQL92: a > 5 AND TAGS = 'x'"),
    ],
)
def test_filters(kind: FilterType.ValueType, text: str, meant: str) -> None:
    wanted = subscription_of("orders", FilterExpression(type=kind, expression=text))
    assert (wanted.topic, wanted.expression) == ("orders", meant)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FilterType.SQL, ""),
        (FilterType.SQL, "a >"),
        (FilterType.TAG, "||"),
        # Kept while a call needs it, and for some time after.
        (FilterType.TAG, "x" * 16_385),
        (FilterType.TAG, "||".join(map(chr, range(0x4E00, 0x4E00 + 4097)))),
        (FilterType.SQL, "a = '" + "x" * 4097 + "'"),
        (99, "*"),
    ],
)
def test_a_filter_that_cannot_be_compiled_is_refused(kind: FilterType.ValueType, text: str) -> None:
    with pytest.raises(Refusal) as refused:
        subscription_of("orders", FilterExpression(type=kind, expression=text))
    assert refused.value.code == Code.ILLEGAL_FILTER_EXPRESSION
