"""Client program: makes calls on one channel of a layer, and measures its own CPU time.

`python -m bench.layers.calls LAYER HOST:PORT` reads one command per line:

    unary seconds=1.0 tasks=10            ->   > count=30000 cpu=0.9
    burst seconds=0 count=20000           ->   > count=20000 cpu=0.1
    one_by_one seconds=1.0                ->   > count=20000 cpu=0.4

A command ends after `seconds` and after `count` calls or messages, whichever is later.
"""

import asyncio
import sys
import time
from typing import Any

import uvloop
from grpc import aio

from bench.layers import echo

BODY = bytes(100)
BURST_MESSAGES = 20_000


class Calls:
    """Makes calls on one channel; each method returns the number of calls or messages."""

    def __init__(self, channel: Any) -> None:
        self._unary = channel.unary_unary(echo.ECHO)
        self._stream = channel.stream_stream(echo.STREAM)

    async def unary(self, seconds: float, count: float = 0, tasks: float = 1) -> int:
        """Make unary calls; each of `tasks` tasks makes one call after another."""
        end, done = time.perf_counter() + seconds, 0

        async def calling() -> None:
            nonlocal done
            while done < count or time.perf_counter() < end:
                done += 1
                assert await self._unary(BODY) == BODY

        async with asyncio.TaskGroup() as group:
            for _ in range(int(tasks)):
                group.create_task(calling(), name="calls")
        return done

    async def burst(self, seconds: float, count: float = BURST_MESSAGES) -> int:
        """Open streams of `count` messages each; messages are written and read at the same time."""
        end, done = time.perf_counter() + seconds, 0
        while not done or time.perf_counter() < end:
            call = self._stream()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(call, int(count)), name="write")
                read = 0
                async for message in call:
                    assert len(message) == len(BODY)
                    read += 1
            assert read == count
            done += read
        return done

    async def _write(self, call: Any, count: int) -> None:
        for _ in range(count):
            await call.write(BODY)
        await call.done_writing()

    async def one_by_one(self, seconds: float, count: float = 0) -> int:
        """Send messages on a stream; each is sent after the echo of the one before."""
        end, done = time.perf_counter() + seconds, 0
        call = self._stream()
        while done < count or time.perf_counter() < end:
            await call.write(BODY)
            assert await call.read() == BODY
            done += 1
        await call.done_writing()
        assert await call.read() == aio.EOF
        return done


async def serve(name: str, address: str) -> None:
    """Run the commands of the input until the input ends."""
    opened = aio.insecure_channel if name == "grpc" else echo.layer(name).Channel
    async with opened(address) as channel:
        calls = Calls(channel)
        while line := await asyncio.to_thread(sys.stdin.readline):
            do, *words = line.split()
            given = {name: float(value) for name, value in (word.split("=") for word in words)}
            try:
                before = time.process_time()
                count = await getattr(calls, do)(**given)
                cpu = time.process_time() - before
                print(f"> count={count} cpu={cpu:.6f}", flush=True)
            except Exception as failure:  # noqa: BLE001 - the root of a request
                print(f"! {type(failure).__name__}: {failure}", flush=True)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
