"""Reports to systemd: the service is ready, it stops, its event loop runs.

A unit with `Type=notify` names a datagram socket in NOTIFY_SOCKET. A report is one datagram with
lines `NAME=VALUE`. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

SOCKET = "NOTIFY_SOCKET"
# Interval in which systemd expects WATCHDOG=1, microseconds, and the process that it watches.
INTERVAL, PROCESS = "WATCHDOG_USEC", "WATCHDOG_PID"


def notify(report: str) -> None:
    """Send a report; without NOTIFY_SOCKET, or if systemd does not receive it, nothing happens.

    Args:
        report: lines `NAME=VALUE`, for example `READY=1`.
    """
    address = os.environ.get(SOCKET, "")
    if address[:1] not in ("/", "@"):
        return
    if address.startswith("@"):
        # An abstract socket; its name has no file.
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        # The event loop must not wait for a systemd that does not read.
        sender.setblocking(False)
        sender.sendto(report.encode(), address)


def watchdog_seconds(environment: Mapping[str, str], process: int) -> float:
    """Return the interval of WATCHDOG=1 that systemd expects from a process, seconds; 0: none."""
    if environment.get(PROCESS, str(process)) != str(process):
        return 0.0
    try:
        return max(int(environment.get(INTERVAL, "0")), 0) / 1e6
    except ValueError:
        return 0.0


@contextlib.contextmanager
def watchdog(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Report that the event loop runs, twice in each interval that systemd expects.

    If the loop is blocked for the whole interval, systemd ends the process and starts another one.
    """
    seconds = watchdog_seconds(os.environ, os.getpid())
    next_report: asyncio.TimerHandle | None = None

    def report() -> None:
        nonlocal next_report
        notify("WATCHDOG=1")
        next_report = loop.call_later(seconds / 2, report)

    if seconds:
        report()
    try:
        yield
    finally:
        if next_report is not None:
            next_report.cancel()
