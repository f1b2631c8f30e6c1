"""Invented handles do not affect other receivers."""

import asyncio
from collections.abc import Sequence

import pytest

import rockoon
from gateway.consumers import Consumer, handle, topic_with
from gateway.wire_client import WireClient
from rockoon.receiving.received import ReceiptHandle
from rockoon_gateway.consuming.handles import Handle
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

OFFSETS = {
    "too far apart for one mask": [8, 80_000_000_000],
    "scattered": range(0, 3_000_000, 3_000),
    "the largest": [0, 1 << 62],
    "too large": [1 << 63],
    "too large for an int": [1 << 70],
}


@pytest.mark.parametrize("what", OFFSETS)
async def test_made_up_offsets_of_anothers_acquisition_fail_nobody_else(
    client: WireClient, cluster: rockoon.Cluster, what: str
) -> None:
    topic = await topic_with(cluster, f"forged-{list(OFFSETS).index(what)}", [b"a", b"b"])
    honest = Consumer(client, f"honest-{topic}", topic)
    first, second = await honest.receive_all(2)
    given = Handle.parse(handle(first), 0)
    made_up = forged(given, OFFSETS[what])
    async with asyncio.TaskGroup() as tasks:
        forged_acks = tasks.create_task(honest.acknowledge(*made_up))
        forged_change = tasks.create_task(honest.change(made_up[-1], 30.0))
        ack = tasks.create_task(honest.acknowledge(handle(first)))
        change = tasks.create_task(honest.change(handle(second), 30.0))
    codes = [each.status.code for each in forged_acks.result().entries]
    assert Code.INVALID_RECEIPT_HANDLE in codes
    assert forged_change.result().status.code == Code.INVALID_RECEIPT_HANDLE
    assert (ack.result().status.code, change.result().status.code) == (Code.OK, Code.OK)


@pytest.mark.parametrize("number", ["queue_id", "acquisition"])
async def test_numbers_that_the_wire_cannot_have_fail_nobody_else(
    client: WireClient, cluster: rockoon.Cluster, number: str
) -> None:
    topic = await topic_with(cluster, f"forged-{number.replace('_', '-')}", [b"a"])
    honest = Consumer(client, f"honest-{topic}", topic)
    (got,) = await honest.receive_all(1)
    receipt = Handle.parse(handle(got), 0).receipt
    if number == "queue_id":
        receipt = receipt._replace(queue=receipt.queue._replace(queue_id=1 << 31))
    else:
        receipt = receipt._replace(acquisition=1 << 70)
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(honest.acknowledge(Handle(receipt, 0).text()))
        taken = tasks.create_task(honest.acknowledge(handle(got)))
    assert refused.result().status.code == Code.INVALID_RECEIPT_HANDLE
    assert taken.result().status.code == Code.OK


async def test_a_call_acknowledges_so_many_at_most(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    topic = await topic_with(cluster, "forged-many")
    consumer = Consumer(client, "many", topic)
    answer = await consumer.acknowledge(*["nothing"] * 1025)
    assert answer.status.code == Code.BAD_REQUEST


def forged(given: Handle, offsets: Sequence[int]) -> list[str]:
    """Return handles of an acquisition, for other offsets."""
    receipt = given.receipt
    return [
        Handle(ReceiptHandle(receipt.queue, receipt.acquisition, offset), 0).text()
        for offset in offsets
    ]
