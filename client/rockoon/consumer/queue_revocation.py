"""Queue revocation: ends the handler calls of queues that a member loses, and releases the queues.

No message is handled twice in a revocation: no more messages are handed out, running calls may end
within a time limit, and one call to the offset service stores their progress and releases the
queue. If calls exceed the limit, the queue is released, and the next owner gets their messages.

The rebalance listener calls a program's functions when its consumer gets or loses queues. For each
queue the calls alternate, `on_assigned` first. No message of a queue is delivered before its
`on_assigned` has returned. `on_revoked` is called when the queue's handler calls have ended or
their time is over, and before another member can get the queue.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from rockoon.callbacks import is_being_cancelled
from rockoon.consumer.delivery import HandlerDelivery
from rockoon.consumer.queue_reader import QueueReader
from rockoon.errors import RockoonError
from rockoon.offsets.offset_store import OffsetStore, Persisted
from rockoon_core.clock import Backoff
from rockoon_core.message_queue import MessageQueue
from rockoon_core.repeated_lines import limited
from rockoon_core.valid_text import loggable

# Maximum time of a listener function: long enough for a flush, shorter than most leases. The offset
# service grants a queue to its next owner when the hand-over time is over.
LISTENER_SECONDS_MAX = 5.0
QueuesFunction: TypeAlias = Callable[[Sequence[MessageQueue]], Awaitable[None] | None]
"""Called with sorted queues; async, or plain and quick, because it runs on the event loop."""


class RebalanceListener:
    """The listener functions of one consumer.

    Args:
        on_assigned: called with queues that this member gets, before they are read.
        on_revoked: called with queues that this member loses, before they are released.
        hidden_topic: topic whose queues are not reported: the group's retry topic.
    """

    def __init__(
        self,
        on_assigned: QueuesFunction | None,
        on_revoked: QueuesFunction | None,
        hidden_topic: str | None,
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._hidden_topic = hidden_topic
        self._reported: set[MessageQueue] = set()

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Report queues before they are read."""
        new = sorted(q for q in queues if q.topic != self._hidden_topic and q not in self._reported)
        self._reported.update(new)
        await self._call(self._on_assigned, new)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Report queues before they are released, each once."""
        gone = sorted(self._reported.intersection(queues))
        self._reported.difference_update(gone)
        await self._call(self._on_revoked, gone)

    async def _call(self, function: QueuesFunction | None, queues: list[MessageQueue]) -> None:
        if function is None or not queues:
            return
        try:
            async with asyncio.timeout(LISTENER_SECONDS_MAX):
                answer = function(queues)
                if inspect.isawaitable(answer):
                    await answer
        except (Exception, asyncio.CancelledError) as failure:
            if is_being_cancelled():
                raise
            # Errors of the program's function do not stop the rebalance.
            log.exception(
                "a rebalance listener failed for %s, the rebalance continues",
                ", ".join(map(str, queues)),
                exc_info=loggable(failure),
            )


log = limited(logging.getLogger(__name__))

LAST_COMMIT_SECONDS_MAX = 10.0
# Time for an interrupted orderly call to end.
_INTERRUPTED_SECONDS_MAX = 0.5


class QueueRevocation:
    """The queues that are being revoked from one member.

    Args:
        group: name of the group, for log lines.
        listener: called before queues are released.
        on_persisted: called with each result of the store.
        on_ended: called when the revocation of queues has ended.
    """

    def __init__(
        self,
        group: str,
        store: OffsetStore,
        delivery: HandlerDelivery,
        listener: RebalanceListener,
        *,
        on_persisted: Callable[[Persisted], None],
        on_ended: Callable[[], None],
    ) -> None:
        self.queues: set[MessageQueue] = set()
        """Queues that must not be resolved before their revocation ends: the late release would end
        the new grant."""
        self._group = group
        self._store = store
        self._delivery = delivery
        self._listener = listener
        self._on_persisted = on_persisted
        self._on_ended = on_ended
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        readers: Collection[QueueReader],
        claims: Collection[MessageQueue],
        drain_seconds: float,
        start_task: Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]],
    ) -> None:
        """Start a task that revokes queues.

        Args:
            readers: readers of the queues; they stop pulling and handing out messages now.
            claims: queues without a reader that may be granted to this member.
            drain_seconds: time limit for running handler calls.
            start_task: starts a task of the consumer.
        """
        for reader in readers:
            # Not dropped yet, because messages of running calls are still finished and committed.
            reader.process_queue.retire()
            self._delivery.cancel_redeliveries(reader)
            if reader.task is not None:
                reader.task.cancel()
        # Before the task starts: the next rebalance may run first.
        self.queues.update(claims, (reader.queue for reader in readers))
        task = start_task(lambda: self._revoke(list(readers), list(claims), drain_seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait for the end of all revocations; each has a time limit."""
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
                ready = [reader for reader in readers if is_late or not reader.running]
                if ready or claims:
                    self._log_late(ready)
                    readers = [] if is_late else [each for each in readers if each.running]
                    await self.store_last(ready, claims)
                    # After the last commit, which excludes dropped queues.
                    self._drop(ready, claims)
                    claims = []
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._delivery.ended.wait(seen)
                except TimeoutError:
                    continue
        finally:
            # Also if this task is cancelled: otherwise this member could never read the queues
            # again.
            self._drop(readers, claims)

    def _interrupt(self, readers: Iterable[QueueReader]) -> bool:
        """Interrupt orderly calls; return True if there was one."""
        interrupted = [self._delivery.interrupt(each) for each in readers if each.running]
        return any(interrupted)

    def _log_late(self, readers: Iterable[QueueReader]) -> None:
        for reader in readers:
            if reader.running:
                log.warning(
                    "%d handler calls of group %s still run while %s is released: their messages "
                    "are redelivered",
                    reader.running,
                    self._group,
                    reader.queue,
                )

    def _drop(self, readers: Collection[QueueReader], claims: Iterable[MessageQueue]) -> None:
        for reader in readers:
            reader.process_queue.drop()
            self._store.remove(reader.queue)
        self.queues.difference_update(claims, (reader.queue for reader in readers))
        self._on_ended()

    async def store_last(
        self,
        readers: Iterable[QueueReader],
        claims: Iterable[MessageQueue] = (),
        *,
        release: bool = True,
    ) -> None:
        """Store the last progress of queues and release them. Retriable errors are retried up to a
        time limit.

        Args:
            readers: readers with progress; dropped ones have none.
            claims: queues to release without progress.
            release: False: only store progress.
        """
        chosen = list(readers)
        queues = {*claims, *(reader.queue for reader in chosen)}
        if release:
            # Before the release: the listener is called while this member still owns the queues.
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
            log.warning(
                "last progress of %s not stored, messages are redelivered: %s", queue, reason
            )
