"""`make demo`: a cluster handles real messages, a broker kill, and new readers.

All services are separate processes on this machine: etcd, two nameservers, two brokers (later
three) and the offset service. At the end there is a second cluster whose broker has three copies.
The program ends with a table of verified claims, and with exit status 1 if a claim did not hold.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop
from rich.console import Console

import rockoon
from rockoon.consumer.push_consumer import PushConsumer
from rockoon.local import LocalCluster
from rockoon.local.process import LocalClusterError
from rockoon.message import Message, SendResult
from rockoon.offsets.start import Start
from rockoon.producer.producer import Producer
from rockoon.producer.receipt import Receipt
from rockoon_core.message_queue import MessageQueue
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, EXACT, GroupConfig
from tools.demo.copies import COPIES, lose_a_disk
from tools.demo.records import SAMPLE, Record, read_records
from tools.demo.verified import Received, Verified, print_starts

TOPIC = "packages"
ARRIVAL_SECONDS_MAX = 30.0

# RocketMQ 4.x treats a queue as new while its first message is within 40 % of memory of the log's
# end. With a memory setting this small, a hundred kilobytes are enough to move a message "to
# disk", and the demo need not write gigabytes.
BROKER_MEMORY = "256KiB"

console = Console(highlight=False)


class ConditionNotMet(Exception):
    """A condition did not hold in time; the text names it and the progress so far."""


class Warnings(logging.Handler):
    """Collects warnings and prints them as one line; killing a broker causes some."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage().partition("\n")[0])

    def print(self) -> None:
        """Print a line about the warnings since the last call, if there were any."""
        if self.sentences:
            more = f" (and {len(self.sentences) - 1} more)" if len(self.sentences) > 1 else ""
            console.print(f"warned: {self.sentences[0]}{more}", style="dim", markup=False)
        self.sentences.clear()


class Story:
    """The demo's cluster, data and findings; each method is a chapter."""

    def __init__(
        self,
        local: LocalCluster,
        cluster: rockoon.Cluster,
        records: list[Record],
        verified: Verified,
    ) -> None:
        self.local = local
        self.cluster = cluster
        self.records = records
        self.verified = verified
        self.acknowledged: dict[str, SendResult] = {}

    async def send(self, producer: Producer) -> set[str]:
        """Send every record once and return the message ids that were acknowledged."""
        receipts: list[Receipt] = []
        for record in self.records:
            await producer.wait_capacity()
            receipts.append(
                producer.send(
                    TOPIC, record.line, ordering_key=record.key, keys=record.key, tags=record.tag
                )
            )
        return await self.settle(receipts)

    async def settle(self, receipts: list[Receipt]) -> set[str]:
        done: set[str] = set()
        for receipt in receipts:
            result = await receipt
            self.acknowledged[result.message_id] = result
            done.add(result.message_id)
        return done

    @asynccontextmanager
    async def group(self, name: str, members: int) -> AsyncIterator["ReadingGroup"]:
        """Members of a consumer group that start at LAST if they have no progress."""
        received = Received(name)
        async with AsyncExitStack() as stack:
            consumers: list[PushConsumer] = []
            for number in range(members):
                member = f"{name}-{number + 1}"
                connection = rockoon.connect(self.local.nameservers, client_id=member)
                cluster = await stack.enter_async_context(connection)

                def on_message(message: Message, member: str = member) -> None:
                    received.add(member, message)

                consumer = cluster.push_consumer(
                    name, {TOPIC: "*"}, on_message, consume_from="last", concurrency=1
                )
                consumers.append(await stack.enter_async_context(consumer))
            group = ReadingGroup(received, consumers)
            await group.wait_shared(await self.queues())
            yield group

    async def queues(self) -> set[MessageQueue]:
        return set((await self.cluster.route(TOPIC)).queues)

    async def carry(self) -> None:
        """Chapter 1: every record is received once, in order."""
        chapter("1. Real records, a group of two members")
        await self.cluster.admin.create_topic(TOPIC, queues_per_broker=4)
        async with (
            self.group("readers", members=2) as group,
            self.cluster.producer() as producer,
        ):
            began = time.perf_counter()
            sent = await self.send(producer)
            await group.wait_for(sent)
            seconds = time.perf_counter() - began
            shares = [len(consumer.assignment) for consumer in group.consumers]
            received = group.received
        console.print(
            f"{len(sent)} records sent, stored on disk and read in {seconds:.2f} s; "
            f"{shares[0]} and {shares[1]} queues"
        )
        self.verified.check(
            "every record sent arrives, in a group of two members",
            not received.missing(sent) and received.messages.total() == len(sent),
            f"{len(sent)} sent, {len(received.messages)} received, {received.duplicates} twice",
        )
        self.verified.check(
            "every queue is read in order",
            received.backward_steps == 0,
            f"{received.backward_steps} steps back",
        )

    async def survive(self) -> None:
        """Chapter 2: a broker is killed while messages are being sent."""
        chapter("2. A broker is killed while messages are on their way")
        async with (
            self.group("readers", members=2) as group,
            self.cluster.producer() as producer,
        ):
            receipts: list[Receipt] = []
            for number, record in enumerate(self.records):
                await producer.wait_capacity()
                receipts.append(
                    producer.send(TOPIC, record.line, ordering_key=record.key, tags=record.tag)
                )
                if number == len(self.records) // 2:
                    # Some batches are acknowledged, some are being sent, some are still open.
                    await receipts[number // 2]
                    self.local.kill("broker-a")
                    console.print("broker-a: killed with SIGKILL")
                    self.local.start("broker-a", wait=False)
            await self.local.wait_ready("broker-a")
            sent = await self.settle(receipts)
            await group.wait_for(sent)
            received = group.received
        console.print(f"broker-a: back; {len(sent)} messages acknowledged, before and after")
        self.verified.check(
            "nothing that was acknowledged is lost when a broker is killed",
            not received.missing(sent),
            f"{len(sent)} acknowledged, {len(received.missing(sent))} missing, "
            f"{received.stored_twice} stored twice (resent after the kill)",
        )

    async def expand(self) -> None:
        """Chapter 3: the topic grows while two groups are stopped; one uses RocketMQ's rule."""
        chapter("3. The topic grows while its readers are away")
        await self.cluster.admin.create_group(
            GroupConfig(name="classic-readers", new_queue_rule=CLASSIC)
        )
        # The second group reads to the end once, to have progress on every old queue.
        async with self.group("classic-readers", members=1):
            pass
        old_queues = await self.queues()
        await asyncio.to_thread(self.local.add_broker, "broker-c", memory_bytes=BROKER_MEMORY)
        grown = await self.cluster.admin.update_topic(
            TOPIC, add={"broker-a": 1, "broker-b": 1, "broker-c": 2}
        )
        route = await self.cluster.route(TOPIC, min_revision=grown.modified_revision)
        new_queues = set(route.queues) - old_queues
        console.print(f"both groups are stopped; {len(new_queues)} queues are added")
        async with self.cluster.producer() as producer:
            sent = await self.send(producer)
        console.print(f"{len(sent)} records are sent while nobody reads; then the groups return")
        in_new = {i for i in sent if self.acknowledged[i].queue in new_queues}

        found: list[dict[MessageQueue, Start]] = []
        for name, rule in (("readers", EXACT), ("classic-readers", CLASSIC)):
            async with self.group(name, members=2) as group:
                expected = sent if rule == EXACT else sent - in_new
                await group.wait_for(expected)
                missing = group.received.missing(sent)
                starts = group.starts
            found.append(starts)
            if rule == EXACT:
                self.verified.check(
                    "exact: a queue born after the group subscribed starts at its first message",
                    len(new_queues) == 4
                    and all(
                        starts[queue].reason == "NEW_QUEUE" and starts[queue].offset == 0
                        for queue in new_queues
                    ),
                    f"{len(new_queues)} new queues, all NEW_QUEUE at 0",
                )
                self.verified.check(
                    "exact: nothing is skipped when a topic grows",
                    not missing,
                    f"{len(sent)} sent, {len(in_new)} of them to new queues, "
                    f"{len(missing)} skipped",
                )
            else:
                self.verified.check(
                    "classic: RocketMQ's rule skips what the new queues hold by then",
                    missing == in_new and bool(missing),
                    f"{len(missing)} skipped",
                )
        print_starts(console, found[0], found[1], new_queues)

    async def start_new_groups(self) -> None:
        """Chapter 4: a new group requests LAST on a small topic."""
        chapter("4. New groups ask for LAST: only what comes from now on")
        topic = "greetings"
        await self.cluster.admin.create_topic(topic, queues_per_broker=1)
        async with self.cluster.producer() as producer:
            for number in range(30):
                await producer.send(topic, b"hello %d" % number)
        console.print("30 messages are there already")
        found: list[dict[MessageQueue, Start]] = []
        for name, rule in (("newcomers", EXACT), ("classic-newcomers", CLASSIC)):
            await self.cluster.admin.create_group(GroupConfig(name=name, new_queue_rule=rule))
            received = Received(name)

            def on_message(message: Message, received: Received = received) -> None:
                received.add("only", message)

            consumer = self.cluster.push_consumer(
                name, {topic: "*"}, on_message, consume_from="last"
            )
            async with consumer:
                group = ReadingGroup(received, [consumer])
                await group.wait_shared(set((await self.cluster.route(topic)).queues))
                replayed = sum(start.reason == "NEW_QUEUE" for start in group.starts.values())
            found.append(group.starts)
            if rule == EXACT:
                self.verified.check(
                    "exact: a new group that asks for LAST gets LAST",
                    replayed == 0,
                    f"{len(group.starts)} queues at their end",
                )
            else:
                self.verified.check(
                    "classic: RocketMQ's rule replays history instead",
                    replayed > 0,
                    f"{replayed} of {len(group.starts)} queues from 0",
                )
        print_starts(console, found[0], found[1], set())


class ReadingGroup:
    """Running members of one consumer group."""

    def __init__(self, received: Received, consumers: list[PushConsumer]) -> None:
        self.received = received
        self.consumers = consumers

    @property
    def starts(self) -> dict[MessageQueue, Start]:
        """The first start on every queue, over all members."""
        return {
            queue: start
            for consumer in reversed(self.consumers)
            for queue, start in consumer.starts.items()
        }

    async def wait_shared(self, queues: set[MessageQueue]) -> None:
        """Wait until every queue has one reader, and every member has a queue."""

        def shared() -> bool:
            held = [queue for consumer in self.consumers for queue in consumer.assignment]
            idle = any(not consumer.assignment for consumer in self.consumers)
            return not idle and len(held) == len(queues) and set(held) == queues

        await until(shared, lambda: "the members did not share the queues")

    async def wait_for(self, messages: set[str]) -> None:
        await until(
            lambda: not self.received.missing(messages),
            lambda: f"{len(self.received.missing(messages))} of {len(messages)} did not arrive",
        )


async def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Wait for a condition.

    Raises:
        ConditionNotMet: it did not hold within ARRIVAL_SECONDS_MAX; the text is from `otherwise`.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise ConditionNotMet(otherwise())
        await asyncio.sleep(0.02)


def chapter(title: str) -> None:
    console.print(f"\n[bold]{title}[/bold]")


async def run_demo(records: list[Record], warnings: Warnings) -> bool:
    began = time.perf_counter()
    verified = Verified()
    local = LocalCluster(
        nameservers=2, brokers=2, settings={"broker": {"memory_bytes": BROKER_MEMORY}}
    )
    async with local:
        ready_seconds = time.perf_counter() - began
        console.print(
            f"etcd, 2 nameservers, 2 brokers, offset service: ready in {ready_seconds:.2f} s"
        )
        async with rockoon.connect(local.nameservers) as cluster:
            story = Story(local, cluster, records, verified)
            try:
                for chapter_of in (
                    story.carry,
                    story.survive,
                    story.expand,
                    story.start_new_groups,
                ):
                    await chapter_of()
                    warnings.print()
            except ConditionNotMet as failure:
                verified.check("everything happens in time", False, str(failure))
                warnings.print()
    if verified.all_hold:
        await run_copies(records, verified)
        warnings.print()
    chapter("What was verified")
    verified.print(console)
    console.print(f"\n{time.perf_counter() - began:.1f} s in all; nothing is left behind")
    return verified.all_hold


async def run_copies(records: list[Record], verified: Verified) -> None:
    chapter("5. Three copies: leaders are killed, and a disk is wiped")
    async with LocalCluster(replicas=COPIES) as local:
        console.print(f"another cluster, of {COPIES} replicas of its broker and of progress: ready")
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
                await lose_a_disk(local, records, verified, console)
        except TimeoutError:
            late = f"three copies did not get over it within {ARRIVAL_SECONDS_MAX:.0f} s"
            verified.check("everything happens in time", False, late)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--file", type=Path, default=SAMPLE, help="NDJSON, plain or .gz")
    file = parser.parse_args().file
    if not file.is_file():
        parser.error(f"{file} is not a file")
    records = read_records(file)
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    try:
        return 0 if uvloop.run(run_demo(records, warnings)) else 1
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left behind")
        return 130
    except LocalClusterError as failure:
        console.print(str(failure), markup=False)
        return 1
    finally:
        logging.getLogger().removeHandler(warnings)


if __name__ == "__main__":
    sys.exit(main())
