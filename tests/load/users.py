"""Locust's users. Each runs a sender or a reader in the SDK's thread and waits for its end.

Their operations are counted per message where they happen, and added to Locust's statistics in
bulk, twice a second: Locust's own way, an event for each request, takes longer than a send.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import gevent
from locust import User, constant, task

from load.account import Account
from load.lanes import lanes_of
from load.plan import Plan
from load.reader import Reader, wait_or_stop
from load.sdk_thread import SdkThread, Work
from load.sender import Lane, Sender
from rockoon.cluster import Cluster

LOOK_SECONDS = 0.1
FILLING_SHARE = 0.25
"""Share of the time in which the queues are filled that are read later."""


class Session:
    """Common state of the users of a worker process.

    Args:
        plan: plan of the run.
        thread: connected.
        worker: number of this process, from 0.
    """

    def __init__(self, plan: Plan, thread: SdkThread, worker: int) -> None:
        self.plan = plan
        self.thread = thread
        self.account = Account()
        self.worker = worker
        self._counts: dict[str, int] = {}

    def number(self, kind: str) -> tuple[int, int]:
        """Count users of a kind on this worker, and return a number that is unique on all
        workers."""
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return count, count * self.plan.workers + self.worker


class SdkUser(User):  # type: ignore[misc]
    """Common part of all users."""

    abstract = True
    wait_time = constant(0)
    session: ClassVar[Session]
    """Set before the first user is created."""

    def on_start(self) -> None:
        self._is_told = False
        self._work: Work = self.session.thread.do(self.do)

    @task  # type: ignore[untyped-decorator]
    def work(self) -> None:
        """Check at times whether it has ended, because Locust stops users between tasks."""
        if not self._work.wait(LOOK_SECONDS):
            return
        if self._work.failure is not None and not self._is_told:
            self._is_told = True
            raise self._work.failure
        gevent.sleep(LOOK_SECONDS)

    def on_stop(self) -> None:
        self._work.stop()
        self._work.wait()
        if self._work.failure is not None and not self._is_told:
            self.session.account.failed("stop", self._work.failure)

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        """Run the user's work, in the SDK's thread, until the stop event is set."""
        raise NotImplementedError


class SendingUser(SdkUser):
    """Sends at the plan's rate. With one hot key by keys, else to every queue of its topics."""

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        await self._send(cluster, stop, self.session.plan.rate)

    async def _send(self, cluster: Cluster, stop: asyncio.Event, rate: float) -> None:
        plan = self.session.plan
        sender = Sender(
            cluster,
            self.session.account,
            plan.run,
            await self._lanes(cluster, self.session.number("sender")[1]),
            body_bytes=plan.body_bytes,
            rate=rate,
            window=plan.window,
        )
        await sender.run(stop)

    async def _lanes(self, cluster: Cluster, sender: int) -> list[Lane]:
        names = self.session.plan.topic_names
        queues = [queue for name in names for queue in (await cluster.route(name)).queues]
        return lanes_of(self.session.plan, sender, queues)


class FillingUser(SendingUser):
    """Sends as fast as possible for the first quarter of the time, then not at all."""

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        filled = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            sending = self._send(cluster, filled, self.session.plan.rate)
            tasks.create_task(sending, name="fill")
            await wait_or_stop(stop, self.session.plan.seconds * FILLING_SHARE)
            filled.set()
        await stop.wait()


class ReadingUser(SdkUser):
    """A member of one of the plan's groups, for the life of the user."""

    options: ClassVar[Mapping[str, Any]] = {}

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        await self._reader(cluster).run(stop)

    def _reader(self, cluster: Cluster, **options: Any) -> Reader:
        session, plan = self.session, self.session.plan
        count, number = session.number("reader")
        # However Locust distributes readers, each group has one of the first readers.
        group = count + session.worker * len(plan.group_names) // plan.workers
        return Reader(
            cluster,
            session.account,
            plan.run,
            plan.group_names[group % len(plan.group_names)],
            plan.topic_names,
            member_id=f"reader-{number}",
            **options,
        )


class LateReadingUser(ReadingUser):
    """Begins when the queues are filled."""

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        await wait_or_stop(stop, self.session.plan.seconds * FILLING_SHARE)
        if not stop.is_set():
            await super().do(cluster, stop)


class PassingUser(ReadingUser):
    """Joins, stays for some time, leaves, and joins again as another member."""

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._reader(cluster).stay(stop, self.session.plan.stay_seconds)


class SlowReadingUser(ReadingUser):
    """Handles messages one by one, each for the plan's time."""

    async def do(self, cluster: Cluster, stop: asyncio.Event) -> None:
        seconds = self.session.plan.handle_ms / 1e3
        await self._reader(cluster, handle_seconds=seconds, batch_max=1).run(stop)


USERS: dict[str, type[SdkUser]] = {
    each.__name__: each
    for each in (
        SendingUser,
        FillingUser,
        ReadingUser,
        LateReadingUser,
        PassingUser,
        SlowReadingUser,
    )
}
