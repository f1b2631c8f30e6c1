"""Follows the routes: a watch on any nameserver, taken up again by revision when it breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rockoon_core.errors import NotAuthenticated, RockoonError, WrongCluster
from rockoon_node.nameservers import Nameservers
from rockoon_node.pending_updates import PendingUpdates
from rockoon_node.watching import Watching
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate, WatchRoutesRequest
from rockoon_runtime.process import ExitStatus, Fatal, Stop

log = logging.getLogger(__name__)

# So long callers may have seen newer routes, none of which is told here.
BEHIND_SECONDS_MAX = 0.75


class RouteFollower:
    """Hands every change of the routes to a service, whichever nameserver tells them.

    While no nameserver answers, the routes stay as they were.

    Args:
        nameservers: whom to ask.
        take: puts an update into force; the next one follows when it has returned, and what was
            told meanwhile comes as one (see `pending_updates`). A nameserver that lags sends no
            reader into the past, so a revision lower than the last means that etcd itself went
            back: it was restored, or is a new one.
        refuse: says why the routes cannot be this service's at all; empty when they can.
        seen: the latest revision that was ever in force here, also before a restart.

    Attributes:
        revision: all of the routes up to here are in force; 0 at first.
        following: whether a nameserver with a live etcd is telling changes as they happen.
        accepted: set when routes have been told that can be this service's.
        loaded: set when the first update is in force.
        attempted: set then too, or when every nameserver was asked in vain.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        take: Callable[[RouteUpdate], Awaitable[None]],
        refuse: Callable[[RouteUpdate], str] = lambda _: "",
        seen: Callable[[], int] = lambda: 0,
    ) -> None:
        self._nameservers = nameservers
        self._take = take
        self._refuse = refuse
        self._seen = seen
        self._watching = Watching(nameservers, "routes")
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.revision = 0
        # Since when callers have seen newer routes, none of which came; and the watch that is on.
        self._behind_since: float | None = None
        self._call: Any = None
        self._has_told = self._moves_on = False
        # Whose revision that is; 0 while unknown.
        self._etcd_cluster_id = 0
        self._history = 0
        self.following = False
        self.accepted = asyncio.Event()
        self.loaded = asyncio.Event()

    @property
    def attempted(self) -> asyncio.Event:
        return self._watching.attempted

    async def run(self, stop: Stop) -> None:
        """Follow until cancelled.

        Args:
            stop: the service's; failed when the nameservers are another cluster's, or do not know
                its cluster secret.
        """
        await self._watching.run(self._follow, self._is_final, stop)

    def _is_final(self, reason: RockoonError) -> bool:
        return isinstance(reason, WrongCluster | NotAuthenticated) and not self.loaded.is_set()

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes up to a revision are in force; False when they are not in time."""
        if self.revision >= revision:
            return True
        reached = asyncio.get_running_loop().create_future()
        entry = (revision, reached)
        # Nothing awaits since the comparison above: no update can come in between unseen.
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await reached
        except TimeoutError:
            self.doubt()
            return False
        finally:
            self._waiting.remove(entry)
        return True

    def doubt(self) -> None:
        """Callers have seen newer routes: if that goes on, the next nameserver is asked.

        A connection without a word is noticed after seconds only, and such callers wait.
        """
        now = asyncio.get_running_loop().time()
        if self._behind_since is None:
            self._behind_since = now
        is_long = now - self._behind_since >= BEHIND_SECONDS_MAX
        # Once, until something is told again: a watch that takes long to begin must not be ended
        # for another one.
        if not is_long or not self.following:
            return
        if not self._has_told:
            # The next one is as silent: nobody can tell.
            self.following = False
        elif len(self._nameservers.addresses) > 1:
            self._has_told, self._moves_on, self._behind_since = False, True, now
            self._call.cancel()

    async def _follow(self, address: str) -> None:
        try:
            await self._watch(address)
        finally:
            # Whatever ended the watch: from now on the routes may be out of date. Who only moves on
            # is still told; callers that have seen more are not answered by what may be old.
            self.following = self.following and self._moves_on
            self._has_told = self._moves_on = False

    async def _watch(self, address: str) -> None:
        """Raises Fatal when the routes there cannot be this service's."""
        # A service without interest in groups needs their revisions: callers may wait for those.
        request = WatchRoutesRequest(
            after_revision=self.revision,
            include_groups=True,
            seen_revision=self._seen(),
            history=self._history,
        )
        stub = self._nameservers.stub(address)
        self._call = call = stub.WatchRoutes(request, metadata=self._nameservers.metadata)
        # Read as it comes, taken in as fast as that goes: what waits is added up to one update.
        pending = PendingUpdates()
        failed: list[grpc.RpcError] = []
        refusal = ""

        async def read() -> None:
            try:
                async for update in call:
                    await pending.put(update)
            except grpc.RpcError as failure:
                failed.append(failure)
            except asyncio.CancelledError:
                # A call that this side has cancelled tells it so, too.
                if not self._moves_on:
                    raise
            finally:
                call.cancel()
            await pending.end()

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read(), name=f"routes told by {address}")
            while (update := await pending.take()) is not None:
                if self._continues_another(update):
                    # Its changes since a revision of our etcd are none since what is in force.
                    log.warning(
                        "nameserver %s follows another etcd: its routes are read again", address
                    )
                    # Asks the next watch for a whole snapshot.
                    self.revision = 0
                    reading.cancel()
                    return
                refusal = self._refuse(update)
                if refusal:
                    reading.cancel()
                    break
                self.accepted.set()
                await self._take(update)
                self._etcd_cluster_id = update.etcd_cluster_id or self._etcd_cluster_id
                self._history = update.history or self._history
                self.following = update.etcd_reachable
                # After `_take`: who waits for a revision looks at the routes at once.
                self._reach(update.revision)
        if refusal:
            raise Fatal(ExitStatus.CONFIGURATION, refusal)
        if failed:
            raise failed[0]
        if self._moves_on:
            log.info(
                "nameserver %s tells nothing that others have seen: the next is asked", address
            )
        else:
            log.info("nameserver %s ended the watch", address)

    def _continues_another(self, update: RouteUpdate) -> bool:
        known, told = self._etcd_cluster_id, update.etcd_cluster_id
        return not update.snapshot and known != told and 0 not in (known, told)

    def _reach(self, revision: int) -> None:
        self.revision = revision
        self._behind_since = None
        self._has_told = True
        self.loaded.set()
        self._watching.answered()
        for wanted, reached in self._waiting:
            if wanted <= revision and not reached.done():
                reached.set_result(None)
