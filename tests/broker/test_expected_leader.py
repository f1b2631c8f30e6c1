"""Streams that arrive at a log's next leader before it serves clients."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rockoon_broker.clock import SystemClock
from rockoon_broker.rpc.service import BrokerService
from rockoon_core.errors import NotLeader
from rockoon_proto.v1.broker_pb2 import AppendRequest
from rockoon_runtime.error_guard import CallTimes

REFUSAL = NotLeader(replica="broker-a-0", log="broker-a")


async def nothing() -> AsyncIterator[AppendRequest]:
    return
    yield


async def test_a_stream_waits_for_a_broker_that_is_expected_and_is_refused_by_one_that_is_not() -> (
    None
):
    async with asyncio.TaskGroup() as tasks:
        service = BrokerService(tasks, SystemClock(), CallTimes())

        async def stream() -> None:
            async for _ in service.AppendStream(nothing(), None):
                pass

        service.refuse(REFUSAL)
        with pytest.raises(NotLeader):
            await stream()
        service.hold_calls()

        async def refused() -> None:
            with pytest.raises(NotLeader):
                await stream()

        waiting = tasks.create_task(refused())
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done, "it is not known yet whether this broker answers"
        service.refuse(REFUSAL)
        await waiting
        with pytest.raises(NotLeader):
            await stream()
