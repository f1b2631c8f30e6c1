"""The exactly-once example in its own process, which kills itself at a chosen step.

python doomed_counter.py NAMESERVERS TOPIC DATABASE MESSAGES STEP

A step is the interval between two operations of the example on its database. With STEP 0 the
process ends by itself when progress shows that all messages are handled.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rockoon.message import Message
from rockoon.offsets.custom_offset_store import OffsetSnapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "examples"))

from exactly_once_sqlite import SqliteBackend, consume


class DoomedBackend(SqliteBackend):
    def __init__(self, path: str, messages: int, step: int) -> None:
        super().__init__(path)
        self._messages = messages
        self._steps_left = step
        self.all_handled = asyncio.Event()

    def _step(self, where: str) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            sys.stdout.write(where + "\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def once(
        self, messages: Sequence[Message], write: Callable[[sqlite3.Connection, Message], None]
    ) -> int:
        def write_and_step(database: sqlite3.Connection, message: Message) -> None:
            self._step("handled, no effect yet")
            write(database, message)
            self._step("within a transaction")

        news = super().once(messages, write_and_step)
        # As probable as all steps within.
        for _ in range(len(messages)):
            self._step("effects stored, progress not")
        return news

    async def write(self, changed: OffsetSnapshot) -> None:
        for _ in range(64):
            self._step("before progress")
        await super().write(changed)
        for _ in range(64):
            self._step("progress stored")
        (done,) = self.database.execute("SELECT sum(next_offset) FROM progress").fetchone()
        if done == self._messages:
            self.all_handled.set()


async def main(nameservers: str, topic: str, path: str, messages: str, step: str) -> None:
    backend = DoomedBackend(path, int(messages), int(step))
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(consume(nameservers, topic, backend, commit_seconds=0.02))
        await backend.all_handled.wait()
        counting.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
