"""End of connections: objects close on exit; in a forked child every use raises `Closed`.

A forked child (gunicorn `--preload`, Celery's prefork pool, multiprocessing) inherits the objects
and sockets of its parent's connections, but not the thread of their event loop. Every call would
block forever, and a write would corrupt the parent's HTTP/2 stream.
"""

import logging
import os
from typing import Protocol, Self
from weakref import WeakSet

from rockoon.errors import Closed, RockoonError
from rockoon_core.repeated_lines import limited


class Forkable(Protocol):
    """A connection, or an object on one, that a forked child inherits."""

    def refuse_in_child(self, reason: str) -> None:
        """Raise `Closed` with this text at every later use. Must neither block nor do I/O."""
        ...


_open: WeakSet[Forkable] = WeakSet()
_pid = os.getpid()


def watch_forks(connection: Forkable) -> None:
    """Call `refuse_in_child` of a connection in each child that this process forks."""
    _open.add(connection)


def closed(reason: str | None, what: str) -> Closed:
    """Return the error after `refuse_in_child(reason)`, or after a close if `reason` is None."""
    return Closed(what=what) if reason is None else Closed(reason)


def _refuse_all() -> None:
    global _pid
    parent, _pid = _pid, os.getpid()
    for connection in list(_open):
        connection.refuse_in_child(
            f"this connection was opened in process {parent}, and process {_pid} was forked from "
            "it: open a new connection after the fork"
        )
    # A grandchild keeps its parent's text, which names the process of the connection.
    _open.clear()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_refuse_all)

log = limited(logging.getLogger(__name__))


class ClosedOnExit:
    """Async context manager that calls the subclass's `close` on exit."""

    async def close(self) -> None:
        """Close the object; the subclass implements it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        try:
            await self.close()
        except RockoonError as close_error:
            if failure is None:
                raise
            # The body's exception is raised instead; it may be the cause of this failure.
            log.warning("closing failed after an exception of the with block: %s", close_error)
