"""Messages whose time the gateway lengthens while their receiver lives: those of push consumers.

    received ─▶ renewed whenever half of its time is over ─┬▶ acknowledged or changed by the client
                                                           ├▶ visible at once: the client is silent
                                                           └▶ visible when its time is over: after
                                                              three hours, or three failures

By a minute each time, however often: what a gateway's clients have when it dies with all it knows
comes again within that minute. RocketMQ's proxy goes up to an hour (docs/adr/0056).
Source: ReceiptHandleManager, RenewStrategyPolicy.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rockoon.errors import RockoonError
from rockoon.receiving.received import ReceiptHandle
from rockoon_gateway.consuming.receive_rules import RENEWED_MS

log = logging.getLogger(__name__)

RENEWED_SECONDS = RENEWED_MS / 1000
RENEW_SECONDS_LEFT = RENEWED_SECONDS / 2
SCAN_SECONDS = 5.0
HELD_SECONDS_MAX = 3 * 3600.0
FAILURES_MAX = 3


class Visibility(Protocol):
    """What of the receiving engine is needed."""

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        """See `ReceivingEngine`."""
        ...


@dataclass(slots=True)
class Held:
    """A message that a client works on."""

    client_id: str
    visible_at: float
    """When its time is over, seconds of the loop's clock."""
    held_until: float
    """When it is renewed no more."""
    failures: int = 0


Key = tuple[str, ReceiptHandle]
"""Group and receipt."""


class Renewals:
    """What is held by whom. Decides without I/O; times are seconds of one clock."""

    def __init__(self) -> None:
        self._held: dict[Key, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self, group: str, receipts: Iterable[ReceiptHandle], client_id: str, now: float
    ) -> None:
        """A client has got messages, invisible for RENEWED_SECONDS from now."""
        for receipt in receipts:
            held = Held(client_id, now + RENEWED_SECONDS, now + HELD_SECONDS_MAX)
            self._held[group, receipt] = held

    def forget(self, group: str, receipts: Iterable[ReceiptHandle]) -> None:
        """The client has settled them, or chosen a time of its own."""
        if self._held:
            for receipt in receipts:
                self._held.pop((group, receipt), None)

    def left(self, is_gone: Callable[[str], bool]) -> list[Key]:
        """What clients have that are gone; forgotten here."""
        gone = {each.client_id: is_gone(each.client_id) for each in self._held.values()}
        keys = [key for key, held in self._held.items() if gone[held.client_id]]
        for key in keys:
            del self._held[key]
        return keys

    def due(self, now: float) -> list[Key]:
        """What is to be renewed; what was held too long is forgotten instead."""
        keys = [k for k, held in self._held.items() if held.visible_at - now <= RENEW_SECONDS_LEFT]
        for key in keys:
            if self._held[key].held_until <= now:
                log.warning("a message of %s was worked on for hours: it comes again", key[0])
                del self._held[key]
        return [key for key in keys if key in self._held]

    def renewed(self, key: Key, now: float, *, is_valid: bool) -> None:
        """A renewal was answered; one that is not valid any more is forgotten."""
        if not is_valid:
            self._held.pop(key, None)
        elif (held := self._held.get(key)) is not None:
            held.visible_at, held.failures = now + RENEWED_SECONDS, 0

    def failed(self, key: Key) -> None:
        """A renewal was not answered."""
        held = self._held.get(key)
        if held is not None:
            held.failures += 1
            if held.failures >= FAILURES_MAX:
                del self._held[key]


class Renewer:
    """Renews what is due, and gives back what nobody works on.

    Args:
        engine: changes visibility.
        is_gone: whether nothing has been heard of a client, by its id, for long.
    """

    def __init__(self, engine: Visibility, is_gone: Callable[[str], bool]) -> None:
        self._engine = engine
        self._is_gone = is_gone
        self._table = Renewals()
        # To be given back at the next turn.
        self._untaken: list[Key] = []
        self._abandoned: list[Key] = []
        self._bell = asyncio.Event()
        self._giving_back = asyncio.Lock()

    def __len__(self) -> int:
        """How many messages are renewed."""
        return len(self._table)

    def add(self, group: str, receipts: Sequence[ReceiptHandle], client_id: str) -> None:
        """See `Renewals.add`."""
        self._table.add(group, receipts, client_id, asyncio.get_running_loop().time())
        self._bell.set()

    def forget(self, group: str, receipts: Iterable[ReceiptHandle]) -> None:
        """See `Renewals.forget`."""
        self._table.forget(group, receipts)

    def give_back(self, group: str, receipts: Iterable[ReceiptHandle]) -> None:
        """Messages that no client has seen: others get them at once, and it does not count."""
        self._table.forget(group, receipts := list(receipts))
        self._untaken += [(group, receipt) for receipt in receipts]
        self._bell.set()

    def release(self, client_id: str) -> None:
        """A client has said goodbye: others get at once what it has not settled."""
        self._abandoned += self._table.left(lambda each: each == client_id)
        self._bell.set()

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        next_scan = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_scan if len(self._table) else None):
                    await self._bell.wait()
            self._bell.clear()
            await self.flush()
            if loop.time() >= next_scan:
                await self.scan()
                next_scan = loop.time() + SCAN_SECONDS

    async def flush(self) -> None:
        """Give back what is to be given back now; on return it has been."""
        # The one that runs may have taken the messages out already.
        async with self._giving_back:
            untaken, self._untaken = self._untaken, []
            abandoned, self._abandoned = self._abandoned, []
            await self._give_back(untaken, counted=False)
            await self._give_back(abandoned, counted=True)

    async def scan(self) -> None:
        """Give back what the dead have left, and renew what is due."""
        await self._give_back(self._table.left(self._is_gone), counted=True)
        due = by_group(self._table.due(asyncio.get_running_loop().time()))
        async with asyncio.TaskGroup() as tasks:
            for group, receipts in due.items():
                tasks.create_task(self._renew(group, receipts), name=f"renew, {group}")

    async def _give_back(self, keys: Iterable[Key], *, counted: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group, receipts in by_group(keys).items():
                tasks.create_task(
                    self._make_visible(group, receipts, counted=counted),
                    name=f"give back, {group}",
                )

    async def _make_visible(
        self, group: str, receipts: Sequence[ReceiptHandle], *, counted: bool
    ) -> None:
        try:
            await self._engine.change_visibility(group, receipts, 0, counted=counted)
        except RockoonError as failure:
            count = len(receipts)
            log.info("%d messages of %s stay invisible for a while: %s", count, group, failure)

    async def _renew(self, group: str, receipts: Sequence[ReceiptHandle]) -> None:
        # Their time counts from before the call, in which some of it may pass.
        now = asyncio.get_running_loop().time()
        try:
            found = await self._engine.change_visibility(group, receipts, RENEWED_MS, extend=True)
        except RockoonError as failure:
            log.warning("%d messages of %s are not renewed: %s", len(receipts), group, failure)
            for receipt in receipts:
                self._table.failed((group, receipt))
            return
        for receipt, valid in zip(receipts, found, strict=True):
            self._table.renewed((group, receipt), now, is_valid=valid is not None)


def by_group(keys: Iterable[Key]) -> dict[str, list[ReceiptHandle]]:
    """Receipts of each group."""
    groups: dict[str, list[ReceiptHandle]] = defaultdict(list)
    for group, receipt in keys:
        groups[group].append(receipt)
    return groups
