"""Concurrent calls to nameservers for many groups or topics, with a bound."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from rockoon_core.errors import NameserverUnavailable

CALLS_MAX = 16


async def run_calls(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls, at most `CALLS_MAX` at a time. The iterable is advanced when a call starts.

    Raises:
        NameserverUnavailable: a call failed. Calls that were not started are skipped, because each
            would wait until its time limit.
    """
    waiting = iter(calls)
    failures: list[NameserverUnavailable] = []

    async def work(waiting: Iterator[Coroutine[Any, Any, None]]) -> None:
        while not failures and (call := next(waiting, None)) is not None:
            try:
                await call
            except NameserverUnavailable as failure:
                failures.append(failure)

    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLS_MAX):
            tasks.create_task(work(waiting), name=f"call {number} of an import")
    if failures:
        raise failures[0]
