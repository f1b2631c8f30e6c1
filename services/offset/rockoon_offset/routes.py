"""The routes as this service knows them: a table in step with what the nameservers tell."""

from collections.abc import Callable

from rockoon_node.nameservers import Nameservers
from rockoon_node.route_follower import RouteFollower
from rockoon_offset.route_table import Change, RouteTable
from rockoon_proto.v1.nameserver_pb2 import RouteUpdate
from rockoon_runtime.process import Stop


class Routes:
    """The routes, kept up to date by `run`.

    Args:
        nameservers: whom to ask.
        on_change: called after each update, before anybody waiting for it goes on.

    Attributes:
        table: what is known; empty at first.
        loaded: set when a nameserver has told it.
    """

    def __init__(self, nameservers: Nameservers, on_change: Callable[[Change], None]) -> None:
        self._on_change = on_change
        self._follower = RouteFollower(nameservers, self._take)
        self.table = RouteTable()
        self.loaded = self._follower.loaded

    async def run(self, stop: Stop) -> None:
        """Follow until cancelled; `stop` is failed if the nameservers are another cluster's."""
        await self._follower.run(stop)

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes up to a revision are known; False when they are not in time."""
        return await self._follower.wait_revision(revision, seconds)

    async def _take(self, update: RouteUpdate) -> None:
        self._on_change(self.table.apply(update))
