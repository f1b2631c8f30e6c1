"""A service process, from its command line to its exit status.

    settings → logging → event loop → serve(stop) → exit

`serve` runs until `stop` is set by SIGTERM or SIGINT, or by the end of the parent process. Then it
drains and returns. A second signal ends the process immediately. If a service cannot work, it ends
with one sentence on standard error and an exit status that says why.
"""

import asyncio
import contextlib
import enum
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import uvloop

from rockoon_core.disk import Disk
from rockoon_core.errors import RockoonError
from rockoon_rpc import implementation
from rockoon_runtime.allocator import keep_freed_memory
from rockoon_runtime.notify import notify, watchdog
from rockoon_runtime.settings import (
    Loaded,
    SettingsCheck,
    SettingsError,
    command_line,
    faults_of,
    load,
    load_all,
    render,
)
from rockoon_runtime.telemetry.telemetry import set_up_logging
from rockoon_runtime.wire import ListenError

Settings = TypeVar("Settings")

log = logging.getLogger(__name__)


class ExitStatus(enum.IntEnum):
    """Meanings of the exit status of a Rockoon service."""

    STOPPED = 0
    # An unexpected exception: a bug.
    FAILED = 1
    # As sysexits.h: a setting is wrong, or an address cannot be listened on.
    CONFIGURATION = 78
    # The store is damaged, has another layout, or is locked by another process.
    STORE = 74
    # A disk failed while the service was running: nothing may be acknowledged any more.
    DISK_FAILED = 76
    # A required service did not answer during the start.
    UNAVAILABLE = 69


class Fatal(Exception):
    """A condition in which the process must stop, with its exit status and one sentence."""

    def __init__(self, status: ExitStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Stop:
    """Stop request, set once by a signal or the service; `on_request` gets the reason."""

    def __init__(self, on_request: Callable[[str], None] = lambda _: None) -> None:
        self._event = asyncio.Event()
        self._on_request = on_request
        self.reason = ""
        # Written by the task that found the condition; read after `serve` has returned.
        self.fatal: Fatal | None = None

    def request(self, reason: str) -> None:
        if not self._event.is_set():
            self.reason = reason
            self._event.set()
            self._on_request(reason)

    def fail(self, fatal: Fatal) -> None:
        """Stop because of a fatal condition, with its exit status."""
        self.fatal = self.fatal or fatal
        self.request(str(fatal))

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> str:
        await self._event.wait()
        return self.reason

    async def or_event(self, event: asyncio.Event) -> bool:
        """Wait for an event; returns False if the stop request comes first."""
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._event.wait(), name="stop while starting")
            waiting = tasks.create_task(event.wait(), name="start")
            await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            waiting.cancel()
        return event.is_set() and not self.requested


def announce(service: str, name: str, address: str) -> None:
    """Report readiness: to systemd, and to the parent process as a JSON line on standard output."""
    line = json.dumps({"ready": service, "name": name, "address": address, "pid": os.getpid()})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    notify(f"READY=1\nSTATUS={name} at {address}")


@dataclass(frozen=True, slots=True)
class Program(Generic[Settings]):
    """A service as a program.

    Attributes:
        service: short name, for example "broker".
        description: one line for `--help`.
        settings_class: its settings dataclass.
        serve: runs the service; returns after `stop` was requested and everything is closed.
        checks: yield the faults of settings that are valid one by one; for `--check-settings`.
    """

    service: str
    description: str
    settings_class: type[Settings]
    serve: Callable[..., Awaitable[None]]
    checks: Sequence[SettingsCheck] = ()


def node_name(settings: object) -> str:
    """Return the name of a process in log lines; a replica's own name, not the name of its log."""
    return str(getattr(settings, "process_name", getattr(settings, "name", "")))


def run(program: Program[Settings]) -> int:
    """Run a service from its command line and return its exit status."""
    open_closed_descriptors()
    service = program.service
    arguments = vars(command_line(program.settings_class, service, program.description))
    print_only = arguments.pop("print_settings")
    stop_with_parent = arguments.pop("stop_with_parent")
    if arguments.pop("check_settings"):
        return check_settings(program, arguments)
    try:
        loaded = loaded_settings(program, arguments)
    except SettingsError as failure:
        return complain(service, ExitStatus.CONFIGURATION, failure)
    if print_only:
        sys.stdout.write(render(loaded) + "\n")
        return ExitStatus.STOPPED
    set_up_logging(
        service,
        # Settings without telemetry have no log_format.
        getattr(loaded.value, "log_format", "text"),
        node_name(loaded.value),
        log_level=getattr(loaded.value, "log_level", "info"),
    )
    return run_loop(
        service, lambda stop: program.serve(loaded.value, stop), stop_with_parent=stop_with_parent
    )


def loaded_settings(program: Program[Settings], arguments: dict[str, Any]) -> Loaded[Settings]:
    """Return a service's settings from the file of `--config`, the environment and the command
    line. Raises SettingsError."""
    config = arguments.pop("config")
    loaded = load(
        program.settings_class,
        program.service,
        file=config,
        environment=os.environ,
        arguments=arguments,
    )
    # Not a field: sources are shown to operators, and settings with equal values are equal.
    object.__setattr__(loaded.value, "sources", loaded.sources)
    return loaded


def check_settings(program: Program[Settings], arguments: dict[str, Any]) -> int:
    """Report every fault of a service's settings; returns 1 if there is one, otherwise 0.

    Files that settings name are read only if each setting has a valid value, because the default
    of a setting with a wrong value would cause further faults.
    """
    config = arguments.pop("config")
    loaded, wrong = load_all(
        program.settings_class,
        program.service,
        file=config,
        environment=os.environ,
        arguments=arguments,
    )
    faults = [*map(str, wrong)] or faults_of(loaded.value, program.checks)
    if wrong:
        faults.append(
            "certificates, secrets and directories are checked once all settings are valid"
        )
    for fault in faults:
        complain(program.service, 1, fault)
    if faults:
        return 1
    sys.stdout.write(f"rockoon-{program.service}: the settings are valid\n")
    return 0


def run_loop(
    service: str, serve: Callable[[Stop], Awaitable[None]], *, stop_with_parent: bool
) -> int:
    """Run the event loop until `serve` ends; returns the exit status.

    Args:
        stop_with_parent: stop when standard input is closed.
    """
    if implementation.name() != implementation.COMPILED:
        name = implementation.name()
        log.warning("HTTP/2: %s, because no compiled kernel is used; calls cost more CPU", name)
    raise_open_files_limit()
    keep_freed_memory()
    # The objects of loaded modules are not garbage. Each traversal of them would block the event
    # loop for tens of milliseconds.
    gc.freeze()
    gc.enable()
    try:
        return uvloop.run(supervise(service, serve, stop_with_parent))
    except Exception as failure:
        cause = root_cause(failure)
        status = exit_status(cause)
        if status is ExitStatus.FAILED:
            raise
        return complain(service, status, cause)


def open_closed_descriptors() -> None:
    """Open /dev/null for descriptors 0 to 2 that were closed by `<&-`, `>&-` or `2>&-`.

    Otherwise the first opened files get these numbers. A store's file would receive the text of
    standard error, and libuv ends the process when it has to close one of these descriptors.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python checked them before, and set closed streams to None.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def raise_open_files_limit() -> None:
    """Raise the limit of open files to the hard limit: logs and queues are many files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        # Some systems report a hard limit and refuse it; then the present limit stays.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_when_descriptor_lost(disk: Disk, stop: Stop) -> None:
    """Stop the service if other code has closed a descriptor of its store."""
    loop = asyncio.get_running_loop()

    def lost(reason: str) -> None:
        with contextlib.suppress(RuntimeError):
            # The event loop has ended, so the process is ending too.
            loop.call_soon_threadsafe(stop.fail, Fatal(ExitStatus.DISK_FAILED, reason))

    disk.on_lost = lost


def exit_status(cause: BaseException) -> ExitStatus:
    if isinstance(cause, Fatal):
        return cause.status
    if isinstance(cause, SettingsError | ListenError):
        return ExitStatus.CONFIGURATION
    if isinstance(cause, RockoonError):
        return ExitStatus.UNAVAILABLE
    return ExitStatus.FAILED


async def supervise(
    service: str, serve: Callable[[Stop], Awaitable[None]], stop_with_parent: bool
) -> int:
    stop = Stop(lambda reason: notify(f"STOPPING=1\nSTATUS={reason.splitlines()[0]}"))
    loop = asyncio.get_running_loop()

    def signalled(number: signal.Signals) -> None:
        if stop.requested:
            os._exit(128 + number)
        stop.request(f"received {number.name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    if stop_with_parent:
        loop.add_reader(0, parent_gone, loop, stop)
    with watchdog(loop):
        await serve(stop)
    if stop.fatal is not None:
        return complain(service, stop.fatal.status, stop.fatal)
    log.info("stopped: %s", stop.reason)
    return ExitStatus.STOPPED


def parent_gone(loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        stop.request("the process that started this one has ended")


def root_cause(failure: BaseException) -> BaseException:
    """Return the first exception inside nested groups (a TaskGroup wraps the exceptions of its
    tasks)."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def complain(service: str, status: int, failure: object) -> int:
    sys.stderr.write(f"rockoon-{service}: {failure}\n")
    sys.stderr.flush()
    return int(status)
