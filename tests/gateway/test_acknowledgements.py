"""Entries of an AckMessage are handled, and get their results, independently of each other."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from rockoon.receiving.received import OFFSET_MAX, ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.codes import OK
from rockoon_gateway.consuming.handles import Handle
from rockoon_gateway.consuming.settling import (
    SHORT_BYTES_MAX,
    Settling,
    answer_by_entries,
    answer_to,
)
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb

NOW_MS = 1_764_000_000_000
CALLER = GatewayCall("c", "JAVA", "5", "peer", None, None)


class Even:
    """Accepts even offsets, and records its calls."""

    def __init__(self) -> None:
        self.told: list[ReceiptHandle] = []

    async def acknowledge(
        self, _group: str, receipts: Sequence[ReceiptHandle], *, receiver: str = ""
    ) -> list[bool]:
        assert receiver == CALLER.client_id
        self.told += receipts
        return [each.offset % 2 == 0 for each in receipts]

    async def dead_letter(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        *,
        reason: str = "",
        attempts: int = 1,
        receiver: str = "",
    ) -> list[bool]:
        raise NotImplementedError

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        raise NotImplementedError


queues = st.builds(
    MessageQueue,
    st.sampled_from(["orders", "others", "%RETRY%billing"]),
    st.just("broker-a"),
    st.sampled_from([0, 1, 1 << 31]),
)
receipts = st.builds(
    ReceiptHandle,
    queues,
    st.sampled_from([1, 2, 1 << 63]),
    st.sampled_from([0, 1, 2, OFFSET_MAX, OFFSET_MAX + 1]),
)
handles = st.builds(
    Handle, receipts, st.sampled_from([0, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + 2])
).map(Handle.text)
pieces = st.sampled_from(
    ["orders@broker-a:0", "/", "1", "2", "\u0663", "\u00b2", "-1", "", "x" * 1000]
)
odd = st.lists(pieces, max_size=8).map("".join) | st.text(max_size=20)
entries = st.builds(
    pb.AckMessageEntry,
    message_id=st.text(max_size=200),
    receipt_handle=handles | odd,
    lite_topic=st.none() | st.just("lite"),
)


@given(st.lists(entries, min_size=1, max_size=12))
@example([pb.AckMessageEntry(receipt_handle=f"orders@broker-a:0/1/{each}/0") for each in (2, 4, 3)])
@example(
    [pb.AckMessageEntry(receipt_handle=f"orders@broker-a:0/1/{each}/0") for each in ("2", "\u0662")]
)
async def test_together_as_each_for_itself(given: list[pb.AckMessageEntry]) -> None:
    whole = pb.AckMessageRequest(entries=given)
    together, alone = Even(), Even()
    answer = await acknowledged(together, whole)
    single = [await acknowledged(alone, pb.AckMessageRequest(entries=[entry])) for entry in given]
    assert [each.entries[0] for each in single] == list(answer.entries)
    assert together.told == alone.told
    assert answer == answer_by_entries(whole, [each.entries[0].status for each in single])


async def test_an_answer_of_any_size() -> None:
    for size in (0, 1, 60, 127, 128, SHORT_BYTES_MAX // 2, SHORT_BYTES_MAX, 1 << 20):
        request = pb.AckMessageRequest()
        request.entries.add(message_id="m" * size, receipt_handle="h" * (size // 2))
        assert answer_to(request, [OK]) == answer_by_entries(request, [OK])


async def acknowledged(engine: Even, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
    request.group.name, request.topic.name = "billing", "orders"
    return await Settling(engine, lambda: NOW_MS).acknowledge(request, CALLER)
