"""Queues that a member loses: handler calls end, progress is stored, the queue is released.

A queue is handed over so that no message is handled twice: nothing more of it is handed out, the
calls that run may end within a bound, and what they finished is stored in the same call that tells
the offset service to let the next member have it. A queue whose calls take too long is released all
the same; what they did not finish comes again there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from rockoon.consumer.delivery import Delivery
from rockoon.consumer.queue_reader import QueueReader
from rockoon.consumer.rebalance_listener import RebalanceListener
from rockoon.errors import RockoonError
from rockoon.offsets.offset_store import OffsetStore, Persisted
from rockoon_core.backoff import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))

LAST_COMMIT_SECONDS_MAX = 10.0
# For an ordered call that was interrupted to come to its end.
_INTERRUPTED_SECONDS_MAX = 0.5


class QueueRevocation:
    """The queues that are being revoked from one member.

    Args:
        group: for people.
        store: where progress goes.
        delivery: whose calls are waited for.
        listener: told before queues are released.
        on_persisted: told of every answer of the store.
        on_gone: called when queues are given up for good.
    """

    def __init__(
        self,
        group: str,
        store: OffsetStore,
        delivery: Delivery,
        listener: RebalanceListener,
        *,
        on_persisted: Callable[[Persisted], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.queues: set[MessageQueue] = set()
        """Not to be resolved again before they are gone: a late release would take them away."""
        self._group = group
        self._store = store
        self._delivery = delivery
        self._listener = listener
        self._on_persisted = on_persisted
        self._on_gone = on_gone
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        readers: Collection[QueueReader],
        claims: Collection[MessageQueue],
        drain_seconds: float,
        start_task: Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]],
    ) -> None:
        """Give queues up in a task.

        Args:
            readers: from now on nothing more of them is handed out or pulled.
            claims: queues that are not read and may be this member's all the same.
            drain_seconds: how long handler calls may go on.
            start_task: makes an owned task.
        """
        for reader in readers:
            # Not dropped yet: calls that run still finish messages, and those are to be committed.
            reader.process_queue.retire()
            self._delivery.forget(reader)
            if reader.task is not None:
                reader.task.cancel()
        # Before the task starts: the next rebalance may run first.
        self.queues.update(claims, (reader.queue for reader in readers))
        task = start_task(lambda: self._revoke(list(readers), list(claims), drain_seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all that was begun is done; bounded, as each part of it is."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _revoke(
        self, readers: list[QueueReader], claims: list[MessageQueue], drain_seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_seconds
        interrupted = False
        try:
            while readers or claims:
                seen = self._delivery.ended.count
                is_late = loop.time() >= deadline
                if is_late and not interrupted:
                    interrupted = True
                    deadline = loop.time() + _INTERRUPTED_SECONDS_MAX
                    is_late = not self._interrupt(readers)
                going = [reader for reader in readers if is_late or not reader.running]
                if going or claims:
                    self._tell_late(going)
                    readers = [] if is_late else [each for each in readers if each.running]
                    await self.store_last(going, claims)
                    # After the last commit, which a dropped queue takes no part in.
                    self._drop(going, claims)
                    claims = []
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._delivery.ended.wait(seen)
                except TimeoutError:
                    continue
        finally:
            # Also where this is cancelled: a queue that is being revoked is not read by this member
            # until it is dropped here.
            self._drop(readers, claims)

    def _interrupt(self, readers: Iterable[QueueReader]) -> bool:
        """End what calls can be ended early; returns whether there were any."""
        interrupted = [self._delivery.interrupt(each) for each in readers if each.running]
        return any(interrupted)

    def _tell_late(self, readers: Iterable[QueueReader]) -> None:
        for reader in readers:
            if reader.running:
                log.warning(
                    "%d handler calls of group %s still run as %s is given up: their messages "
                    "come again",
                    reader.running,
                    self._group,
                    reader.queue,
                )

    def _drop(self, readers: Collection[QueueReader], claims: Iterable[MessageQueue]) -> None:
        for reader in readers:
            reader.process_queue.drop()
            self._store.remove(reader.queue)
        self.queues.difference_update(claims, (reader.queue for reader in readers))
        self._on_gone()

    async def store_last(
        self,
        readers: Iterable[QueueReader],
        claims: Iterable[MessageQueue] = (),
        *,
        release: bool = True,
    ) -> None:
        """Store the progress of queues for the last time and release them, if that can be done
        within a bound; what fails in a way that can pass is tried again until then.

        Args:
            readers: those that were dropped have no progress any more.
            claims: queues to be released only.
            release: False to keep the queues.
        """
        chosen = list(readers)
        queues = {*claims, *(reader.queue for reader in chosen)}
        if release:
            # Before the release, after which another member may read: the program still owns the
            # queues.
            await self._listener.revoked(queues)
        for reader in chosen:
            if not reader.process_queue.dropped:
                self._store.update(reader.queue, reader.process_queue.commit_offset)
        unstored: dict[MessageQueue, object] = {}
        backoff = Backoff()
        try:
            async with asyncio.timeout(LAST_COMMIT_SECONDS_MAX):
                while queues:
                    unstored.update(dict.fromkeys(queues, "no answer in time"))
                    store = self._store.release if release else self._store.persist
                    persisted = await store(queues)
                    self._on_persisted(persisted)
                    for queue in queues - persisted.kept.keys():
                        unstored.pop(queue)
                    unstored.update(persisted.lost)
                    unstored.update(persisted.kept)
                    queues = set(persisted.kept)
                    if queues:
                        await asyncio.sleep(backoff.next_seconds())
        except TimeoutError:
            pass
        except RockoonError as error:
            unstored.update(dict.fromkeys(queues, error))
        for queue, reason in sorted(unstored.items()):
            log.warning("the last progress of %s is not stored: %s", queue, reason)
