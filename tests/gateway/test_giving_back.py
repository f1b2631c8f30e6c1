"""Messages that were not delivered are returned, also after failures of the offset service."""

import asyncio
from collections.abc import Sequence

from rockoon.errors import OffsetServiceUnavailable
from rockoon.receiving.received import ReceiptHandle
from rockoon_core.message_queue import MessageQueue
from rockoon_gateway.consuming.settling import ReturnedMessages
from support.waiting import DEADLINE_SECONDS

QUEUE = MessageQueue("orders", "broker-a", 0)
ONE, TWO = ReceiptHandle(QUEUE, 1, 0), ReceiptHandle(QUEUE, 1, 1)
Change = tuple[str, tuple[ReceiptHandle, ...], int, bool, bool]


class NotingEngine:
    """Replies to and records every change."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.is_away = False

    async def change_visibility(
        self,
        group: str,
        receipts: Sequence[ReceiptHandle],
        visible_after_ms: int,
        *,
        counted: bool = True,
        extend: bool = False,
    ) -> list[ReceiptHandle | None]:
        self.changes.put_nowait((group, tuple(receipts), visible_after_ms, counted, extend))
        if self.is_away:
            raise OffsetServiceUnavailable
        return list(receipts)


async def test_messages_are_returned_once_the_offset_service_is_back() -> None:
    engine = NotingEngine()
    engine.is_away = True
    returned_messages = ReturnedMessages(engine)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(returned_messages.run())
        returned_messages.return_later("g", [ONE])
        assert await engine.changes.get() == ("g", (ONE,), 0, False, False)
        engine.is_away = False
        # Reports of its client would extend the message for hours.
        assert await engine.changes.get() == ("g", (ONE,), 0, False, False)
        returned_messages.return_later("g", [TWO])
        returned_messages.return_later("h", [ONE])
        changes = {await engine.changes.get(), await engine.changes.get()}
        assert changes == {("g", (TWO,), 0, False, False), ("h", (ONE,), 0, False, False)}
        assert engine.changes.empty()
        running.cancel()
