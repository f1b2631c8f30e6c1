"""Follows the routes: a watch on any nameserver, taken up again by revision when it breaks."""

import asyncio
import logging
from collections.abc import Callable

import grpc

from rockoon_offset.nameservers import Nameservers, Pauses
from rockoon_offset.route_table import Change, RouteTable
from rockoon_proto.errors import NameserverUnavailable, WrongCluster, from_rpc_error
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate, WatchRoutesRequest
from rockoon_runtime.process import ExitStatus, Fatal

log = logging.getLogger(__name__)

# How often in a row a snapshot from the past is refused, per nameserver, before it is believed.
REFUSED_SNAPSHOTS_MAX = 3


class Routes:
    """The routes, kept up to date by `run`; while no nameserver answers they stay as they were.

    Args:
        nameservers: whom to ask.
        on_change: called after each update, before anybody waiting for it goes on.
    """

    def __init__(self, nameservers: Nameservers, on_change: Callable[[Change], None]) -> None:
        self._nameservers = nameservers
        self._on_change = on_change
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._refused_snapshots = 0
        self.table = RouteTable()
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            Fatal: the nameservers are another cluster's.
        """
        pauses = Pauses(len(self._nameservers.addresses))
        turn = 0
        while True:
            address = self._nameservers.addresses[turn % len(self._nameservers.addresses)]
            try:
                await self._watch(address, pauses)
                log.info("nameserver %s ended the watch", address)
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                if isinstance(reason, WrongCluster) and not self.loaded.is_set():
                    raise Fatal(ExitStatus.CONFIGURATION, str(reason)) from failure
                log.info("routes: %s", reason)
            turn += 1
            await pauses.wait()

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes up to a revision are known; False when they are not in time."""
        if self.table.revision >= revision:
            return True
        reached = asyncio.get_running_loop().create_future()
        entry = (revision, reached)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await reached
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(entry)
        return True

    async def _watch(self, address: str, pauses: Pauses) -> None:
        request = WatchRoutesRequest(after_revision=self.table.revision, include_groups=True)
        stub = self._nameservers.stub(address)
        call = stub.WatchRoutes(request, metadata=self._nameservers.metadata)
        async for update in call:
            if self._is_from_the_past(update):
                call.cancel()
                return
            self._refused_snapshots = 0
            self._take(update)
            pauses.answered()

    def _is_from_the_past(self, update: RouteUpdate) -> bool:
        """Whether another nameserver should be asked, as this one lags behind what is known.

        If they all keep saying so, etcd itself went back (it was restored, or is a new one), and
        these are the routes now.
        """
        if update.revision >= self.table.revision:
            return False
        self._refused_snapshots += 1
        if self._refused_snapshots <= REFUSED_SNAPSHOTS_MAX * len(self._nameservers.addresses):
            return True
        log.error(
            "routes went back from revision %d to %d: was etcd restored? Progress is kept as it is",
            self.table.revision,
            update.revision,
        )
        return False

    def _take(self, update: RouteUpdate) -> None:
        change = self.table.apply(update)
        self._on_change(change)
        self.loaded.set()
        for wanted, reached in self._waiting:
            if wanted <= self.table.revision and not reached.done():
                reached.set_result(None)
