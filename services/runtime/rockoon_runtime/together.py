"""Several services in one process, on one event loop: a cluster on a developer's machine.

    python -m rockoon_runtime.together rockoon_nameserver --listen=... rockoon_broker --name=... ...

Each package is followed by the options of its program, written with "=". Each service behaves as in
its own process, and the services communicate over the network. The first service starts first and
stops last, because the further ones need it. If one service ends, all end, with its exit status.

Most of the start is the loading of Python modules on one core. Therefore a thread loads each
program while the former ones open their stores and connect.
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
from rockoon_runtime.telemetry.telemetry import set_up_logging

SERVICE = "single"
# Switch interval while a thread loads a program. A start switches threads a hundred times; with
# Python's 5 ms each, most of the start would be waiting.
SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class HostedService:
    """One of the services of this process."""

    program: Program[Any]
    settings: Any
    stop: Stop = field(default_factory=Stop)
    ready: asyncio.Event = field(default_factory=asyncio.Event)


async def serve_together(
    first: HostedService, packages: Iterable[Sequence[str]], stop: Stop, ready_text: str
) -> None:
    """Run services until `stop` is requested, or one of them ends.

    Args:
        first: the service that all further ones need.
        packages: the other packages, each with its options; loaded here.
        stop: requests the end of all services.
        ready_text: printed when all serve; empty means the JSON line of `announce`.

    Raises:
        Exception: the error of the first service that failed or could not be loaded.
    """
    failures: list[Exception] = []
    others: list[HostedService] = []

    async def live(member: HostedService) -> None:
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
    """Context for loading programs: the loading thread yields to the event loop sooner, and the
    garbage collector does not traverse the loaded modules."""
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
    parser.add_argument("--log-file", default="", help="write log lines to this file")
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
    """Return the options before the first package, then each package with its options."""
    parts: list[list[str]] = [[]]
    for argument in arguments:
        if not argument.startswith("-"):
            parts.append([])
        parts[-1].append(argument)
    return parts


def member(package: str, options: Sequence[str]) -> HostedService:
    """Return a service of a one-process cluster, by its package and the options of its program.
    Raises SettingsError: an option is invalid."""
    program: Program[Any] = importlib.import_module(f"{package}.server").PROGRAM
    arguments = vars(
        command_line(program.settings_class, program.service, program.description, options)
    )
    for of_process in ("print_settings", "check_settings", "stop_with_parent"):
        arguments.pop(of_process)
    return HostedService(program, loaded_settings(program, arguments).value)


if __name__ == "__main__":
    sys.exit(main())
