"""`--watch`: repeats a report until Ctrl-C, which ends such a command cleanly."""

import asyncio
import contextlib
import io
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from rockoon.cli.output import local_time, print_json, print_json_line

if TYPE_CHECKING:
    from rockoon.cluster import Cluster


async def wait_set(event: asyncio.Event) -> None:
    await event.wait()


class Interrupt:
    """Ends running coroutines cleanly on SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def received(self) -> bool:
        return self._event.is_set()

    async def unless(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run coroutines until one returns or a signal arrives; cancel the rest."""
        async with asyncio.TaskGroup() as tasks:
            running = {tasks.create_task(work) for work in (*works, wait_set(self._event))}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()

    def __enter__(self) -> "Interrupt":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._event.set)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


# Cursor to the first line; clear the screen from there.
CLEAR_SCREEN = "\033[H\033[J"


class WatchedReport(Protocol):
    """Interface of a report that `--watch` can repeat."""

    @property
    def danger(self) -> str:
        """Reason to end the watch with exit status 1; empty if there is none."""
        ...

    def show(self) -> None:
        """Print the report for people."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        ...


def print_report(report: WatchedReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
    else:
        report.show()


async def watch(
    cluster: "Cluster",
    ask: "Callable[[Cluster], Awaitable[WatchedReport]]",
    *,
    seconds: float,
    as_json: bool,
) -> str:
    """Show a report every few seconds until Ctrl-C or a danger; return the danger.

    A terminal is cleared before each report. Otherwise each report is a block that ends with an
    empty line, or one line of JSON. If a service does not answer, the next round asks again.
    """
    found = ""

    async def show_reports() -> None:
        nonlocal found
        while not found:
            found = await show_one(cluster, ask, as_json=as_json)
            if not found:
                await asyncio.sleep(seconds)

    with Interrupt() as interrupt:
        await interrupt.unless(show_reports())
    return found


async def show_one(
    cluster: "Cluster", ask: "Callable[[Cluster], Awaitable[WatchedReport]]", *, as_json: bool
) -> str:
    """Show one report; return its danger."""
    from rockoon.errors import RockoonError

    try:
        report = await ask(cluster)
    except RockoonError as error:
        if not error.retriable:
            raise
        if as_json:
            print_json_line({"error": str(error)})
        else:
            show_block(f"{error}; retrying\n")
        sys.stdout.flush()
        return ""
    if as_json:
        print_json_line(report.to_json())
    else:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            report.show()
        show_block(text.getvalue())
    sys.stdout.flush()
    return report.danger


def show_block(text: str) -> None:
    """Print a report in one write, so that a terminal does not flicker."""
    clear, end = (CLEAR_SCREEN, "") if sys.stdout.isatty() else ("", "\n")
    print(f"{clear}{local_time(time.time_ns() // 1_000_000)}\n{text}{end}", end="")
