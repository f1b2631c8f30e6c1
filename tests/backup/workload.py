"""Producers and a group at work, and the check of a cluster that was restored."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import rockoon
from rockoon.backup.manifest import BackupManifest
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster
from rockoon.message import Message, SendResult
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.offset_pb2 import RESTORED
from support.waiting import DEADLINE_SECONDS

TOPIC, GROUP = "orders", "billing"
KEYS = 8
# Several files and parts, also of a few thousand messages.
SMALL_FILES = {"broker": {"commit_log_file_bytes": "128KiB"}}


class Work:
    """Senders and a group of one topic.

    Attributes:
        acknowledged: results of the messages sent so far, by their bodies.
        handled: bodies of the messages that the group has handled.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, SendResult] = {}
        self.handled: set[bytes] = set()
        self._changed = asyncio.Condition()

    async def sent(self, count: int) -> None:
        """Wait until this many more messages are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(self.acknowledged) >= wanted)

    async def caught_up(self) -> None:
        """Wait until the group has handled all messages that are acknowledged now."""
        wanted = set(self.acknowledged)
        async with asyncio.timeout(DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: wanted <= self.handled)

    async def _send(self, producer: rockoon.Producer, sender: int, stopping: asyncio.Event) -> None:
        number = 0
        while not stopping.is_set():
            body = b"%d %d" % (sender, number)
            number += 1
            try:
                result = await producer.send(TOPIC, body, ordering_key=str(number % KEYS))
            except RockoonError:
                # Not acknowledged: the cluster is being destroyed.
                continue
            async with self._changed:
                self.acknowledged[body] = result
                self._changed.notify_all()

    async def _handle(self, message: Message) -> None:
        async with self._changed:
            self.handled.add(bytes(message.body))
            self._changed.notify_all()

    @asynccontextmanager
    async def running(
        self, cluster: rockoon.Cluster, senders: int = 2, first: int = 0
    ) -> AsyncIterator[None]:
        """Send and handle messages.

        Args:
            senders: tasks that send.
            first: number of the first sender.
        """
        stopping = asyncio.Event()
        async with (
            cluster.producer() as producer,
            cluster.push_consumer(GROUP, {TOPIC: "*"}, self._handle, consume_from="first"),
            asyncio.TaskGroup() as tasks,
        ):
            for sender in range(first, first + senders):
                tasks.create_task(self._send(producer, sender, stopping))
            try:
                yield
            finally:
                stopping.set()

    def before_cut(self, manifest: BackupManifest) -> dict[bytes, SendResult]:
        """Acknowledged messages below the ends of the backup's queues."""
        ends = {log.name: log.queue_ends() for log in manifest.logs}
        return {
            body: result
            for body, result in self.acknowledged.items()
            if result.queue_offset
            < ends[result.queue.broker].get(TOPIC, {}).get(result.queue.queue_id, 0)
        }


async def read_topic(cluster: rockoon.Cluster) -> dict[MessageQueue, list[bytes]]:
    """Bodies of all messages of the topic by queue, from offset 0 on, read without a group."""
    async with cluster.pull_consumer() as consumer:
        await consumer.assign((await cluster.route(TOPIC)).queues)
        await consumer.seek_to_beginning()
        found: dict[MessageQueue, list[bytes]] = {}
        ends = {
            each.queue: each.state.max_offset
            for each in (await cluster.admin.describe_topic(TOPIC)).queues
            if each.state is not None
        }
        while any(len(found.get(queue, ())) < end for queue, end in ends.items()):
            batch = await consumer.poll_batch(timeout=DEADLINE_SECONDS)
            assert batch is not None, f"{found.keys()} of {ends}"
            of_queue = found.setdefault(batch.queue, [])
            assert next(each.queue_offset for each in batch) == len(of_queue)
            of_queue += [bytes(each.body) for each in batch]
        return found


async def check_restored(
    cluster: rockoon.Cluster, work: Work, manifest: BackupManifest
) -> Mapping[MessageQueue, int]:
    """Check that a restored cluster has all messages up to the cut, that no offset is beyond the
    end of its queue, and that each offset has a reason. Returns the offsets of the group.
    """
    stored = await read_topic(cluster)
    kept = work.before_cut(manifest)
    for body, result in kept.items():
        assert stored[result.queue][result.queue_offset] == body, f"{body!r} is lost: {result}"
    ends = {log.name: log.queue_ends() for log in manifest.logs}
    offsets = {}
    for story in await cluster.admin.why(GROUP, TOPIC):
        progress = story.progress
        assert progress is not None
        end = ends[story.queue.broker].get(TOPIC, {}).get(story.queue.queue_id, 0)
        assert len(stored.get(story.queue, ())) == end
        assert progress.offset <= end
        assert progress.start_reason == RESTORED
        assert manifest.backup in progress.start_explanation
        offsets[story.queue] = progress.offset
    return offsets


def destroy(local: LocalCluster, folder: Path) -> None:
    """Kill all processes of a cluster, and delete its files."""
    for node in local.nodes:
        local.kill(node.name)
    shutil.rmtree(folder)


@asynccontextmanager
async def restored(folder: Path) -> AsyncIterator[LocalCluster]:
    """A cluster whose stores a restore has written into a directory."""
    settings = {
        "nameserver": {"import_routes": folder / "routes"},
        "broker-a": {"store_path": folder / "broker-a"},
        "offset": {"store_path": folder / "offset"},
    }
    async with LocalCluster(folder / "new", single=True, settings=settings) as local:
        yield local
