"""Line protocol between `make compare` and its client programs, and the base of these programs.

    produce_each topic=small bytes=100 seconds=1.0   ->   > messages=600500 seconds=1.003

"- REASON" means that the client library has no such operation, "! ERROR" that the operation failed.
This module does not import Rockoon, because the peers' clients run in another environment.
`java/CompareClient.java` is the same for Java.
"""

import abc
import asyncio
import ctypes
import gc
import os
import resource
import struct
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import Any

import uvloop

BODY_BYTES = 100
LIST_MESSAGES = 1000
HANDLED_LIST_MESSAGES = 64
LOOK_MESSAGES = 500
TASKS = 64
# Connections that are opened at the same time.
TOGETHER = 50
ARRIVAL_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.005
# Share of a paced run at its beginning that is not counted.
WARM_SHARE = 0.2
# Linux constants: the clock of `perf_counter`, non-blocking reads, absolute expiration times.
CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_TIMER_ABSTIME = 1, os.O_NONBLOCK, 1

Note = Callable[[bytes], None]
_MOMENT = struct.Struct("<d")
_FILL = bytes(BODY_BYTES - _MOMENT.size)


@dataclass
class Work:
    """Result of an operation.

    Attributes:
        seconds: elapsed time, until the last message was acknowledged or read.
        waits: latency of single messages in seconds, in any order.
        alone: like `waits`, measured with only one connection.
    """

    messages: int
    seconds: float
    waits: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)

    def told(self) -> str:
        words = [f"messages={self.messages}", f"seconds={self.seconds:.6f}"]
        for name, waits, share in (
            ("p50", self.waits, 0.5),
            ("p99", self.waits, 0.99),
            ("alone", self.alone, 0.99),
        ):
            if ordered := sorted(waits):
                at = min(int(len(ordered) * share), len(ordered) - 1)
                words.append(f"{name}={ordered[at]:.9f}")
        return " ".join(words)


class Arrivals:
    """Counts the messages that handlers receive, from the first message to the end of the measure.

    Args:
        stored: number of stored messages.
        seconds: duration of the measure.
    """

    def __init__(self, stored: int, seconds: float) -> None:
        self._stored = stored
        self._seconds = seconds
        self._began = 0.0
        self._look_at = 0
        self._count = 0
        self._enough: asyncio.Future[Work] = asyncio.get_running_loop().create_future()

    def add(self, count: int) -> None:
        """Add to the count, on the event loop's thread."""
        if not self._count:
            self._began = perf_counter()
        self._count += count
        if self._count >= self._look_at:
            self._look_at = min(self._count + LOOK_MESSAGES, self._stored)
            elapsed = perf_counter() - self._began
            is_enough = elapsed >= self._seconds or self._count >= self._stored
            if is_enough and not self._enough.done():
                self._enough.set_result(Work(self._count, elapsed))

    async def wait(self) -> Work:
        async with asyncio.timeout(self._seconds + ARRIVAL_SECONDS_MAX):
            return await self._enough


class Client(abc.ABC):
    """Base of the client programs. A program omits methods for which its library has no operation.

    Optional methods are `produce_each`, `produce_lists` (topic, body, seconds), `consume_columns`,
    `consume_lists`, `consume_each`, `push_each`, `push_lists` (topic, stored, seconds); they return
    `Work`. `consume_…` reads `stored` messages from the start, repeatedly while time is left.
    """

    missing: Mapping[str, str] = {}
    """Reasons for omitted operations, by name."""

    address = ""
    """Address of the connected server."""

    @abc.abstractmethod
    async def connect(self, address: str) -> None: ...

    @abc.abstractmethod
    async def make_topics(self, queues: Mapping[str, int]) -> None:
        """Create topics with the given numbers of queues."""

    @abc.abstractmethod
    async def send(self, topic: str, body: bytes) -> None:
        """Send one message without lingering; return once it is stored."""

    @abc.abstractmethod
    def listening(self, topic: str, note: Note) -> AbstractAsyncContextManager[None]:
        """Return a context manager that runs a new consumer group: it calls `note` with each body,
        from the first message on."""

    @abc.abstractmethod
    async def close(self) -> None: ...


async def consume(
    stored: int,
    seconds: float,
    rewind: Callable[[], Awaitable[object]],
    poll: Callable[[int], Awaitable[int]],
) -> Work:
    """Read stored messages from the first one, again and again while time is left.

    Args:
        stored: number of stored messages.
        rewind: seeks to the first message.
        poll: reads some messages and returns their number; its argument is the number of messages
            before the end.
    """
    messages = left = 0
    began = perf_counter()
    while perf_counter() - began < seconds:
        if left <= 0:
            await rewind()
            left = stored
        count = await poll(left)
        messages += count
        left -= count
    return Work(messages, perf_counter() - began)


async def arrived(bodies: list[Any], count: int) -> None:
    """Wait until a list has `count` bodies; another thread may append them."""
    async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
        while len(bodies) < count:  # noqa: ASYNC110 - no event is set from another thread
            await asyncio.sleep(LOOK_SECONDS)


async def first(client: Client, topic: str) -> Work:
    """Send one message and wait until a listener receives it."""
    bodies: list[bytes] = []
    began = perf_counter()
    async with client.listening(topic, bodies.append):
        await client.send(topic, bytes(BODY_BYTES))
        await arrived(bodies, 1)
        return Work(1, perf_counter() - began)


async def tasks(clients: Sequence[Client], topic: str, seconds: float) -> Work:
    """Run one task per entry of `clients`; each task awaits one send after another."""
    waits: list[float] = []
    body = bytes(BODY_BYTES)
    began = perf_counter()

    async def sending(client: Client) -> None:
        while (before := perf_counter()) - began < seconds:
            await client.send(topic, body)
            waits.append(perf_counter() - before)

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(sending(client))
    return Work(len(waits), perf_counter() - began, waits)


async def connections(client: Client, topic: str, seconds: float, count: int) -> Work:
    """Measure awaited sends on one connection, then on `count` connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    await tasks([client], topic, seconds)
    alone = await tasks([client], topic, seconds)
    async with AsyncExitStack() as stack:
        clients = [client]

        async def connect() -> None:
            other = type(client)()
            await other.connect(client.address)
            stack.push_async_callback(other.close)
            await other.send(topic, bytes(BODY_BYTES))
            clients.append(other)

        while len(clients) < count:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(TOGETHER, count - len(clients))):
                    group.create_task(connect())
        # A full collection examines all objects of the connections: without this, it may take
        # a fifth of a second, in a measure of one second.
        gc.collect()
        gc.freeze()
        try:
            done = await tasks(clients, topic, seconds)
        finally:
            gc.unfreeze()
    done.alone = alone.waits
    return done


def ticking(first_ns: int, every_ns: int) -> int:
    """Create a timer descriptor that first expires at a time of `perf_counter_ns`.

    Python has a function for it from 3.13 on. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    timer: int = libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)
    when = struct.pack("@qlql", *divmod(every_ns, 10**9), *divmod(first_ns, 10**9))
    if timer < 0 or libc.timerfd_settime(timer, TFD_TIMER_ABSTIME, when, None) < 0:
        error = ctypes.get_errno()
        if timer >= 0:
            os.close(timer)
        raise OSError(error, os.strerror(error))
    return timer


async def steadily(count: int, rate: float, act: Callable[[float], object]) -> None:
    """Call `act` `count` times at a rate per second; late calls follow immediately.

    Uses a timer of Linux, because uvloop's timers have a resolution of a millisecond: at 1,000
    calls per second, many would come in pairs. `act`: called with its due time in seconds of
    `perf_counter`; an exception ends the calls.
    """
    loop, every_ns, number = asyncio.get_running_loop(), max(round(1e9 / rate), 1), 0
    done = loop.create_future()
    began_ns = perf_counter_ns()
    timer = ticking(began_ns + every_ns, every_ns)

    def ticked() -> None:
        nonlocal number
        if done.done():
            return
        try:
            due = int.from_bytes(os.read(timer, 8), sys.byteorder)
            for _ in range(min(due, count - number)):
                number += 1
                act((began_ns + number * every_ns) / 1e9)
        except Exception as failure:  # noqa: BLE001 - the caller's
            done.set_exception(failure)
        else:
            if number == count:
                done.set_result(None)

    try:
        loop.add_reader(timer, ticked)
        await done
    finally:
        loop.remove_reader(timer)
        os.close(timer)


async def paced(client: Client, topic: str, seconds: float, rate: float) -> Work:
    """Send at a fixed rate with one task per send; latency is from the due time to the listener.

    If they were measured from the call of send, delays of the client itself would be invisible.
    """
    waits: list[float] = []

    def note(body: bytes) -> None:
        waits.append(perf_counter() - _MOMENT.unpack_from(body)[0])

    async def send(due: float) -> None:
        await client.send(topic, _MOMENT.pack(due) + _FILL)

    count = int(rate * seconds)
    async with client.listening(topic, note):
        await send(perf_counter())
        await arrived(waits, 1)
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            await steadily(count, rate, lambda due: group.create_task(send(due)))
        await arrived(waits, count + 1)
        elapsed = perf_counter() - began
    return Work(count, elapsed, waits[1 + int(count * WARM_SHARE) :])


async def work(client: Client, do: str, given: Mapping[str, str]) -> Work | None:
    topic, seconds = given.get("topic", ""), float(given.get("seconds", 0))
    match do:
        case "connect":
            client.address = given["address"]
            await client.connect(client.address)
        case "make_topics":
            await client.make_topics({name: int(queues) for name, queues in given.items()})
        case "first":
            return await first(client, topic)
        case "single":
            return await tasks([client], topic, seconds)
        case "tasks":
            return await tasks([client] * TASKS, topic, seconds)
        case "connections":
            return await connections(client, topic, seconds, int(given["count"]))
        case "paced":
            return await paced(client, topic, seconds, float(given["rate"]))
        case _:
            size = given.get("bytes")
            what = int(given["stored"]) if size is None else bytes(int(size))
            found: Work = await getattr(client, do)(topic, what, seconds)
            return found
    return None


async def answer(client: Client, line: str) -> str:
    do, *words = line.split()
    if reason := client.missing.get(do):
        return f"- {reason}"
    try:
        done = await work(client, do, dict(word.split("=", 1) for word in words))
    except Exception as failure:  # noqa: BLE001 - the root of a request
        traceback.print_exc()
        cause: BaseException = failure
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return " ".join(f"! {type(cause).__name__}: {cause}".split())
    return f"> {done.told() if done is not None else ''}"


async def serve(client: Client) -> None:
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await answer(client, line), flush=True)
    finally:
        await client.close()


def main(client: Callable[[], Client]) -> None:
    """Run a client program until its input ends."""

    async def run() -> None:
        await serve(client())

    uvloop.run(run())
