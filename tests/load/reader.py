"""A member of a consumer group that reports its messages and their latencies."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np

from load import payload
from load.account import Account
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer, Timing
from rockoon.message import Message

RECEIVE = "receive"
JOIN = "join"
LEAVE = "leave"
LOOK_SECONDS = 0.01
BATCH_MAX = 256
COMMIT_SECONDS = 1.0


class Reader:
    """A push consumer.

    Args:
        cluster: the connection.
        account: receives the messages; latencies are from the due time of a message to the call of
            its handler.
        run: id of the run; a message of another run counts as a failure.
        group: its consumer group.
        topics: its topics, read from the first message on.
        member_id: unique in the group.
        handle_seconds: time of each handler call, with up to `batch_max` messages.
        batch_max: see `PushConsumer`.
    """

    def __init__(
        self,
        cluster: Cluster,
        account: Account,
        run: int,
        group: str,
        topics: Sequence[str],
        *,
        member_id: str,
        handle_seconds: float = 0,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self._cluster = cluster
        self._account = account
        self._run = run
        self._group = group
        self._topics = topics
        self._member_id = member_id
        self._handle_seconds = handle_seconds
        self._batch_max = batch_max

    def consumer(self) -> PushConsumer:
        """Return a consumer that is not started."""
        return PushConsumer(
            self._cluster,
            self._group,
            dict.fromkeys(self._topics, "*"),
            self._handle_many if self._batch_max > 1 else self._handle_one,
            consume_from="first",
            batch_max=self._batch_max,
            timing=Timing(commit_seconds=COMMIT_SECONDS),
            member_id=self._member_id,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Read until the stop event is set."""
        async with self.consumer() as consumer, asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(consumer.wait(), name="ended")
            await stop.wait()
            ended.cancel()

    async def stay(self, stop: asyncio.Event, seconds: float) -> None:
        """Join, read for this time, and leave."""
        async with AsyncExitStack() as stack:
            began = time.perf_counter()
            consumer = await stack.enter_async_context(self.consumer())
            while not (stop.is_set() or consumer.assignment) and self._is_within(began, seconds):
                await asyncio.sleep(LOOK_SECONDS)
            if consumer.assignment:
                self._took(JOIN, began)
            await wait_or_stop(stop, seconds - (time.perf_counter() - began))
            began = time.perf_counter()
            await stack.aclose()
            self._took(LEAVE, began)

    def _is_within(self, began: float, seconds: float) -> bool:
        return time.perf_counter() - began < seconds

    def _took(self, operation: str, began: float) -> None:
        self._account.took(operation, np.full(1, (time.perf_counter() - began) * 1e6, np.int64))

    async def _handle_one(self, message: Message) -> None:
        await self._handle_many([message])

    async def _handle_many(self, messages: list[Message]) -> None:
        now_us = time.time_ns() // 1000
        bodies = [message.body for message in messages]
        headers, wrong = payload.decode(bodies, self._run)
        if self._handle_seconds:
            await asyncio.sleep(self._handle_seconds)
        self._account.took(RECEIVE, now_us - headers["due_us"], sum(map(len, bodies)))
        if wrong:
            stranger = ValueError(f"a message that is not of run {self._run}")
            self._account.failed(RECEIVE, stranger, wrong)
        sequences = headers["sequence"].astype(np.int64)
        self._account.given(self._group, headers["stream"].copy(), sequences)


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> None:
    """Return when the stop event is set, or after this time."""
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await stop.wait()
    except TimeoutError:
        pass
