"""A proxy of a real broker that loses replies.

To a producer it is the broker. It forwards batches, and breaks streams when the test requests it:
before a batch is forwarded, right after, or when its reply has arrived.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from types import TracebackType
from typing import Any, Self

from grpc import aio

from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_proto.v1.broker_pb2_grpc import (
    BrokerServicer,
    BrokerStub,
    add_BrokerServicer_to_server,
)
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE


class Loss(Enum):
    """Time at which a stream breaks."""

    BEFORE = "the batch is not passed on"
    UNDERWAY = "it is passed on, nobody waits for the answer"
    AFTER = "it is stored and its answer thrown away"


class LossyBroker(BrokerServicer):
    """An async context manager.

    Args:
        channel: to the broker.
        plan: called with every batch, in order; returns the loss, if any.

    Attributes:
        losses: number of losses so far.
    """

    def __init__(
        self, channel: aio.Channel, plan: Callable[[pb.AppendRequest], Loss | None]
    ) -> None:
        self._stub: Any = BrokerStub(channel)
        self._plan = plan
        self._server: GrpcServer | None = None
        self.losses = 0

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    async def AppendStream(self, requests: Any, _: Any) -> AsyncIterator[pb.AppendReply]:
        onward = self._stub.AppendStream()
        losses: asyncio.Queue[Loss | None] = asyncio.Queue()

        async def pass_on() -> None:
            async for request in requests:
                loss = self._plan(request)
                if loss is not Loss.BEFORE:
                    await onward.write(request)
                losses.put_nowait(loss)
                if loss is not None:
                    return
            losses.put_nowait(Loss.BEFORE)

        async with asyncio.TaskGroup() as tasks:
            passing = tasks.create_task(pass_on())
            try:
                while (loss := await losses.get()) in (None, Loss.AFTER):
                    reply = await onward.read()
                    if loss is Loss.AFTER:
                        break
                    yield reply
                self.losses += 1
            finally:
                passing.cancel()
                if loss is not Loss.UNDERWAY:
                    onward.cancel()

    async def __aenter__(self) -> Self:
        def register(server: aio.Server) -> None:
            add_BrokerServicer_to_server(self, server)

        self._server = GrpcServer("broker", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE)
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        await self._server.__aexit__(None, None, None)
