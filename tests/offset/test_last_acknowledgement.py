"""The last acknowledgement of a queue and its receiver, in the group's progress."""

import json

import pytest
from offset.cluster import Cluster
from offset.receiver import Receiver
from offset.test_resets_without_plan import reset
from offset.test_windows import GROUP, QUEUE, open_ledger, replayed

from rockoon_offset.in_flight.deliveries import Holder
from rockoon_offset.progress.records import ProgressPut, Settled, decode, encode
from rockoon_proto.v1 import in_flight_pb2 as pb


async def last(cluster: Cluster) -> tuple[int, str, bool]:
    """Return the committed offset, the last receiver, and whether the time of its call is known."""
    (found,) = [each for each in await cluster.progress() if each.queue == cluster.ref(0)]
    assert found.acknowledged_at_ms in (0, found.stored_at_ms)
    return found.offset, found.acknowledged_by, found.acknowledged_at_ms > 0


async def test_the_receiver_of_the_last_acknowledgement_is_known_after_restarts(
    cluster: Cluster, receiver: Receiver
) -> None:
    await receiver.acquire(messages_max=4)
    assert await last(cluster) == (0, "", False)
    await receiver.acknowledge(receiver.delivered(2))
    # The holder, if the call names no receiver.
    assert await last(cluster) == (0, "r", True)
    other = receiver.delivered(0, 1)
    other.receiver = "other"
    await receiver.acknowledge(other)
    assert await last(cluster) == (3, "other", True)
    await cluster.restart_service()
    assert await last(cluster) == (3, "other", True)
    refused = receiver.delivered(0, 1)
    refused.receiver = "late"
    await receiver.acknowledge(refused)
    assert await last(cluster) == (3, "other", True)


async def test_a_commit_and_a_reset_end_what_receivers_did(
    cluster: Cluster, receiver: Receiver
) -> None:
    for move in ("commit", "reset"):
        await receiver.acquire(messages_max=2)
        await receiver.acknowledge()
        assert (await last(cluster))[1:] == ("r", True)
        if move == "commit":
            # A reader outside membership.
            (start,) = await cluster.resolve(0, member="")
            await cluster.commit(5, start.epoch, member="")
            assert await last(cluster) == (5, "", False)
        else:
            await reset(cluster, offset=1)
            assert await last(cluster) == (1, "", False)


async def test_a_name_that_is_too_long_is_refused(cluster: Cluster, receiver: Receiver) -> None:
    await receiver.acquire(messages_max=1)
    entry = receiver.delivered()
    entry.receiver = 256 * "r"
    (result,) = (await receiver.stub.Acknowledge(pb.AcknowledgeRequest(entries=[entry]))).results
    assert "receiver is longer than 255 bytes" in result.error.message
    assert (await receiver.listed()).in_flight == 1


def test_records_without_a_receiver_are_those_of_former_versions() -> None:
    ledger, deliveries = open_ledger()
    holder = Holder("r", "key", 0)
    (acquired,) = deliveries.acquire(GROUP, QUEUE, 3, 3, 0, 10, holder)
    former = Settled(GROUP, QUEUE, acquired.number, 0, 0b1, 7)
    assert len(json.loads(encode(former))) == 9
    (own,), _ = deliveries.acknowledge(GROUP, QUEUE, acquired.number, 0, 0b1, 7, "r")
    assert own == former
    found = ledger.find(GROUP, QUEUE)
    assert found is not None
    assert (found.acknowledged_by, found.acknowledged_at_ms) == ("r", 7)
    (other,), _ = deliveries.acknowledge(GROUP, QUEUE, acquired.number, 1, 0b1, 8, "s")
    assert decode(encode(other)) == other
    assert replayed(list(ledger.snapshot())).find(GROUP, QUEUE) == ledger.find(GROUP, QUEUE)
    bare, _ = open_ledger()
    (put,) = [each for each in bare.snapshot() if isinstance(each, ProgressPut)]
    # As many fields as before.
    assert len(json.loads(encode(put))) == 18


def test_a_record_of_a_newer_version_is_named_as_such() -> None:
    record = Settled(GROUP, QUEUE, 1, 0, 0b1, 7)
    for data in (
        json.dumps([*json.loads(encode(record)), "holder", 1, "a later field"]),
        json.dumps(["a later kind", GROUP]),
    ):
        with pytest.raises(ValueError, match="a newer version of the offset service wrote"):
            decode(data.encode())
