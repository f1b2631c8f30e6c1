"""A reader of a PullStream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from rockoon_core.errors import BrokerUnavailable, from_wire
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import bodies_of
from support.waiting import DEADLINE_SECONDS

PLENTY = 1 << 40


class StreamReader:
    """Sends requests on a stream, and receives its replies.

    Attributes:
        call: the call of gRPC.
        replies: number of received replies with answers.
    """

    def __init__(self, stub: Any) -> None:
        self.call = stub.PullStream()
        self.replies = 0
        self._last = 0
        self._answers: list[Any] = []

    async def write(self, **fields: Any) -> None:
        await self.call.write(pb.PullStreamRequest(**fields))

    async def subscribe(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        *,
        messages: int = PLENTY,
        size: int = PLENTY,
        **more: Any,
    ) -> int:
        """Subscribe with credit; return the id."""
        self._last += 1
        pull = pb.PullRequest(topic=topic, queue_id=queue_id, offset=offset, **more)
        credit = [pb.PullCredit(id=self._last, messages=messages, bytes=size)]
        subscription = pb.PullSubscription(id=self._last, pull=pull)
        await self.write(subscribe=[subscription], credit=credit if messages and size else [])
        return self._last

    async def give(self, number: int, messages: int, size: int = 0) -> None:
        await self.write(credit=[pb.PullCredit(id=number, messages=messages, bytes=size)])

    async def answer(self) -> Any:
        """Return the next answer of any subscription; raises the error that ends the stream."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not self._answers:
                    reply = await self.call.read()
                    assert reply is not grpc.aio.EOF, "the stream has ended"
                    self._answers += reply.answers
                    self.replies += bool(reply.answers)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, BrokerUnavailable, broker="it") from failure
        return self._answers.pop(0)

    async def bodies(self, number: int) -> list[bytes]:
        """Return the bodies of the next answer, which belongs to this subscription and has
        messages."""
        answer = await self.answer()
        while answer.status != pb.FOUND:
            answer = await self.answer()
        assert answer.subscription_id == number
        return bodies_of(answer)

    async def refusal(self, number: int) -> Any:
        """Return the error of the next answer, which ends this subscription."""
        answer = await self.answer()
        assert (answer.subscription_id, answer.ended) == (number, True)
        return from_wire(answer.error)


@asynccontextmanager
async def reading(stub: Any) -> AsyncIterator[StreamReader]:
    reader = StreamReader(stub)
    try:
        yield reader
    finally:
        reader.call.cancel()
