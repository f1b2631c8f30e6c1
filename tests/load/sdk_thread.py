"""The SDK beside Locust: an asyncio loop in its own thread, and greenlets that wait for it.

Locust runs on gevent, the SDK on asyncio and grpc.aio. Nothing is monkey-patched here
(LOCUST_SKIP_MONKEY_PATCH, set before Locust is imported): the thread is a real one, with uvloop,
and a user's code in it runs as without Locust. Greenlets are notified of an end by libev's
asynchronous watcher, the only part of a gevent loop that another thread may use.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable

import gevent
import gevent.event
import uvloop

import rockoon
from rockoon.cluster import Cluster

Doing = Callable[[Cluster, asyncio.Event], Awaitable[None]]
CONNECT_SECONDS_MAX = 60.0


class Work:
    """Work that runs in the SDK's thread. Its methods are for greenlets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended = gevent.event.Event()
        # Created and set in the SDK's thread.
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """Request its end."""
        self._loop.call_soon_threadsafe(self.stopping.set)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; return whether it has ended."""
        return bool(self._ended.wait(seconds))

    def note_end(self) -> None:
        self._ended.set()


class SdkThread:
    """A connection to a cluster, and the thread in which it is used.

    Args:
        endpoint: address of the nameservers.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._loop = uvloop.new_event_loop()
        # Ended works: the SDK's thread adds, the gevent loop removes.
        self._ends: deque[Work] = deque()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._tell_ends)
        self._connection = Work(self._loop)
        self._cluster: Cluster | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._connected = Work(self._loop)
        self._thread = threading.Thread(target=self._run, name="sdk", daemon=True)

    def start(self) -> None:
        """Connect.

        Raises:
            RockoonError: the reason why that was not possible.
            TimeoutError: it took too long.
        """
        self._thread.start()
        if not self._connected.wait(CONNECT_SECONDS_MAX):
            raise TimeoutError(f"no connection to {self._endpoint}")
        if self._connected.failure is not None:
            raise self._connected.failure

    def do(self, doing: Doing) -> Work:
        """Start work; its arguments are the connection and an event that requests its end."""
        work = Work(self._loop)
        self._loop.call_soon_threadsafe(self._begin, work, doing)
        return work

    def stop(self) -> None:
        """Close the connection, after all started work has ended."""
        self._connection.stop()
        if self._connection.wait(CONNECT_SECONDS_MAX):
            # The interpreter must not end under a thread that is still in C code.
            self._thread.join()
            self._watcher.close()

    # In the SDK's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except Exception as failure:  # noqa: BLE001 - the root of the thread; `start` raises it
            self._connected.failure = failure
        finally:
            self._end(self._connected)
            self._end(self._connection)

    async def _live(self) -> None:
        async with rockoon.connect(self._endpoint) as cluster, asyncio.TaskGroup() as tasks:
            self._cluster, self._tasks = cluster, tasks
            self._end(self._connected)
            await self._connection.stopping.wait()

    def _begin(self, work: Work, doing: Doing) -> None:
        assert self._tasks is not None
        self._tasks.create_task(self._guard(work, doing), name="user")

    async def _guard(self, work: Work, doing: Doing) -> None:
        assert self._cluster is not None
        try:
            await doing(self._cluster, work.stopping)
        except Exception as failure:  # noqa: BLE001 - the root of the user's task; it is told there
            work.failure = failure
        finally:
            self._end(work)

    def _end(self, work: Work) -> None:
        self._ends.append(work)
        self._watcher.send()

    # In the gevent loop.

    def _tell_ends(self) -> None:
        while self._ends:
            self._ends.popleft().note_end()
