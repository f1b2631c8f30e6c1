"""Damage to files at rest: flipped bits, wrong sizes, torn ends.

A store is filled, read completely once, and kept. Then one fault at a time is made, while the
service runs or is stopped, and everything is read again: each message is returned unchanged, or its
reader gets an error. No message is returned changed, and none is silently left out, for readers of
all messages, of one tag, or of one key.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.cluster import BROKER, OFFSET, FaultyCluster
from faults.power import GROUPS, TOPIC
from faults.scenario import Outcome, Task
from faults.workload import TAGS, Books, Committer, Sender, Stored, read_topic

import rockoon
from rockoon.message import Message
from rockoon_core.message_queue import MessageQueue

QUEUES = 2
MESSAGES = 250
LANES = 3
KEYS_ASKED = 4
FLIPS_DOWN = 4
FLIPS_UP = 25
KINDS = ("commitlog", "consumequeue", "index", "checkpoint", "config", "other")

Place = tuple[MessageQueue, int]
Facts = tuple[object, ...]


def facts(message: Message) -> Facts:
    """All fields of a message that a reader can see."""
    return (
        message.body,
        tuple(sorted(message.properties.items())),
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.store_timestamp_ms,
        message.store_host,
        message.reconsume_times,
        message.physical_offset,
        message.message_id,
    )


def by_place(stored: Stored) -> dict[Place, Message]:
    return {
        (queue, message.queue_offset): message
        for queue, messages in stored.messages.items()
        for message in messages
    }


@dataclass
class Truth:
    """Content of a store before the damage."""

    messages: dict[Place, Facts]
    tags: dict[Place, str | None]
    keys: list[tuple[str, Place]]
    """Keys of the queries."""

    def compare(self, stored: Stored, expression: str = "*") -> list[str]:
        """Return the differences of a reader's messages."""
        found = by_place(stored)
        told = {(queue, at) for queue, offsets in stored.damaged.items() for at in offsets}
        wanted = {
            place for place in self.messages if expression == "*" or self.tags[place] == expression
        }
        faults = list(stored.troubles)
        hidden = wanted - found.keys() - told
        if hidden:
            queue, offset = min(hidden)
            faults.append(
                f"{len(hidden)} messages never come to readers of {expression!r}, who are told "
                f"nothing: {queue} {offset}"
            )
        for place in sorted(found.keys() & self.messages.keys()):
            # A reader of the body of a damaged message gets an error.
            try:
                seen = facts(found[place])
            except rockoon.errors.StoreCorrupt:
                continue
            if seen != self.messages[place]:
                pairs = zip(FACTS, seen, self.messages[place], strict=True)
                names = [name for name, one, other in pairs if one != other]
                faults.append(f"{place[0]} {place[1]} comes with another {', '.join(names)}")
                break
        invented = found.keys() - self.messages.keys()
        if invented:
            faults.append(f"{len(invented)} messages come that were never there: {min(invented)}")
        unasked = found.keys() & (self.messages.keys() - wanted)
        if unasked:
            faults.append(f"{len(unasked)} messages come to readers of {expression!r} by mistake")
        return faults


FACTS = (
    "body", "properties", "flag", "sys flag", "born time", "born host", "store time", "store host",
    "reconsume times", "physical offset", "message id",
)  # fmt: skip


async def look(cluster: rockoon.Cluster, truth: Truth, queries: bool = True) -> list[str]:
    """Read everything as readers of all messages, of each tag, and of some keys do."""
    faults = []
    for expression in ("*", *TAGS):
        faults += truth.compare(await read_topic(cluster, TOPIC, expression), expression)
    if not queries:
        return faults
    for key, place in truth.keys:
        try:
            found = await cluster.admin.messages.query(TOPIC, key)
        except rockoon.errors.StoreCorrupt:
            continue
        places = [(message.queue, message.queue_offset) for message in found.messages]
        if places != [place] and found.whole:
            faults.append(f"who asks for the key {key} is given {places} and told it is all")
    return faults


async def filled(cluster: rockoon.Cluster, task: Task) -> tuple[Truth, Books]:
    """Fill a topic, and read it completely."""
    chance = task.chance("fill")
    await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
    books = Books(TOPIC)
    async with cluster.producer(idempotent=True) as producer:
        await Sender(cluster, books, 1, chance, LANES).run(producer, MESSAGES)
        await producer.flush()
        # One message waits, and one transaction is not ended.
        for number in range(3):
            await producer.send(TOPIC, b"later %d" % number, delay_seconds=3600)
    stored = await read_topic(cluster, TOPIC)
    found = by_place(stored)
    asked = chance.sample(sorted(found), KEYS_ASKED)
    return (
        Truth(
            {place: facts(message) for place, message in found.items()},
            {place: message.tags for place, message in found.items()},
            [(found[place].keys[0], place) for place in asked],
        ),
        books,
    )


def kind_of(path: Path) -> str:
    first = path.parts[0]
    return first if first in KINDS else "other"


def used_bytes(path: Path) -> int:
    """Return the end of a file's content; files are reserved ahead."""
    return len(path.read_bytes().rstrip(b"\0"))


def files_by_kind(root: Path) -> dict[str, list[Path]]:
    """Return files that are not empty, by their purpose, from the root."""
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and used_bytes(path):
            relative = path.relative_to(root)
            found.setdefault(kind_of(relative), []).append(relative)
    return found


def flip(path: Path, chance: random.Random) -> Callable[[], None]:
    """Flip one bit of a file's content; return a function that flips it back."""
    at = chance.randrange(used_bytes(path))
    bit = 1 << chance.randrange(8)

    (was,) = path.read_bytes()[at : at + 1]

    def turn(to: int) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            # A repair in the meantime stays.
            if os.pread(fd, 1, at) == bytes([to ^ bit]):
                os.pwrite(fd, bytes([to]), at)
        finally:
            os.close(fd)

    turn(was ^ bit)

    def turn_back() -> None:
        turn(was)

    turn_back.__doc__ = f"{path.name} byte {at} bit {bit}"
    return turn_back


async def broker_flips(task: Task) -> Outcome:
    """Flip bits of every kind of file of a broker, while it runs and while it is stopped."""
    outcome, chance = Outcome(), task.chance("flips")
    local = FaultyCluster(task)
    async with local, rockoon.connect(local.nameservers) as cluster:
        truth, books = await filled(cluster, task)
        outcome.acknowledged = len(books.acknowledged)
        await look(cluster, truth)
        store = local.store(BROKER)
        # A running broker reads its log and its queues from the disk.
        for kind in ("commitlog", "consumequeue", "index"):
            for _ in range(task.count(FLIPS_UP)):
                relative = chance.choice(files_by_kind(store)[kind])
                turn_back = flip(store / relative, chance)
                outcome.injected += 1
                where = f"while it runs, {relative.parent}/{turn_back.__doc__}"
                outcome.breaks(where, await look(cluster, truth, kind == "index"))
                turn_back()
        outcome.breaks("while it runs", local.unexpected_ends())
        await local.down(BROKER)
        await local.up(BROKER)
        outcome.breaks("bits turned back, started", await look(cluster, truth))
        await asyncio.to_thread(local.stop, BROKER)
        kept = local.keep_store(BROKER)
        for files in files_by_kind(kept).values():
            for _ in range(task.count(FLIPS_DOWN)):
                relative = chance.choice(files)
                local.put_store(BROKER, kept)
                turn_back = flip(store / relative, chance)
                where = f"while it is down, {relative.parent}/{turn_back.__doc__}"
                await started(local, BROKER, outcome, where, lambda: look(cluster, truth))
    return outcome


async def started(
    local: FaultyCluster,
    node: str,
    outcome: Outcome,
    where: str,
    check: Callable[[], Awaitable[list[str]]],
) -> None:
    """Start a node on its damaged store. A refusal with the reason counts as noticed."""
    outcome.runs += 1
    outcome.injected += 1
    refusal = await local.up(node)
    if refusal:
        if "Traceback" in refusal or "exit status 1)" in refusal:
            outcome.breaks(where, [f"it ends without a reason: {refusal}"])
        return
    outcome.breaks(where, await check())
    await local.down(node)


SIZES = ("empty", "half", "a byte more", "missing")
SIZES_TRIED = 20
# The log and the identity of the store cannot be derived from other files.
NOT_DERIVED = ("commitlog", "lock", "store_id", "cluster")


def resize(path: Path, how: str) -> None:
    """Change the size of a file."""
    size = path.stat().st_size
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, {"empty": 0, "half": size // 2, "a byte more": size + 1}[how])


async def broker_sizes(task: Task) -> Outcome:
    """Change sizes of a broker's derived files, after a kill."""
    outcome, chance = Outcome(), task.chance("sizes")
    local = FaultyCluster(task)
    async with local, rockoon.connect(local.nameservers) as cluster:
        truth, books = await filled(cluster, task)
        outcome.acknowledged = len(books.acknowledged)
        await look(cluster, truth)
        await local.down(BROKER)
        kept = local.keep_store(BROKER)
        cases = [
            (relative, how)
            for relative in files_in(kept)
            for how in SIZES
            if not any(part.startswith(NOT_DERIVED) for part in relative.parts)
        ]
        for relative, how in chance.sample(cases, min(len(cases), task.count(SIZES_TRIED))):
            local.put_store(BROKER, kept)
            resize(local.store(BROKER) / relative, how)
            where = f"{relative} {how}"
            await started(local, BROKER, outcome, where, lambda: look(cluster, truth))
    return outcome


# Bytes at the place of the rest of a record.
BEHINDS = ("zeros", "garbage", "the log goes on", "a hole")
HOLE_BYTES = 40
TEARS = 5
NEWEST = b"newest" * 50


async def broker_tails(task: Task) -> Outcome:
    """Tear the newest record at any byte: all earlier ones stay, and the broker continues after
    it."""
    outcome, chance = Outcome(), task.chance("tails")
    local = FaultyCluster(task)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=1)
        (queue,) = (await cluster.route(TOPIC)).queues
        async with cluster.producer() as producer:
            bodies = [chance.randbytes(chance.choice((1, 100, 4000))) for _ in range(50)]
            await producer.send_many(TOPIC, bodies, queue=queue)
            # After the recovery point: no file on the disk names it.
            newest = await producer.send(TOPIC, NEWEST, queue=queue, tags="tag", keys="key")
        await local.down(BROKER)
        kept = local.keep_store(BROKER)
        log = max((kept / "commitlog").iterdir())
        raw = log.read_bytes()
        start = newest.physical_offset - int(log.name)
        size = int.from_bytes(raw[start : start + 4], "big")
        for behind in BEHINDS:
            places = {0, 1, 4, size - 1} | {
                chance.randrange(size) for _ in range(task.count(TEARS))
            }
            for place in sorted(places):
                local.put_store(BROKER, kept)
                torn = bytearray(raw)
                rest = size - place
                if behind == "zeros":
                    torn[start + place : start + size] = bytes(rest)
                elif behind == "a hole":
                    # As a disk does that writes later sectors first.
                    end = min(place + HOLE_BYTES, size)
                    torn[start + place : start + end] = bytes(end - place)
                elif behind == "garbage":
                    torn[start + place : start + size] = chance.randbytes(rest)
                else:
                    torn[start + place : start + size + 512] = chance.randbytes(rest + 512)
                (local.store(BROKER) / "commitlog" / log.name).write_bytes(torn)
                where = f"torn at byte {place} of {size}, {behind}"

                async def check() -> list[str]:
                    return await goes_on_behind(cluster, queue, bodies)

                await started(local, BROKER, outcome, where, check)
    outcome.acknowledged = len(bodies)
    return outcome


async def goes_on_behind(
    cluster: rockoon.Cluster, queue: MessageQueue, bodies: list[bytes]
) -> list[str]:
    """Check that all former messages are there, and that new ones are stored after them."""
    async with cluster.producer(idempotent=True) as producer:
        result = await producer.send(TOPIC, b"after", queue=queue)
    stored = await read_topic(cluster, TOPIC)
    found, wrong = [], 0
    for message in stored.messages[queue]:
        try:
            found.append(message.body)
        except rockoon.errors.StoreCorrupt:
            wrong += 1
            found.append(b"")
    faults = list(stored.troubles)
    if found[: len(bodies)] != bodies:
        faults.append("messages in front of the torn one are missing or different")
    if found[len(bodies) :] not in ([b"after"], [NEWEST, b"after"]):
        faults.append(f"behind them stands {[body[:20] for body in found[len(bodies) :]]}")
    newest = [
        message
        for message, body in zip(stored.messages[queue], found, strict=True)
        if body == NEWEST
    ]
    if any((each.tags, each.keys) != ("tag", ["key"]) for each in newest):
        faults.append("the newest comes with other tags or keys than it was sent with")
    if wrong or stored.damaged[queue]:
        faults.append(f"{wrong or len(stored.damaged[queue])} messages are damaged")
    if result.queue_offset != len(found) - 1:
        faults.append(f"the new one has offset {result.queue_offset} of {len(found)}")
    return faults


async def offset_flips(task: Task) -> Outcome:
    """Flip bits of journal and snapshots of the offset service, and tear the end of its journal."""
    outcome, chance = Outcome(), task.chance("offset flips")
    local = FaultyCluster(task)
    books = Books(TOPIC)
    async with local, rockoon.connect(local.nameservers) as cluster:
        await cluster.admin.create_topic(TOPIC, queues_per_broker=QUEUES)
        queues = (await cluster.route(TOPIC)).queues
        for group in GROUPS:
            await cluster.admin.create_group(group)
        committer = Committer(cluster, books, GROUPS, queues)
        async with cluster.producer() as producer, asyncio.TaskGroup() as tasks:
            tasks.create_task(committer.run(), name="committer")
            await Sender(cluster, books, 1, chance, LANES).run(producer, MESSAGES)
            committer.end()
        await local.down(OFFSET)
        outcome.acknowledged = len(committer.acknowledged)
        kept, store = local.keep_store(OFFSET), local.store(OFFSET)
        for relative in files_in(kept):
            for _ in range(task.count(FLIPS_DOWN)):
                local.put_store(OFFSET, kept)
                turn_back = flip(store / relative, chance)
                where = f"{relative}: {turn_back.__doc__}"
                await started(local, OFFSET, outcome, where, committer.judge)
    return outcome


def files_in(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and used_bytes(path):
            yield path.relative_to(root)
