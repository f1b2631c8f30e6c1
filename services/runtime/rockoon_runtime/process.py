"""A service process, from its command line to its exit status.

    settings → logging → event loop → serve(stop) → exit

`serve` runs until `stop` is set by SIGTERM or SIGINT (or by the parent's end), then drains and
returns. A second signal ends the process at once. Whatever stops a service from doing its work
ends it with one sentence on standard error and an exit status that says which kind it was.
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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import uvloop

from rockoon_core.disk import Disk
from rockoon_core.errors import RockoonError
from rockoon_rpc import implementation
from rockoon_runtime.allocator import keep_freed_memory
from rockoon_runtime.settings import Loaded, SettingsError, command_line, load, render
from rockoon_runtime.telemetry.logs import set_up_logging
from rockoon_runtime.wire import ListenError

Settings = TypeVar("Settings")

log = logging.getLogger(__name__)


class ExitStatus(enum.IntEnum):
    """What the exit status of a Rockoon service means."""

    STOPPED = 0
    # An exception nobody foresaw: a bug.
    FAILED = 1
    # As sysexits.h: a setting is wrong, or an address cannot be listened on.
    CONFIGURATION = 78
    # The store is damaged, of another shape, or locked by another process.
    STORE = 74
    # A disk that failed while the service was running: nothing may be acknowledged any more.
    DISK_FAILED = 76
    # Something the service needs did not answer at start.
    UNAVAILABLE = 69


class Fatal(Exception):
    """A condition in which stopping is the right answer.

    Args:
        status: what the process exits with.
        reason: one sentence for the person who looks at the log.
    """

    def __init__(self, status: ExitStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Stop:
    """The wish to stop: set once, from a signal handler or by the service itself."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""
        # Written by the task that found the condition; read by `run` after `serve` has returned.
        self.fatal: Fatal | None = None

    def request(self, reason: str) -> None:
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def fail(self, fatal: Fatal) -> None:
        """Stop because of a fatal condition; the exit status will be its own."""
        self.fatal = self.fatal or fatal
        self.request(str(fatal))

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> str:
        await self._event.wait()
        return self.reason

    async def or_event(self, event: asyncio.Event) -> bool:
        """Wait for an event; False when the wish to stop came first."""
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._event.wait(), name="stop while starting")
            waiting = tasks.create_task(event.wait(), name="start")
            await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            waiting.cancel()
        return event.is_set() and not self.requested


def announce(service: str, name: str, address: str) -> None:
    """Tell whoever started the process that it serves, as one JSON line on standard output."""
    line = json.dumps({"ready": service, "name": name, "address": address, "pid": os.getpid()})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Program(Generic[Settings]):
    """A service as a program.

    Attributes:
        service: short name, for example "broker".
        description: one line for `--help`.
        settings_class: its settings dataclass.
        serve: the service; returns after `stop` was requested and everything is put away.
    """

    service: str
    description: str
    settings_class: type[Settings]
    serve: Callable[..., Awaitable[None]]


def node_name(settings: object) -> str:
    """The name of a process in log lines: of one replica of a log, its own and not its log's."""
    return str(getattr(settings, "process_name", getattr(settings, "name", "")))


def run(program: Program[Settings]) -> int:
    """Run a service from its command line and return its exit status."""
    open_closed_descriptors()
    service = program.service
    arguments = vars(command_line(program.settings_class, service, program.description))
    print_only = arguments.pop("print_settings")
    stop_with_parent = arguments.pop("stop_with_parent")
    try:
        loaded = loaded_settings(program, arguments)
    except SettingsError as failure:
        return complain(service, ExitStatus.CONFIGURATION, failure)
    if print_only:
        sys.stdout.write(render(loaded) + "\n")
        return ExitStatus.STOPPED
    set_up_logging(
        service,
        # A service without settings of telemetry writes for people.
        getattr(loaded.value, "log_format", "text"),
        node_name(loaded.value),
    )
    return run_loop(
        service, lambda stop: program.serve(loaded.value, stop), stop_with_parent=stop_with_parent
    )


def loaded_settings(program: Program[Settings], arguments: dict[str, Any]) -> Loaded[Settings]:
    """A service's settings, of its command line's `--config`, the environment and the rest of the
    command line. Raises SettingsError."""
    config = arguments.pop("config")
    return load(
        program.settings_class,
        program.service,
        file=config,
        environment=os.environ,
        arguments=arguments,
    )


def run_loop(
    service: str, serve: Callable[[Stop], Awaitable[None]], *, stop_with_parent: bool
) -> int:
    """Run what serves until it ends; returns the exit status.

    Args:
        service: short name, for complaints.
        serve: as of `Program`, its settings known.
        stop_with_parent: stop when standard input is closed.
    """
    if implementation.name() != implementation.COMPILED:
        name = implementation.name()
        log.warning("HTTP/2: %s, since no compiled kernel is used; calls cost more", name)
    raise_open_files_limit()
    keep_freed_memory()
    # What programs are made of is no garbage: to look through it again and again takes tens of
    # milliseconds each time, in which nobody is answered.
    gc.freeze()
    try:
        return uvloop.run(supervise(service, serve, stop_with_parent))
    except Exception as failure:
        cause = root_cause(failure)
        status = exit_status(cause)
        if status is ExitStatus.FAILED:
            raise
        return complain(service, status, cause)


def open_closed_descriptors() -> None:
    """Give `<&-`, `>&-` and `2>&-` something to hold.

    The first files that are opened would get these numbers: a store's, into which whatever writes
    to standard error writes, or libuv's, which ends the process when it is to close one of them.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python has looked at them before.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def raise_open_files_limit() -> None:
    """Allow as many open files as the system permits: logs and queues are many files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        # Some systems name a maximum and then refuse it; the present limit holds then.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_when_descriptor_lost(disk: Disk, stop: Stop) -> None:
    """Have the process end when other code has closed a descriptor of its store."""
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
    stop = Stop()
    loop = asyncio.get_running_loop()

    def signalled(number: signal.Signals) -> None:
        if stop.requested:
            os._exit(128 + number)
        stop.request(f"received {number.name}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    if stop_with_parent:
        loop.add_reader(0, parent_gone, loop, stop)
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
    """The first exception inside nested groups (a TaskGroup wraps what its tasks raise)."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def complain(service: str, status: int, failure: object) -> int:
    sys.stderr.write(f"rockoon-{service}: {failure}\n")
    sys.stderr.flush()
    return int(status)
