"""A connection for blocking code: its event loop runs in a separate thread.

This module does not import producers and consumers. Their import costs more CPU than all calls of
a short program, for example of the process in which Spark plans a stream.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar

from rockoon.errors import Closed
from rockoon.net.connection import Connection
from rockoon.net.forks import watch_forks

# Parallel host name lookups.
LOOKUPS_MAX = 4

Opened = TypeVar("Opened", bound=Connection)
Result = TypeVar("Result")


class BlockingConnection(Generic[Opened]):
    """A connection to a cluster whose calls block; they may be made from any thread.

    Args:
        make: creates the asyncio connection; called in the event loop of the thread.

    Raises:
        NameserverUnavailable, WrongCluster, TlsFailed, NotAuthenticated: on entering the context,
            as `Connection`.
    """

    def __init__(self, make: Callable[[], Opened]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Written only by the loop's thread, between enter and exit.
        self._connection: Opened | None = None
        self._ended: asyncio.Event | None = None
        # Why the thread ended before the context was left.
        self._failures: list[BaseException] = []
        # Set in a forked child of the process that opened the connection: the error of every call.
        self._refused_in_child: str | None = None

    def __enter__(self) -> Self:
        entered: threading.Event = threading.Event()
        self._failures, self._refused_in_child = [], None
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, entered), name="rockoon", daemon=True
        )
        self._thread.start()
        entered.wait()
        if self._failures:
            self._thread.join()
            raise self._failures[0]
        watch_forks(self)
        return self

    def refuse_in_child(self, reason: str) -> None:
        """Refuse calls in a forked child; see `Forkable.refuse_in_child`."""
        self._refused_in_child = reason
        self._loop = self._connection = None

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        if self._refused_in_child is not None:
            return  # the loop's thread runs in the parent only
        loop, thread, ended = self._loop, self._thread, self._ended
        assert loop is not None
        assert thread is not None
        assert ended is not None
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(ended.set)
        thread.join()
        self._loop = None
        # An exception of the body is raised instead; the two may be related.
        if failure is None and self._failures:
            raise self._failures[0]

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        entered: threading.Event,
    ) -> None:
        async def run_connection() -> None:
            self._ended = asyncio.Event()
            try:
                async with self._make() as connection:
                    self._connection = connection
                    entered.set()
                    await self._ended.wait()
            finally:
                self._connection = None

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(run_connection())
            except BaseException as failure:  # noqa: BLE001 - the caller raises it
                self._failures.append(failure)
                entered.set()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of the asyncio SDK in the event loop and return its result.

        Raises:
            Closed: called outside the `with` block; `__cause__` is the failure of the connection.
            RuntimeError: called in the event loop's thread, which would wait for itself.
        """
        return self._result(self._submit(work))

    def call_close(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that closes a producer or consumer, as `call`. No effect in a forked
        child, which may leave its parent's `with` blocks through `sys.exit`."""
        if self._refused_in_child is None:
            self.call(work)
        else:
            work.close()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule a function in the loop's thread without waiting for it; usable in signal
        handlers. No effect after the connection is closed."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function)

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        if self._loop is None or self._failures:
            work.close()
            raise self._closed()
        if self._is_own_thread():
            work.close()
            raise RuntimeError("a blocking call on the connection's own event loop")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _result(self, future: Future[Result]) -> Result:
        try:
            return future.result()
        except CancelledError:
            raise self._closed()  # noqa: B904 - `_closed` sets the cause
        except KeyboardInterrupt:
            future.cancel()
            raise

    @property
    def asyncio(self) -> Opened:
        """The asyncio connection, for use with `call`."""
        if self._connection is None:
            raise self._closed()
        return self._connection

    def _closed(self) -> Closed:
        if self._refused_in_child is not None:
            return Closed(self._refused_in_child)
        closed = Closed(what="the connection to the cluster")
        closed.__cause__ = next(iter(self._failures), None)
        return closed

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # uvloop does not support Windows
        loop = asyncio.new_event_loop()
    else:
        loop = _with_own_lookup(uvloop.Loop)()
    loop.set_exception_handler(_report)
    return loop


def _with_own_lookup(base: type[asyncio.AbstractEventLoop]) -> type[asyncio.AbstractEventLoop]:
    """Return an event loop class that resolves host names in Python threads.

    uvloop resolves them in threads of libuv. A forked child would then crash at its normal exit,
    because libuv joins threads that exist only in the parent.
    """

    class Loop(base):  # type: ignore[valid-type, misc]
        async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
            resolve = partial(socket.getaddrinfo, host, port, **options)
            # A separate pool: transaction checks may occupy the loop's default pool.
            if not hasattr(self, "_lookups"):
                self._lookups = ThreadPoolExecutor(LOOKUPS_MAX, "rockoon-names")
            return await self.run_in_executor(self._lookups, resolve)

    return Loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of an event loop, except gRPC's errors for a loop that has ended.

    gRPC has one event queue for all loops of a process; any loop may dispatch another's events.
    """
    is_late = isinstance(context.get("exception"), RuntimeError) and (
        "PollerCompletionQueue" in str(context.get("message"))
    )
    if not is_late:
        loop.default_exception_handler(context)
