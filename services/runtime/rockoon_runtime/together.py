"""Several services in one process, on one event loop: a cluster on a machine of one's own.

    python -m rockoon_runtime.together rockoon_nameserver --listen=... rockoon_broker --name=... ...

Each package is followed by the options of its program, written with "=". Each service is what it
would be in a process of its own, and they meet on the wire. The first is started first and stopped
last, since the others look for it. When one ends, all do, and the exit status is its own.

A start is mostly the loading of Python modules, by one core, and else waiting for a disk. So each
program is loaded, in a thread, while those before it open their stores and find one another.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rockoon_runtime.process import (
    ExitStatus,
    Program,
    Stop,
    announce,
    complain,
    loaded_settings,
    open_closed_descriptors,
    run_loop,
)
from rockoon_runtime.settings import SettingsError, command_line
from rockoon_runtime.telemetry.logs import set_up_logging

SERVICE = "single"
# So long a thread that loads a program keeps the interpreter from the loop: a start changes between
# its threads a hundred times, and Python's 5 ms each would be most of it.
SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Member:
    """One of the services."""

    program: Program[Any]
    settings: Any
    stop: Stop = field(default_factory=Stop)
    ready: asyncio.Event = field(default_factory=asyncio.Event)


async def serve_together(
    first: Member, packages: Iterable[Sequence[str]], stop: Stop, ready_text: str
) -> None:
    """Run services until `stop` is requested, or one of them ends.

    Args:
        first: there for the others.
        packages: the others, each with its options; loaded here.
        stop: the wish to stop.
        ready_text: printed when all serve; empty means the line for programs.

    Raises:
        Exception: what the first one raised that failed, or could not be loaded.
    """
    failures: list[Exception] = []
    others: list[Member] = []

    async def live(member: Member) -> None:
        def announced(*_: str) -> None:
            member.ready.set()

        try:
            await member.program.serve(member.settings, member.stop, announce=announced)
        except Exception as failure:  # noqa: BLE001 - raised when the others have ended in order
            failures.append(failure)
        if member.stop.fatal is not None:
            stop.fail(member.stop.fatal)
        stop.request(f"the {member.program.service} has ended")

    async def start(later: asyncio.TaskGroup) -> None:
        for package, *options in packages:
            try:
                other = await asyncio.to_thread(member, package, options)
            except Exception as failure:  # noqa: BLE001 - raised when the others have ended in order
                failures.append(failure)
                stop.request(f"{package} cannot be started")
                return
            if not await stop.or_event(first.ready):
                return
            others.append(other)
            later.create_task(live(other), name=other.program.service)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(live(first), name=first.program.service)
        async with asyncio.TaskGroup() as later:
            with loading():
                await start(later)
            for other in others:
                await stop.or_event(other.ready)
            if ready_text and not stop.requested:
                sys.stdout.write(ready_text + "\n")
                sys.stdout.flush()
            elif not stop.requested:
                announce(SERVICE, first.settings.name, first.settings.listen)
            await stop.wait()
            for other in others:
                other.stop.request(stop.reason)
        first.stop.request(stop.reason)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While programs are loaded: a thread that does so gives way to the loop sooner, and what they
    are made of, which is no garbage, is not looked through."""
    gc.disable()
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
        gc.freeze()
        gc.enable()


def main() -> int:
    open_closed_descriptors()
    own, *rest = by_package(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m rockoon_runtime.together",
        description="Run several services in one process.",
        usage="%(prog)s [OPTION...] PACKAGE [ITS OPTION...] PACKAGE [ITS OPTION...] ...",
    )
    parser.add_argument("--stop-with-parent", action="store_true")
    parser.add_argument("--log-file", default="", help="in the place of standard error")
    parser.add_argument("--ready-text", default="", help="printed when all serve")
    given = parser.parse_args(own)
    if not rest:
        parser.error("name the services")
    (package, *options), *others = rest
    try:
        with loading():
            first = member(package, options)
    except SettingsError as failure:
        return complain(SERVICE, ExitStatus.CONFIGURATION, failure)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(given.log_file, "a")) if given.log_file else None
        set_up_logging(SERVICE, first.settings.log_format, first.settings.cluster, file)
        return run_loop(
            SERVICE,
            lambda stop: serve_together(first, others, stop, given.ready_text),
            stop_with_parent=given.stop_with_parent,
        )


def by_package(arguments: Sequence[str]) -> list[list[str]]:
    """Options in front of the first package, then each package with its own."""
    parts: list[list[str]] = [[]]
    for argument in arguments:
        if not argument.startswith("-"):
            parts.append([])
        parts[-1].append(argument)
    return parts


def member(package: str, options: Sequence[str]) -> Member:
    """Raises SettingsError."""
    program: Program[Any] = importlib.import_module(f"{package}.__main__").PROGRAM
    arguments = vars(
        command_line(program.settings_class, program.service, program.description, options)
    )
    for of_process in ("print_settings", "stop_with_parent"):
        arguments.pop(of_process)
    return Member(program, loaded_settings(program, arguments).value)


if __name__ == "__main__":
    sys.exit(main())
