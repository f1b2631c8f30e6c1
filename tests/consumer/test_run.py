"""`run()` of push consumers: until a signal, then a drain; with asyncio and without."""

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

import rockoon
import rockoon.sync
from rockoon.cluster import Cluster
from rockoon.consumer.push_consumer import PushConsumer, PushOptions
from rockoon.consumer.stop_signals import loop_signals
from rockoon.errors import StoreNotWritable, TopicNotFound
from rockoon.message import Message
from rockoon.offsets.offset_store import RemoteOffsetStore
from support.eventually import eventually
from support.fake_cluster import FakeCluster
from support.waiting import DEADLINE_SECONDS

# The handler prints a line, and returns once there is a line on standard input.
_ASYNCIO = """
import asyncio, sys
import rockoon

async def handle(message):
    print("handling", message.body.decode(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

async def main():
    async with rockoon.connect(sys.argv[1]) as cluster:
        await cluster.push_consumer("billing", {"orders": "*"}, handle, consume_from="first").run()

asyncio.run(main())
print("ended", flush=True)
"""
_BLOCKING = """
import sys
import rockoon.sync

def handle(message):
    print("handling", message.body.decode(), flush=True)
    sys.stdin.readline()

with rockoon.sync.connect(sys.argv[1]) as cluster:
    cluster.push_consumer("billing", {"orders": "*"}, handle, consume_from="first").run()
print("ended", flush=True)
"""
PLACE = ("orders", "broker-a", 0)
PROGRAMS = pytest.mark.parametrize("program", [_ASYNCIO, _BLOCKING], ids=["asyncio", "blocking"])


async def start(program: str, address: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, address, stdin=pipe, stdout=pipe, stderr=pipe
    )


async def next_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)
    return line.decode().strip()


async def end(process: asyncio.subprocess.Process, said: bytes = b"") -> tuple[str, str]:
    try:
        out, err = await asyncio.wait_for(process.communicate(said), DEADLINE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    return out.decode().strip(), err.decode()


@PROGRAMS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_run_after_the_handler_has_finished_and_progress_is_stored(
    fake: FakeCluster, program: str, number: signal.Signals
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"one"])
    process = await start(program, fake.address)
    assert await next_line(process) == "handling one"
    process.send_signal(number)
    # The member is still there: it waits for its handler.
    assert fake.offset.progress["billing", PLACE].offset == 0
    out, err = await end(process, b"finish\n")
    assert (process.returncode, out, err) == (0, "ended", "")
    assert fake.offset.progress["billing", PLACE].offset == 1


@PROGRAMS
async def test_a_second_interrupt_does_not_wait_for_a_handler(
    fake: FakeCluster, program: str
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"one"])
    process = await start(program, fake.address)
    assert await next_line(process) == "handling one"
    process.send_signal(signal.SIGTERM)

    # After the first SIGTERM the next one has its former effect, which ends the process
    # immediately.
    def ended_or_terminated_again() -> bool:
        if process.returncode is None:
            # Not by `send_signal`: it may reap the process, and the loop would then miss its
            # status.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        return process.returncode is not None

    await eventually(ended_or_terminated_again)
    await end(process)
    assert process.returncode == -signal.SIGTERM


async def test_one_signal_ends_every_consumer_of_a_loop_and_handlers_are_put_back(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create_topic("orders")
    former = signal.getsignal(signal.SIGTERM)
    consumers = [
        cluster.push_consumer(group, {"orders": "*"}, lambda _message: None)
        for group in ("billing", "shipping")
    ]
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        for each in consumers:
            tasks.create_task(each.run())
        await eventually(lambda: all(each.assignment for each in consumers))
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is former


async def test_run_ends_when_the_consumer_is_closed_and_raises_what_ended_it(
    fake: FakeCluster, cluster: Cluster
) -> None:
    with pytest.raises(TopicNotFound):
        await cluster.push_consumer("billing", {"nowhere": "*"}, lambda _message: None).run()
    fake.create_topic("orders")
    consumer = cluster.push_consumer("billing", {"orders": "*"}, lambda _message: None)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run())
        await eventually(lambda: consumer.assignment)
        await consumer.close()


def test_a_loop_in_which_signals_were_awaited_is_freed() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def await_signals() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with loop_signals(lambda: None):
            await asyncio.sleep(0)

    for _ in range(2):
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(await_signals())
    del runner
    gc.collect()
    assert [each() for each in loops] == [None, None]


class StoreThatCannotBeClosed(RemoteOffsetStore):
    async def close(self) -> None:
        raise StoreNotWritable(reason="the disk is full")


async def test_an_error_of_the_last_steps_reaches_the_program_as_it_is(
    fake: FakeCluster, cluster: Cluster
) -> None:
    """Not in an ExceptionGroup, which no `except RockoonError` of a program handles."""
    fake.create_topic("orders")
    store = StoreThatCannotBeClosed(cluster, "billing", "me")
    consumer = cluster.push_consumer(
        "billing", {"orders": "*"}, lambda _message: None, offset_store=store, member_id="me"
    )
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(StoreNotWritable):
        await consumer.run_until(stop)


class Handler:
    """A blocking handler; fails on the first delivery of a body in `failing`."""

    def __init__(self, failing: Sequence[bytes] = ()) -> None:
        self.calls: list[list[bytes]] = []
        self.threads: set[str] = set()
        self.wanted = threading.Event()
        self._failing = set(failing)

    def __call__(self, messages: Any) -> bool:
        self.threads.add(threading.current_thread().name.split("_")[0])
        several = messages if isinstance(messages, list) else [messages]
        bodies = [each.body for each in several]
        self.calls.append(bodies)
        if b"last" in bodies:
            self.wanted.set()
        failed = self._failing & set(bodies)
        self._failing -= failed
        return not failed

    @property
    def bodies(self) -> list[bytes]:
        return [body for call in self.calls for body in call]


@pytest.mark.parametrize(
    ("options", "failing", "expected"),
    [
        ({}, [], [b"one", b"two", b"last"]),
        ({"batch_max": 2}, [], [b"one", b"two", b"last"]),
        (
            {"orderly": rockoon.Order(suspend_seconds=0.01)},
            [b"one", b"two"],
            [b"one", b"one", b"two", b"two", b"last"],
        ),
    ],
    ids=["one by one", "batches", "orderly"],
)
async def test_blocking_handlers_run_in_threads_in_each_mode(
    fake: FakeCluster, options: dict[str, Any], failing: list[bytes], expected: list[bytes]
) -> None:
    fake.create_topic("orders")
    fake.append("orders", [b"one", b"two", b"last"])
    handler = Handler(failing)

    def consume() -> None:
        with (
            rockoon.sync.connect(fake.address) as cluster,
            cluster.push_consumer(
                "billing", {"orders": "*"}, handler, consume_from="first", **options
            ) as consumer,
        ):
            assert handler.wanted.wait(DEADLINE_SECONDS)
            assert consumer.members
            assert [str(each) for each in consumer.assignment] == ["orders@broker-a:0"]
            consumer.commit()

    await asyncio.to_thread(consume)
    assert sorted(handler.bodies) == sorted(expected)
    if "orderly" in options:
        assert handler.bodies == expected
    assert handler.threads == {"rockoon-handler"}
    assert fake.offset.progress["billing", PLACE].offset == 3


async def test_a_blocking_handler_may_use_its_connection(fake: FakeCluster) -> None:
    fake.create_topic("orders", queues=2)
    fake.append("orders", [b"last"])
    queues: list[int] = []

    def consume() -> None:
        handled = threading.Event()
        with rockoon.sync.connect(fake.address) as cluster:

            def handle(_message: Message) -> None:
                queues.append(len(cluster.queues("orders")))
                handled.set()

            with cluster.push_consumer("g", {"orders": "*"}, handle, consume_from="first"):
                assert handled.wait(DEADLINE_SECONDS)

    await asyncio.to_thread(consume)
    assert queues == [2]


def test_options_of_push_consumers_are_complete() -> None:
    parameters = inspect.signature(PushConsumer).parameters
    keywords = {
        each.name for each in parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert keywords - {"batch_max"} == set(PushOptions.__annotations__)
