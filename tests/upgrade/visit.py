"""One visit of a version of the programs to a data directory: `python -m upgrade.visit --help`.

The visit starts the cluster of the packages on its path, photographs it, finishes the work that the
former visit left open, sends messages of all kinds, and photographs again. Then it stops or kills
every process while clients are connected and work is open.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from upgrade.photograph import messages, photograph

import rockoon
from rockoon.errors import RockoonError
from rockoon.local import LocalCluster, LocalClusterError
from rockoon_proto.v1.nameserver_pb2 import BROADCAST_SERVER, GroupConfig
from rockoon_proto.v1.offset_pb2 import JSON_LINES, ResetTarget

SETTINGS = {
    "broker": {
        # Small files, so that the CommitLog and the ConsumeQueues have several.
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_entries": 500,
        "transaction_timeout_ms": 1000,
        "transaction_check_interval_ms": 1000,
        "transaction_checks_max": 1000,
    }
}
DEADLINE_SECONDS = 90.0
LOOK_SECONDS = 0.1
FAR_SECONDS = 86_400.0
SOON_SECONDS = 15.0
# The next visit finds the messages in flight, and gets them again after this time.
HELD_SECONDS = 15.0
BATCH = 1500
QUEUES = 2
TOPICS = ("plain", "ordered", "soon", "later", "paid", "failing", "received", "closed")

RECEIVERS = ("receivers", "fifo")

Handover = dict[str, Any]


def body(visit: int, name: object) -> bytes:
    return f"visit {visit}: {name}".encode()


async def until(holds: Callable[[], Awaitable[object]], condition: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await holds():
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise AssertionError(f"{condition}: not within {DEADLINE_SECONDS:.0f} s") from None


class Visit:
    """The clients of one visit.

    Args:
        cluster: the connection.
        number: number of the visit, from 0; the bodies of its messages have it.
        handover: the former visit's record of its open work, which `work` replaces.
        keeps_progress: False if only the exported offsets of the groups were kept.
    """

    def __init__(
        self, cluster: rockoon.Cluster, number: int, handover: Handover, keeps_progress: bool
    ) -> None:
        self._cluster = cluster
        self._admin = cluster.admin
        self._number = number
        self._keeps_progress = keeps_progress
        self.handover = handover

    async def create(self) -> None:
        """Create the topics and groups of all visits."""
        for name in TOPICS:
            await self._admin.create_topic(name, queues_per_broker=QUEUES)
        await self._admin.create_topic(
            "latest", queues_per_broker=1, attributes={"cleanup.policy": "COMPACTION"}
        )
        await self._admin.update_topic("closed", permissions=4)
        for config in (
            GroupConfig(name="refusing", retry_attempts_max=0),
            GroupConfig(name="fifo", fifo=True),
            GroupConfig(name="all", broadcast_progress=BROADCAST_SERVER, attributes={"a": "b"}),
            GroupConfig(name="paused", consume_disabled=True),
        ):
            await self._admin.create_group(config)

    # The former visit's work

    async def finish_former_work(self) -> None:
        """Finish the work that the former visit left open.

        Raises:
            AssertionError: a fact is lost, or open work was done already.
        """
        former = self._number - 1
        async with self._payments():
            await self._expect("paid", f"payers-{former}", {body(former, "committed")})
        await self._expect("soon", f"waiting-{former}", {body(former, "soon")})
        again = await self._expect("failing", f"retrying-{former}", {body(former, "fails once")})
        assert again[body(former, "fails once")] == 2, f"attempts: {again}"
        for topic, name in (("paid", "committed"), ("soon", "soon")):
            count = (await self._bodies(topic)).count(body(former, name))
            assert count == 1, f"{body(former, name)!r} is {count} times in {topic}"
        assert body(former, "rolled back") not in await self._bodies("paid")
        for group in RECEIVERS:
            await self._receive_again(group)
        if self._keeps_progress:
            await self._undo_reset()

    @asynccontextmanager
    async def _payments(self) -> AsyncIterator[rockoon.TransactionalProducer]:
        def check(message: rockoon.Message) -> rockoon.Resolution:
            resolution = rockoon.Resolution
            return resolution.ROLLBACK if b"rolled back" in message.body else resolution.COMMIT

        async with self._cluster.transactional_producer("payments", check=check) as producer:
            yield producer

    async def _expect(
        self, topic: str, group: str, wanted: Iterable[bytes], fails: bytes | None = None
    ) -> dict[bytes, int]:
        """Read a topic until the group has handled these messages; return their attempts."""
        handled: dict[bytes, int] = {}

        async def handle(message: rockoon.Message) -> None:
            if bytes(message.body) == fails:
                raise RuntimeError("a handler that fails")
            handled[bytes(message.body)] = message.attempt

        async def is_handled() -> bool:
            return set(wanted) <= handled.keys()

        async with self._cluster.push_consumer(group, {topic: "*"}, handle, consume_from="first"):
            await until(is_handled, f"group {group} handles {wanted} of {topic}")
            if fails is not None:
                await until(lambda: self._is_retried(group), f"{fails!r} waits for a retry")
        return handled

    async def _is_retried(self, group: str) -> bool:
        waiting = (await self._admin.delayed.list(1024)).messages
        return any(each.queue.topic == f"%RETRY%{group}" for each in waiting)

    async def _bodies(self, topic: str) -> list[bytes]:
        queues = await messages(self._cluster, await self._cluster.route(topic))
        return [bytes.fromhex(each[-1]) for queue in queues.values() for each in queue]

    async def _receive_again(self, group: str) -> None:
        """Receive the messages that were in flight when the former visit ended."""
        acknowledged, missing = self.handover[group]["acknowledged"], self.handover[group]["held"]
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            self._cluster.simple_consumer(group, {"received": "*"}) as consumer,
        ):
            again: list[str] = []
            while not set(missing) <= set(again):
                for message in await consumer.receive(wait=1.0):
                    text = message.body.decode()
                    again.append(text)
                    # In a FIFO group a message behind one that comes again was not attempted.
                    is_second = group != "fifo" or text == missing[0]
                    if text in missing and is_second and self._keeps_progress:
                        assert message.attempt == 2, f"{text}: attempt {message.attempt}"
                    await consumer.ack(message)
        assert acknowledged not in again, f"{acknowledged!r} was acknowledged"
        if group == "fifo":
            assert [text for text in again if text in missing] == missing, again

    async def _undo_reset(self) -> None:
        await self._admin.undo_reset(self.handover["reset"], operator="upgrade test")
        offsets = await self._offsets("rewound")
        assert offsets == self.handover["before reset"], offsets

    async def _offsets(self, group: str) -> dict[str, int]:
        return {
            f"{each.queue.broker}:{each.queue.queue_id}": each.offset
            for each in await self._admin.progress(group, "plain")
        }

    # This visit's work

    async def work(self) -> None:
        """Send messages of all kinds, let groups read a part, and leave work open."""
        await self._send()
        await self._delay()
        await self._delete_topics()
        await self._dead_letters()
        await self._read_in_order()
        await self._read_on("reader", 700)
        await self._read_on("slow-reader", 3)
        await self._broadcast()
        await self._reset()

    async def _send(self) -> None:
        number, cluster = self._number, self._cluster
        producer = cluster.producer()
        for index in range(5):
            await producer.send(
                "plain",
                body(number, index),
                keys=[f"key-{index}", "all"],
                tags=f"tag-{index % 2}",
                properties={"visit": str(number)},
            )
        await producer.send_many("plain", (os.urandom(1000) for _ in range(BATCH)), tags="batch")
        packing = cluster.producer(compression="zstd")
        await packing.send("plain", b"x" * 20_000, keys="key-last")
        once = cluster.producer(idempotent=True)
        await once.send_many("plain", [body(number, f"once {index}") for index in range(50)])
        for index in range(20):
            key = f"customer-{index % 3}"
            await producer.send("ordered", body(number, index), ordering_key=key)
        for index in range(10):
            key = f"key-{index % 3}"
            await producer.send("latest", body(number, index), keys=key, ordering_key=key)
        await producer.send("latest", b"", keys="key-0", ordering_key="key-0")

    async def _delay(self) -> None:
        producer = self._cluster.producer()
        for index in range(3):
            await producer.send("later", body(self._number, index), delay_seconds=FAR_SECONDS)
        sent = await producer.send("later", b"cancelled", delay_seconds=FAR_SECONDS)
        await self._admin.delayed.cancel(sent.offset_message_id)
        await producer.send("later", body(self._number, "level"), delay_level=18)

    async def _delete_topics(self) -> None:
        """Delete one topic, and delete and create another one."""
        gone, again = f"gone-{self._number}", f"again-{self._number}"
        producer = self._cluster.producer()
        for name in (gone, again):
            await self._admin.create_topic(name, queues_per_broker=1)
            await producer.send(name, b"deleted")
            await self._admin.delete_topic(name)
        await self._admin.create_topic(again, queues_per_broker=1)
        await producer.send(again, b"kept")

    async def _dead_letters(self) -> None:
        bodies = {body(self._number, name) for name in range(3)}
        fails = body(self._number, "fails once")
        await self._cluster.producer().send_many("failing", [*bodies, fails])

        async def refuse(message: rockoon.Message) -> None:
            raise RuntimeError("a handler that always fails")

        async def are_dead() -> bool:
            found = await self._admin.dead_letters.overview("refusing")
            return [each.messages for each in found] == [4 * (self._number + 1)]

        consumer = self._cluster.push_consumer(
            "refusing", {"failing": "*"}, refuse, consume_from="first"
        )
        async with consumer:
            await until(are_dead, "all messages of the topic are dead letters")
        await self._expect("failing", f"retrying-{self._number}", bodies, fails=fails)

    async def _read_in_order(self) -> None:
        """Read to the end as an orderly member, which stays connected."""
        order: dict[str, list[int]] = {}
        seen: set[bytes] = set()

        async def handle(message: rockoon.Message) -> None:
            number = int(message.body.decode().partition(": ")[2])
            order.setdefault(str(number % 3), []).append(number)
            seen.add(bytes(message.body))

        expected = {body(self._number, index) for index in range(20)}

        async def has_read_all() -> bool:
            lags = [each.lag for each in (await self._admin.lag("orderly")).queues]
            return expected <= seen and len(lags) > 0 and not any(lags)

        self._orderly = self._cluster.push_consumer(
            "orderly", {"ordered": "*"}, handle, orderly=True, consume_from="first"
        )
        await self._orderly.start()
        await until(has_read_all, "the orderly group reads to the end")
        assert seen == expected, f"handled before: {seen - expected}"
        assert all(numbers == sorted(numbers) for numbers in order.values()), order

    async def _read_on(self, group: str, count: int) -> None:
        """Read from the committed offsets, and commit."""
        committed = {
            (each.queue.broker, each.queue.queue_id): each.offset
            for each in await self._admin.progress(group, "plain")
        }
        async with self._cluster.pull_consumer(group, consume_from="first") as consumer:
            await consumer.assign_all("plain")
            while count > 0:
                found = await consumer.poll(max_messages=count, timeout=DEADLINE_SECONDS)
                assert found, f"group {group} gets no message"
                count -= len(found)
                for message in found:
                    place = (message.queue.broker, message.queue.queue_id)
                    expected = committed.get(place, 0)
                    assert message.queue_offset == expected, f"{message}, not offset {expected}"
                    committed[place] = expected + 1
            await consumer.commit()

    async def _broadcast(self) -> None:
        count = 0

        async def handle(message: rockoon.Message) -> None:
            nonlocal count
            count += 1

        async def has_read() -> bool:
            return count > 0

        consumer = self._cluster.push_consumer(
            "all",
            {"ordered": "*"},
            handle,
            mode="broadcasting",
            member_id="pod-1",
            consume_from="first",
        )
        async with consumer:
            await until(has_read, "the broadcasting member reads")

    async def _reset(self) -> None:
        await self._read_on("rewound", 50)
        self.handover["before reset"] = await self._offsets("rewound")
        plan = await self._admin.plan_reset("rewound", "plain", ResetTarget(earliest=True))
        await self._admin.apply_reset(plan.reset_id, operator="upgrade test")
        self.handover["reset"] = plan.reset_id

    async def export_progress(self) -> None:
        exported = await self._admin.export_offsets(JSON_LINES)
        self.handover["progress"] = exported.content.decode()

    async def import_progress(self) -> None:
        content = self.handover["progress"].encode()
        reply = await self._admin.import_offsets(JSON_LINES, content, operator="upgrade test")
        assert not reply.skipped, reply.skipped

    @asynccontextmanager
    async def open_work(self) -> AsyncIterator[None]:
        """Leave half messages, a delayed message, a retry and received messages open."""
        number, producer = self._number, self._cluster.producer()
        await producer.send("soon", body(number, "soon"), delay_seconds=SOON_SECONDS)
        await producer.send_many(
            "received", [body(number, f"received {index}") for index in range(8)]
        )
        for group in RECEIVERS:
            consumer = self._cluster.simple_consumer(group, {"received": "*"}, consume_from="first")
            # Messages of one queue, which is one message group.
            first, *held = await consumer.receive(4, visible_after=HELD_SECONDS)
            await consumer.ack(first)
            self.handover[group] = {
                "acknowledged": first.body.decode(),
                "held": [each.body.decode() for each in held],
            }
        async with self._payments() as payments:
            for name in ("committed", "rolled back"):
                # Checked by the next visit: this producer answers that it does not know yet.
                await payments.begin("paid", body(number, name), check_after_seconds=1)
            yield


async def visit(arguments: argparse.Namespace) -> None:
    number, keeps_progress = arguments.number, not arguments.imports
    handover = json.loads(arguments.handover.read_text()) if number else {}
    new: dict[str, Any] = {} if number else {"replicas": arguments.copies}
    if not number:
        new["brokers"] = 2 if arguments.copies == 1 else 1
    local = LocalCluster(arguments.directory, settings=SETTINGS, **new)
    if keeps_progress:
        await asyncio.to_thread(local.start)
    else:
        set_progress_aside(arguments.directory)
        await start_without_progress(local)
    result: dict[str, object] = {}
    async with rockoon.connect(local.nameservers, retry_seconds=DEADLINE_SECONDS) as cluster:
        clients = Visit(cluster, number, handover, keeps_progress)
        if not keeps_progress:
            await clients.import_progress()
        if number:
            result["found"] = await photograph(cluster)
            save(arguments.out, result)
            await clients.finish_former_work()
        else:
            await clients.create()
        await clients.work()
        async with clients.open_work():
            result["left"] = await photograph(cluster)
            await clients.export_progress()
            save(arguments.out, result)
            save(arguments.handover, clients.handover)
            end(local, arguments.end)


def set_progress_aside(directory: Path) -> None:
    """Move the data of the offset service to `former`: the service then starts without progress."""
    aside = directory / "former"
    aside.mkdir(exist_ok=True)
    for path in [*directory.glob("offset"), *directory.glob("offset-*")]:
        path.rename(aside / path.name)


async def start_without_progress(local: LocalCluster) -> None:
    """Start a cluster whose offset service has lost its data, as an operator would."""
    await asyncio.to_thread(local.start, wait=False)
    copies = local.replicas_of("offset")
    if len(copies) > 1:
        async with rockoon.connect(
            local.nameservers, connect_seconds_max=DEADLINE_SECONDS, retry_seconds=1.0
        ) as cluster:
            await until(lambda: answers(cluster), "an empty copy leads the offset service")

    async def is_ready() -> bool:
        try:
            await local.wait_ready()
        except LocalClusterError as refusal:
            # Until the lease of the killed process ends, its name belongs to its store.
            if "another store" not in str(refusal):
                raise
            await asyncio.to_thread(local.start, copies[0], wait=False)
            return False
        return True

    await until(is_ready, "the cluster is ready")


async def answers(cluster: rockoon.Cluster) -> bool:
    """Whether the offset service answers; if its log has no leader, one of the copies may lead."""
    try:
        await cluster.admin.progress()
    except RockoonError:
        try:
            # The log still has the leader that lost its data.
            await cluster.admin.logs.elect("offset")
            await cluster.admin.logs.elect("offset", accept_loss=True)
        except RockoonError as refusal:
            print(f"no election yet: {refusal}", file=sys.stderr)
        return False
    return True


def save(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True))


def end(local: LocalCluster, how: str) -> None:
    """End every process of the cluster, and this one without closing its clients."""
    if how == "kill":
        for node in local.nodes:
            node.signal(signal.SIGKILL)
    local.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    # Handlers of the scenario fail on purpose.
    logging.getLogger("rockoon").setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m upgrade.visit", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="the cluster's")
    parser.add_argument("--number", type=int, required=True, help="of the visit, from 0")
    parser.add_argument("--copies", type=int, choices=(1, 3), default=1, help="of each log")
    parser.add_argument("--end", choices=("clean", "kill"), default="clean")
    parser.add_argument(
        "--imports", action="store_true", help="start without progress, and import the exported"
    )
    parser.add_argument("--handover", type=Path, required=True, help="JSON between two visits")
    parser.add_argument("--out", type=Path, required=True, help="for the photographs, JSON")
    asyncio.run(visit(parser.parse_args()))


if __name__ == "__main__":
    main()
