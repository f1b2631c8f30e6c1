"""Orderly group of real processes under load, and the log of its members' handler calls.

Rules for every queue, whichever member reads it:

- Its messages are handled in order: the next handled message is never after the next expected one.
- No handler call begins while a call of another member runs, except for the call in which a process
  was stopped.
- Every message is handled.
"""

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rockoon.cluster import Cluster
from rockoon.local import LocalCluster
from support import ordered_member
from support.eventually import eventually

QUEUES = 4
PACE_SECONDS = 0.02


class Log:
    """Lines that all members wrote, read again at each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[tuple[str, str, str, int]]:
        """Return member, "begins" or "ends", queue, offset, in the order of the events."""
        # A killed process may have written half of the last line.
        whole = self.path.read_text().rpartition("\n")[0]
        split = (line.split() for line in whole.splitlines())
        return [(member, what, queue, int(offset)) for member, what, queue, offset in split]

    def handled(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for _, what, queue, offset in self.lines():
            if what == "ends":
                found[queue].add(offset)
        return found

    def began(self, member: str) -> int:
        return sum(1 for who, what, _, _ in self.lines() if (who, what) == (member, "begins"))

    def queues_of(self, member: str) -> set[str]:
        return {queue for who, _, queue, _ in self.lines() if who == member}

    def check(self, *, failed: Sequence[str] = ()) -> int:
        """Check the rules above; `failed` were stopped or killed. Return the number of repeated
        messages."""
        last: dict[str, int] = {}
        running: dict[str, tuple[str, int]] = {}
        again = 0
        for number, (member, what, queue, offset) in enumerate(self.lines()):
            if what == "ends":
                if running.get(queue) == (member, offset):
                    del running[queue]
                else:
                    assert member in failed, f"line {number}: a call of {member} was overtaken"
                continue
            assert offset <= last.get(queue, -1) + 1, (
                f"line {number}: {member} was given {offset} of {queue} after {last.get(queue)}"
            )
            if queue in running:
                other, _ = running[queue]
                assert other in failed, f"line {number}: a call of {other} runs in {queue}"
                assert other != member or member in failed
            again += offset <= last.get(queue, -1)
            last[queue], running[queue] = offset, (member, offset)
        return again


class Members:
    """Processes of one group."""

    def __init__(self, local: LocalCluster, topic: str, log: Log) -> None:
        self.log = log
        self._local = local
        self._topic = topic
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def join(self, name: str) -> asyncio.subprocess.Process:
        process = self.processes[name] = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(ordered_member.__file__)),
            ",".join(self._local.nameservers),
            f"{self._topic}-readers",
            self._topic,
            name,
            str(self.log.path),
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        return process

    async def wait_reading(self, name: str, messages: int = 50) -> None:
        wanted = self.log.began(name) + messages
        await eventually(lambda: self.log.began(name) >= wanted)

    async def leave(self, name: str) -> None:
        self.processes[name].terminate()
        await self.processes[name].wait()

    async def end(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


class Load:
    """Sends some hundred messages with keys per second until it is stopped."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.stopping = False

    async def run(self) -> None:
        async with self._cluster.producer() as producer:
            number = 0
            while not self.stopping:
                for key in range(8):
                    producer.send(self._topic, b"%d" % number, ordering_key=str(key))
                number += 1
                await producer.flush()
                await asyncio.sleep(PACE_SECONDS)


@asynccontextmanager
async def loaded(
    local: LocalCluster, cluster: Cluster, topic: str, path: Path
) -> AsyncIterator[Members]:
    """Send to a topic within the block; at its end wait until all messages are handled."""
    await cluster.admin.create_topic(topic, queues_per_broker=QUEUES)
    members, load = Members(local, topic, Log(path)), Load(cluster, topic)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(members.end)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(load.run())
            yield members
            load.stopping = True
            await sending
        ends = {
            f"{each.queue.broker}/{each.queue.queue_id}": each.state.max_offset
            for each in (await cluster.admin.describe_topic(topic)).queues
            if each.state is not None and each.state.max_offset
        }
        wanted = {queue: set(range(end)) for queue, end in ends.items()}
        await eventually(lambda: members.log.handled() == wanted)
