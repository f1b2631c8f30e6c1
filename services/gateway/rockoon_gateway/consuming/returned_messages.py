"""Returns messages that were acquired for a client and not delivered to it.

They become visible immediately, and the delivery does not count as an attempt. If the offset
service is unreachable, they are returned later: otherwise reports of a living client would extend
them for hours.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from rockoon.errors import RockoonError
from rockoon.receiving.received import ReceiptHandle

log = logging.getLogger(__name__)

# Pause between two tries while the offset service is unreachable.
PAUSE_SECONDS = 1.0


class Visibility(Protocol):
    """The part of `ReceivingEngine` that `ReturnedMessages` uses."""

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        """Change when messages become visible; see `ReceivingEngine`."""
        ...


class ReturnedMessages:
    """Makes messages visible again that were acquired for a client and not delivered.

    Args:
        engine: changes visibility.
    """

    def __init__(self, engine: Visibility) -> None:
        self._engine = engine
        self._queued: list[tuple[str, ReceiptHandle]] = []
        self._flush_due = asyncio.Event()
        self._flushing = asyncio.Lock()

    def return_later(self, group: str, receipts: Iterable[ReceiptHandle]) -> None:
        """Queue messages of a group; the next call to the offset service returns them."""
        self._queued += [(group, receipt) for receipt in receipts]
        self._flush_due.set()

    async def run(self) -> None:
        """Make queued messages visible again, by calls to the offset service, until cancelled."""
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            await self.flush()
            if self._queued:
                await asyncio.sleep(PAUSE_SECONDS)
                self._flush_due.set()

    async def flush(self) -> None:
        """Return all messages that `return_later` has queued; failed ones stay queued."""
        # `run` may be returning the same messages now.
        async with self._flushing:
            groups: dict[str, list[ReceiptHandle]] = defaultdict(list)
            for group, receipt in self._queued:
                groups[group].append(receipt)
            self._queued = []
            async with asyncio.TaskGroup() as tasks:
                for group, receipts in groups.items():
                    tasks.create_task(self._return(group, receipts), name=f"give back, {group}")

    async def _return(self, group: str, receipts: Sequence[ReceiptHandle]) -> None:
        try:
            await self._engine.change_visibility(group, receipts, 0, counted=False)
        except RockoonError as failure:
            count = len(receipts)
            log.info("%d messages of %s were not returned yet: %s", count, group, failure)
            if failure.retriable:
                self._queued += [(group, receipt) for receipt in receipts]
