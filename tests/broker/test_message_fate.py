"""QueueStatus of the message at an offset: its store time, and the time at which it can be lost."""

from pathlib import Path

import pytest

from rockoon_core import errors
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import running_broker
from support.broker_routes import BrokerRoutes

DAY_MS = 86_400_000


def asked(*offsets: int, queues: int = 1) -> pb.QueueStatusRequest:
    ref = pb.BrokerQueue(topic="T", queue_id=0)
    return pb.QueueStatusRequest(queues=[ref] * queues, offsets=offsets)


async def test_one_queue_may_be_asked_about_several_messages(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(
        tmp_path, [nameserver.address], disk_used_percent_max=95, reserved_hours=48
    ) as broker:
        times = [
            (await broker.append("T", 0, body)).store_timestamp_ms for body in (b"0", b"1", b"2")
        ]
        reply = await broker.call("QueueStatus", asked(2, 0, 3, queues=3))
        newest, oldest, end = reply.queues
        assert newest.asked_store_timestamp_ms == times[2]
        assert oldest.asked_store_timestamp_ms == times[0]
        for state in (newest, oldest):
            # Two days, then the hour in which files are deleted, which comes within a day.
            in_ms = state.asked_loss_at_ms - reply.as_of_ms
            assert 2 * DAY_MS - 60_000 < in_ms < 3 * DAY_MS + 60_000
        assert not end.HasField("asked_loss_at_ms")
        silent = (await broker.call("QueueStatus", asked())).queues[0]
        assert not silent.HasField("asked_store_timestamp_ms")


async def test_offsets_that_fit_no_question_are_refused(
    tmp_path: Path, nameserver: BrokerRoutes
) -> None:
    await nameserver.create_topic("T", {"broker-a": 1})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        with pytest.raises(errors.InvalidArgument, match="2 offsets for 1 queues"):
            await broker.call("QueueStatus", asked(0, 0))
        with pytest.raises(errors.InvalidOffset):
            await broker.call("QueueStatus", asked(-1))
