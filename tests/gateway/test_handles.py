"""Receipt handles: a returned handle equals the issued one, or is refused."""

import pytest

from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.codes import Refusal
from rockoon_gateway.consuming.handles import RENEWED, Handle
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

RECEIPT = ReceiptHandle(MessageQueue("%RETRY%billing", "broker-a", 3), 17, 4711)


@pytest.mark.parametrize(("valid_until_ms", "now_ms"), [(2_000, 1_999), (RENEWED, 10**15)])
def test_a_handle_in_its_time_is_read_as_it_was_written(valid_until_ms: int, now_ms: int) -> None:
    handle = Handle(RECEIPT, valid_until_ms)
    assert Handle.parse(handle.text(), now_ms) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h-0-1",
        "orders@broker-a:3/17",
        "orders@broker-a:3/17/4711",
        "orders/17/4711/0",
        "orders@broker-a:3/x/4711/0",
        "orders@broker-a:3/17/4711/²",
        "orders@broker-a:3/17/4711/" + "9" * 5000,
        f"orders@broker-a:{1 << 31}/17/4711/0",
        f"orders@broker-a:3/{1 << 63}/4711/0",
        f"orders@broker-a:3/17/{(1 << 62) + 1}/0",
        Handle(RECEIPT, 2_000).text(),
    ],
)
def test_what_is_none_or_whose_time_is_over_is_an_invalid_handle(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        Handle.parse(text, 2_000)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    assert str(refused.value.status.message).startswith("INVALID_RECEIPT_HANDLE")
