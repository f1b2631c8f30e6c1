"""Follows the routes of the topics in use.

One WatchRoutes stream, resumed by revision, at any of the nameservers. While none of them answers,
the routes stay as they were.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpc import RpcError, StatusCode, aio

from rockoon.errors import (
    InvalidArgument,
    NameserverUnavailable,
    NotAuthenticated,
    RockoonError,
    TlsFailed,
    WrongCluster,
)
from rockoon.net.routes import Routes
from rockoon.net.tls import TlsTroubles, why_no_tls
from rockoon_core.changes import Changes
from rockoon_core.channels import Channels
from rockoon_core.failed_call import clock_corrected, from_rpc_error
from rockoon_core.nameservers import WatchRotation
from rockoon_core.repeated_lines import limited
from rockoon_format.names import DEFAULT_TOPIC
from rockoon_proto.v1.nameserver_pb2 import WatchRoutesRequest
from rockoon_proto.v1.nameserver_pb2_grpc import NameServerStub

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

log = limited(logging.getLogger(__name__))

# An empty list of topics would ask for all of them. This name is RocketMQ's own and cannot be
# created here, so a watch on it brings the nodes and nothing else.
_NO_TOPIC = DEFAULT_TOPIC


class RouteWatch:
    """What one connection knows of the routes.

    Args:
        nameservers: "host:port" of each.
        channels: to them.
        metadata: of every call.

    Attributes:
        routes: as they were told last.
        changed: noted when they are others, and once when watching is of no use: see `refused`.
        refused: why no nameserver will ever answer; only looked for before the first answer.
    """

    def __init__(
        self,
        nameservers: tuple[str, ...],
        channels: Channels,
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        self.routes = Routes()
        self.changed = Changes()
        self.refused: RockoonError | None = None
        self._nameservers = nameservers
        self._channels = channels
        self._metadata = metadata
        self._followed: set[str] = {_NO_TOPIC}
        self._call: aio.UnaryStreamCall[Any, Any] | None = None
        self._rotation = WatchRotation(nameservers)
        self._tls_troubles = TlsTroubles()
        self._not_nameservers: set[str] = set()

    def follows(self, topic: str) -> bool:
        """Whether changes of a topic are told."""
        return topic in self._followed

    def follow(self, *topics: str) -> None:
        """Be told of these topics' changes too, from the routes' revision on."""
        if not self._followed.issuperset(topics):
            self._followed.update(topics)
            if self._call is not None:
                self._call.cancel()

    def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Be told no more of topics that do not exist."""
        gone = {each for each in self._followed if is_forgotten(each)}
        gone = {each for each in gone if self.routes.topic(each) is None and each != _NO_TOPIC}
        # The call goes on to follow them; the next one does not.
        self._followed -= gone
        for each in gone:
            self.routes.drop(each)

    def unreachable(self) -> RockoonError:
        """Why no nameserver has answered."""
        if self._tls_troubles.first is None:
            return NameserverUnavailable(address=", ".join(self._nameservers))
        address, reason = self._tls_troubles.first
        return TlsFailed(address=address, reason=reason)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            address = self._rotation.address
            try:
                if await self._watch_at(address):
                    continue
                log.debug("the nameserver at %s ended the watch", address)
            except RpcError as failure:
                error = from_rpc_error(failure, NameserverUnavailable, address=address)
                if clock_corrected(self._channels.access, error):
                    continue
                if not self.changed.count:
                    self._note_refusal(address, failure, error)
                log.debug("the watch at %s ended: %s", address, error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Only the call was cancelled: a topic was added.
                continue
            finally:
                self._call = None
            await asyncio.sleep(self._rotation.failed())

    def _note_refusal(self, address: str, failure: RpcError, error: RockoonError) -> None:
        """End entering when there is no use in trying on."""
        now_seconds = asyncio.get_running_loop().time()
        self._tls_troubles.note(address, why_no_tls(failure, self._channels.tls), now_seconds)
        if isinstance(error, WrongCluster | NotAuthenticated):
            self.refused = error
        elif failure.code() is StatusCode.UNIMPLEMENTED:
            self._not_nameservers.add(address)
            if self._not_nameservers.issuperset(self._nameservers):
                self.refused = InvalidArgument(
                    reason=f"{', '.join(self._nameservers)} answers, but is not a nameserver: name "
                    "the address of a nameserver (port 9876 by default), not of another service"
                )
        elif self._tls_troubles.lasting(self._nameservers, now_seconds):
            self.refused = self.unreachable()
        if self.refused is not None:
            self.changed.note()

    async def _watch_at(self, address: str) -> bool:
        """Follow the routes at one nameserver; True when it is to be asked for a snapshot."""
        topics = frozenset(self._followed)
        request = WatchRoutesRequest(
            topics=sorted(topics),
            after_revision=self.routes.revision,
            history=self.routes.history,
        )
        stub: NameServerAsyncStub = NameServerStub(self._channels.get(address))
        call = stub.WatchRoutes(request, metadata=self._metadata)
        self._call = call
        try:
            async for update in call:
                self._rotation.answered()
                is_first = not self.changed.count
                if self.routes.apply(update, topics) or is_first:
                    self.changed.note()
                if not self.routes.revision:
                    # Another etcd.
                    return True
            return False
        finally:
            call.cancel()
