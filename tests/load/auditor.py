"""The checker in its own process: it reads queues, follows the ledger, watches lag.

After the senders have ended it reads the queues to their ends, then joins every group as a further
member until no message is left: messages that former members have committed must have been handled.
Then it writes `verdict.json`.
"""

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

import rockoon
from load import ledger, payload
from load.checker import Checker, Verdict
from load.ledger import LedgerFile
from load.plan import Plan
from load.scenarios import allowed_in
from rockoon.cluster import Cluster
from rockoon.consumer.pull import PullLimits
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.errors import BrokerUnavailable, RockoonError
from rockoon.message import Batch, Message
from rockoon_core.message_queue import MessageQueue

POLL_SECONDS = 0.2
LAG_GROUPS_MAX = 10
"""Groups whose lag is watched; queries cost CPU that the run measures."""
QUIET_SECONDS_MAX = 60.0
"""Seconds without progress after which the ends of queues count as not reached."""
SWEEPS_AT_ONCE = 8
WHOLE_BATCH = 1024


class Auditor:
    """Lives for one run.

    Args:
        plan: plan of the run.
        directory: directory of the results, with the ledger.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._checker = Checker()
        self._ledger = LedgerFile(directory / "ledger")
        self._ended = asyncio.Event()
        self._lags: list[dict[str, float]] = []
        self._troubles: list[str] = []

    async def run(self) -> Verdict:
        """Check the run; return when ledger and queues are read to their ends."""
        async with rockoon.connect(self._plan.endpoint) as cluster:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_ledger(), name="ledger")
                tasks.create_task(self._watch_lag(cluster), name="lag")
                if self._plan.check == "after":
                    await self._ended.wait()
                tasks.create_task(self._read_queues(cluster), name="queues")
            at_once = asyncio.Semaphore(SWEEPS_AT_ONCE)
            async with asyncio.TaskGroup() as tasks:
                for group in self._plan.group_names:
                    tasks.create_task(self._sweep(cluster, group, at_once), name=group)
        allowed = allowed_in(self._plan)
        verdict = self._checker.verdict(allowed)
        verdict.faults += self._troubles
        written = {
            **dataclasses.asdict(verdict),
            "is_good": verdict.is_good,
            "allowed": dataclasses.asdict(allowed),
            "bitmap_bytes": self._checker.size_bytes(),
            "lag": self._lags,
        }
        (self._directory / "verdict.json").write_text(json.dumps(written, indent=1))
        return verdict

    async def _follow_ledger(self) -> None:
        while not ledger.apply(self._checker, list(self._ledger.new_frames())):
            await asyncio.sleep(POLL_SECONDS)
        self._ended.set()

    async def _watch_lag(self, cluster: Cluster) -> None:
        while not self._ended.is_set():
            groups = self._plan.group_names[:LAG_GROUPS_MAX]
            try:
                lags = [(await cluster.admin.lag(group)).total_lag for group in groups]
            except RockoonError:
                # A group without a member so far, or a service that is away.
                lags = []
            if lags:
                self._lags.append({"at_s": time.time_ns() / 1e9, "messages": float(sum(lags))})
            await asyncio.sleep(self._plan.interval_seconds)

    async def _read_queues(self, cluster: Cluster) -> None:
        """Read everything, in the order of each queue, without a group."""
        ends: dict[MessageQueue, int] | None = None
        limits = PullLimits(messages_max=8192, bytes_max=4 << 20)
        async with cluster.pull_consumer(consume_from="first", limits=limits) as consumer:
            queues = [q for name in self._plan.topic_names for q in await queues_of(cluster, name)]
            await consumer.assign(queues)
            quiet_since = time.monotonic()
            while ends is None or any(consumer.position(q) < end for q, end in ends.items()):
                batch = await consumer.poll_batch(timeout=POLL_SECONDS)
                if batch is not None:
                    self._take(batch)
                    quiet_since = time.monotonic()
                    # Other tasks run while there is much to read.
                    await asyncio.sleep(0)
                elif ends is not None and time.monotonic() - quiet_since > QUIET_SECONDS_MAX:
                    self._troubles.append("queues could not be read to their ends")
                    return
                if ends is None and self._ended.is_set():
                    ends = await self.ends(cluster)

    def _take(self, batch: Batch) -> None:
        headers, wrong = payload.decode(batch.bodies, self._plan.run)
        queue = str(batch.queue)
        self._checker.stored(queue, headers["stream"], headers["sequence"].astype(np.int64))
        self._checker.foreign(wrong, f"{queue} from offset {int(batch.offsets[0])}")

    async def ends(self, cluster: Cluster) -> dict[MessageQueue, int]:
        """Return the ends of all queues; wait for brokers that are away.

        Raises:
            RockoonError: one stays away.
        """
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while True:
            try:
                return await self._ends_now(cluster)
            except RockoonError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _ends_now(self, cluster: Cluster) -> dict[MessageQueue, int]:
        ends = {}
        for name in self._plan.topic_names:
            for each in (await cluster.admin.describe_topic(name)).queues:
                if each.state is None:
                    raise each.error or BrokerUnavailable(broker=each.queue.broker)
                ends[each.queue] = each.state.max_offset
        return ends

    async def _sweep(self, cluster: Cluster, group: str, at_once: asyncio.Semaphore) -> None:
        """Read the messages that a group has not committed yet."""

        async def take(messages: list[Message]) -> None:
            headers, _ = payload.decode([message.body for message in messages], self._plan.run)
            numbers = headers["sequence"].astype(np.int64)
            self._checker.given(group, headers["stream"], numbers)

        async with at_once:
            ends = await self.ends(cluster)
            async with cluster.push_consumer(
                group,
                dict.fromkeys(self._plan.topic_names, "*"),
                take,
                consume_from="first",
                batch_max=WHOLE_BATCH,
                member_id="auditor",
                create_group=False,
            ) as consumer:
                await self._wait_at(consumer, ends, group)

    async def _wait_at(
        self, consumer: PushConsumer, ends: dict[MessageQueue, int], group: str
    ) -> None:
        quiet_since, known = time.monotonic(), -1
        while True:
            views = consumer.queues()
            places = {q: views[q].commit_offset if q in views else -1 for q in ends}
            if all(places[queue] >= end for queue, end in ends.items()):
                return
            if (now := sum(places.values())) != known:
                quiet_since, known = time.monotonic(), now
            if time.monotonic() - quiet_since > QUIET_SECONDS_MAX:
                self._troubles.append(f"the group {group} does not come to the ends of its queues")
                return
            await asyncio.sleep(POLL_SECONDS)


async def queues_of(cluster: Cluster, topic: str) -> list[MessageQueue]:
    return list((await cluster.route(topic)).queues)
