"""Load with a checker, in a client's pod: senders of several kinds, two groups, administration,
newcomers.

Usage: checker.py SECONDS RUN. The program imports the SDK only. It follows the file /tmp/mark: each
new line begins a part under that name; the line `stop` ends the load. Standard output has one JSON
object per line: `{"begins": RUN}`, `{"failed": ...}`, the figures of each part, and at the end
`{"end": ...}`.

Environment: ROCKOON_NAMESERVERS, ROCKOON_TLS_... and ROCKOON_ACCESS_... as for the SDK; LONE is the
broker or log that has the only queue of a topic.
"""

import asyncio
import collections
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rockoon

PACE_SECONDS = 0.02
PROGRESS_SECONDS = 0.3
MARK_SECONDS = 0.1
KEYS = 8
LONG_NEWCOMER_SECONDS = 0.5
MARK = Path("/tmp/mark")
# After the last send, until both groups have received every message.
DELIVERY_SECONDS_MAX = 60.0
NAMESERVERS = os.environ.get("ROCKOON_NAMESERVERS", "rockoon-nameserver:9876")


def tell(**facts: object) -> None:
    clock = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
    print(json.dumps({"at": clock, **facts}), flush=True)


def read_mark() -> str:
    try:
        return MARK.read_text().strip()
    except FileNotFoundError:
        return ""


class Returns:
    """Times at which nodes came back into the routes."""

    def __init__(self) -> None:
        self.last = 0.0

    async def follow(self, cluster: rockoon.Cluster) -> None:
        known: dict[str, Any] = {}
        seen = 0
        while True:
            nodes = {node.name: (node.started_at_ms, node.epoch) for node in cluster.routes.nodes}
            returned = [name for name, process in nodes.items() if known.get(name) != process]
            if returned:
                self.last = time.monotonic()
            if known:
                tell(returned=returned, gone=sorted(known.keys() - nodes.keys()))
            known = nodes
            seen = await cluster.routes_changed.wait(seen)


@dataclass
class Waits:
    """Durations of one part: the longest, and the longest after the last return of a node."""

    count: int = 0
    longest: float = 0.0
    longest_after_return: float = 0.0

    def add(self, began: float, ended: float, returned: float) -> None:
        self.count += 1
        self.longest = max(self.longest, ended - began)
        if began < returned < ended:
            began = returned
        self.longest_after_return = max(self.longest_after_return, ended - began)

    def figures(self) -> dict[str, float]:
        return {
            "count": self.count,
            "longest": round(self.longest, 3),
            "after_return": round(self.longest_after_return, 3),
        }


@dataclass
class Sender:
    """One call after the other, each with a different body."""

    name: str
    returns: Returns
    acknowledged: set[bytes] = field(default_factory=set)
    failed: int = 0
    waits: Waits = field(default_factory=Waits)
    began: float | None = None
    failed_before: int = 0

    async def run(
        self, call: Callable[[int, bytes], Awaitable[object]], stop: asyncio.Event
    ) -> None:
        number = 0
        while not stop.is_set():
            body = f"{self.name} {number}".encode()
            self.began = time.monotonic()
            try:
                await call(number, body)
                self.acknowledged.add(body)
            except (rockoon.RockoonError, OSError) as error:
                self.failed += 1
                reason = f"{type(error).__name__} {error}"[:300]
                tell(
                    failed=self.name, seconds=round(time.monotonic() - self.began, 2), reason=reason
                )
            ended = time.monotonic()
            self.waits.add(self.began, ended, self.returns.last)
            if ended - self.began > 1:
                tell(long=self.name, seconds=round(ended - self.began, 2))
            self.began = None
            number += 1
            await asyncio.sleep(PACE_SECONDS)

    def part(self) -> dict[str, float]:
        """Return the figures since the last call; a call that has not ended counts."""
        if self.began is not None:
            self.waits.add(self.began, time.monotonic(), self.returns.last)
        figures = self.waits.figures() | {"failed": self.failed - self.failed_before}
        self.waits, self.failed_before = Waits(), self.failed
        return figures


class Reader:
    """Messages that one group received: queue and offset of each body, order of keys, silences."""

    def __init__(self, name: str, returns: Returns) -> None:
        self.name = name
        self._returns = returns
        self.places: dict[bytes, collections.Counter[tuple[str, int]]] = collections.defaultdict(
            collections.Counter
        )
        self._last = time.monotonic()
        self._waits = Waits()
        self._newest: dict[int, int] = {}
        self.disorder: list[str] = []

    async def on_message(self, message: Any) -> None:
        now = time.monotonic()
        self._waits.add(self._last, now, self._returns.last)
        if now - self._last > 1:
            tell(silent=self.name, seconds=round(now - self._last, 2))
        self._last = now
        body = bytes(message.body)
        is_first = body not in self.places
        self.places[body][str(message.queue), message.queue_offset] += 1
        if body.startswith(b"key ") and is_first:
            number = int(body.split()[1])
            newest = self._newest.get(number % KEYS, -1)
            if number < newest:
                self.disorder.append(f"key {number % KEYS}: {number} after {newest}")
            self._newest[number % KEYS] = max(number, newest)

    def part(self) -> dict[str, float]:
        self._waits.add(self._last, time.monotonic(), self._returns.last)
        figures = self._waits.figures() | {"failed": 0}
        self._waits = Waits()
        return figures

    def stored_twice(self, *kinds: str) -> int:
        """Return the number of messages from these senders that have more than one offset."""
        return sum(
            len(places) > 1 and body.split()[0].decode() in kinds
            for body, places in self.places.items()
        )

    def delivered_twice(self) -> int:
        return sum(any(count > 1 for count in each.values()) for each in self.places.values())


class Progress:
    """Checks that the stored progress of groups never decreases."""

    def __init__(self) -> None:
        self._stored: dict[tuple[object, ...], int] = {}
        self.decreases: list[str] = []

    async def follow(self, cluster: rockoon.Cluster, groups: list[str]) -> None:
        while True:
            for group in groups:
                try:
                    rows = await cluster.admin.progress(group)
                except rockoon.RockoonError as error:
                    tell(progress=f"{type(error).__name__} {error}"[:300])
                    continue
                for row in rows:
                    self._compare(row)
            await asyncio.sleep(PROGRESS_SECONDS)

    def _compare(self, row: Any) -> None:
        queue = row.queue
        key = (row.group, queue.topic, queue.broker, queue.queue_id, row.incarnation)
        before = self._stored.get(key, -1)
        if row.offset < before:
            self.decreases.append(f"{key}: {before}, then {row.offset}")
            tell(decreased=self.decreases[-1])
        self._stored[key] = max(row.offset, before)


class Load:
    """The load of one run.

    Args:
        run: suffix of the names of topics and groups.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._returns = Returns()
        kinds = ("plain", "once", "key", "lone", "new", "admin", "lag")
        self._senders = {kind: Sender(kind, self._returns) for kind in kinds}
        self._push = Reader("push", self._returns)
        self._orderly = Reader("orderly", self._returns)
        self._progress = Progress()
        self._topics = {kind: f"{kind}-{run}" for kind in ("plain", "once", "key", "lone")}
        self._stop = asyncio.Event()

    async def create_topics(self, cluster: rockoon.Cluster) -> None:
        for kind, topic in self._topics.items():
            if kind == "lone":
                lone = os.environ.get("LONE", "rockoon-broker-0")
                await cluster.admin.create_topic(topic, placements={lone: 1})
            else:
                await cluster.admin.create_topic(topic, queues_per_broker=2)

    async def run(self, cluster: rockoon.Cluster, seconds: float) -> None:
        topics = self._topics
        unordered = {topics[kind]: "*" for kind in ("plain", "once", "lone")}
        groups = [f"push-{self._run}", f"orderly-{self._run}"]
        async with (
            cluster.push_consumer(
                groups[0], unordered, self._push.on_message, consume_from="first"
            ),
            cluster.push_consumer(
                groups[1],
                {topics["key"]: "*"},
                self._orderly.on_message,
                orderly=True,
                consume_from="first",
            ),
            cluster.producer() as plain,
            cluster.producer(idempotent=True) as once,
        ):
            tell(begins=self._run)
            async with asyncio.TaskGroup() as watches:
                followers = [
                    watches.create_task(self._returns.follow(cluster)),
                    watches.create_task(self._progress.follow(cluster, groups)),
                ]
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow_marks(seconds))
                    for kind, call in self._calls(cluster, plain, once).items():
                        tasks.create_task(self._senders[kind].run(call, self._stop))
                await self._wait_delivered()
                for each in followers:
                    each.cancel()
        self._tell_end()

    def _calls(self, cluster: Any, plain: Any, once: Any) -> dict[str, Any]:
        topics = self._topics

        async def newcomer(_: int, body: bytes) -> None:
            began = time.monotonic()
            async with rockoon.connect(NAMESERVERS) as own:
                connected = time.monotonic()
                await own.producer().send(topics["plain"], body)
                sent = time.monotonic()
            closed = time.monotonic()
            if closed - began > LONG_NEWCOMER_SECONDS:
                tell(
                    newcomer=round(closed - began, 2),
                    connect=round(connected - began, 2),
                    send=round(sent - connected, 2),
                    close=round(closed - sent, 2),
                )

        return {
            "plain": lambda _, body: plain.send(topics["plain"], body),
            "once": lambda _, body: once.send(topics["once"], body),
            "key": lambda n, body: plain.send(topics["key"], body, ordering_key=str(n % KEYS)),
            "lone": lambda _, body: once.send(topics["lone"], body),
            "new": newcomer,
            "admin": lambda _, __: cluster.admin.list_topics(),
            "lag": lambda _, __: cluster.admin.lag(f"push-{self._run}"),
        }

    async def _follow_marks(self, seconds: float) -> None:
        deadline, part = time.monotonic() + seconds, "begin"
        while part != "stop" and time.monotonic() < deadline:
            await asyncio.sleep(MARK_SECONDS)
            mark = read_mark() or part
            if mark != part:
                self._tell_part(part)
                part = mark
        self._stop.set()

    def _tell_part(self, name: str) -> None:
        parties: list[Sender | Reader] = [*self._senders.values(), self._push, self._orderly]
        tell(
            part=name,
            figures={each.name: each.part() for each in parties},
            **self._found(),
        )

    def _found(self) -> dict[str, object]:
        return {
            "stored_twice": self._push.stored_twice("plain", "new")
            + self._orderly.stored_twice("key"),
            "idempotent_twice": self._push.stored_twice("once", "lone"),
            "delivered_twice": self._push.delivered_twice() + self._orderly.delivered_twice(),
            "disorder": self._orderly.disorder[:5],
            "decreases": self._progress.decreases[:5],
        }

    def _missing(self) -> dict[str, set[bytes]]:
        sent = {kind: each.acknowledged for kind, each in self._senders.items()}
        pushed = sent["plain"] | sent["once"] | sent["lone"] | sent["new"]
        return {
            "push": pushed - self._push.places.keys(),
            "orderly": sent["key"] - self._orderly.places.keys(),
        }

    async def _wait_delivered(self) -> None:
        deadline = time.monotonic() + DELIVERY_SECONDS_MAX
        while any(self._missing().values()) and time.monotonic() < deadline:
            await asyncio.sleep(MARK_SECONDS)

    def _tell_end(self) -> None:
        lost = {name: sorted(each) for name, each in self._missing().items()}
        tell(
            end=self._run,
            messages=len(self._push.places) + len(self._orderly.places),
            lost=sum(map(len, lost.values())),
            examples=[body.decode() for each in lost.values() for body in each[:3]],
            failed={kind: each.failed for kind, each in self._senders.items()},
            **self._found(),
        )


async def main() -> None:
    form = "%(asctime)s.%(msecs)03d %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S")
    logging.Formatter.converter = time.gmtime
    seconds, run = float(sys.argv[1]), sys.argv[2]
    load = Load(run)
    async with rockoon.connect(NAMESERVERS) as cluster:
        await load.create_topics(cluster)
        await load.run(cluster, seconds)


if __name__ == "__main__":
    asyncio.run(main())
