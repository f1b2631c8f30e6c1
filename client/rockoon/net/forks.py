"""Connections in forked children: every use raises `Closed`.

A forked child (gunicorn `--preload`, Celery's prefork pool, multiprocessing) inherits the objects
and sockets of its parent's connections, but not the thread of their event loop. Every call would
block forever, and a write would corrupt the parent's HTTP/2 stream.
"""

import os
from typing import Protocol
from weakref import WeakSet

from rockoon.errors import Closed


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
