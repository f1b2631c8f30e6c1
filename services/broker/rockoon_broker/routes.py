"""Follows the routes: a watch on any nameserver, taken up again by revision when it breaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from rockoon_broker.nameservers import Nameservers, Turns
from rockoon_broker.topics import PERMISSIONS_DEFAULT, RouteChange, ServedTopic
from rockoon_proto.errors import NameserverUnavailable, from_rpc_error
from rockoon_proto.v1 import nameserver_pb2

log = logging.getLogger(__name__)


def change_from_wire(update: nameserver_pb2.RouteUpdate, broker: str) -> RouteChange:
    """Reduce what a nameserver told to what concerns one broker."""
    return RouteChange(
        revision=update.revision,
        snapshot=update.snapshot,
        history=update.etcd_cluster_id,
        topics=[topic_from_wire(topic, broker) for topic in update.topics],
        removed=list(update.removed_topics),
    )


def topic_from_wire(topic: nameserver_pb2.Topic, broker: str) -> ServedTopic:
    return ServedTopic(
        name=topic.config.name,
        queues=sum(block.queues for block in topic.blocks if block.broker == broker),
        incarnation=topic.incarnation,
        permissions=topic.config.permissions or PERMISSIONS_DEFAULT,
        attributes=dict(topic.config.attributes),
    )


class RouteFollower:
    """Keeps a broker's topics in step with the routes, whichever nameserver tells them.

    Args:
        nameservers: whom to ask.
        broker: this broker's name.
        apply: puts a change into force; the next one is read when it has returned.
    """

    def __init__(
        self,
        nameservers: Nameservers,
        broker: str,
        apply: Callable[[RouteChange], Awaitable[None]],
    ) -> None:
        self._nameservers = nameservers
        self._broker = broker
        self._apply = apply
        self._turns = Turns(nameservers.addresses)
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._settled = asyncio.Event()
        # All of the routes up to here are in force; written by `run` alone.
        self.revision = 0
        # Whether a nameserver with a live etcd is telling us changes as they happen.
        self.following = False

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            address = self._turns.address
            try:
                await self._watch(address)
                log.info("nameserver %s ended the watch", address)
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                log.info("routes: %s", reason)
            self.following = False
            pause_seconds = self._turns.failed()
            if self._turns.round_failed:
                self._settled.set()
            await asyncio.sleep(pause_seconds)

    async def wait_settled(self) -> None:
        """Wait until the routes are in force, or every nameserver was asked in vain."""
        await self._settled.wait()

    async def wait_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the routes up to a revision are in force; False when they are not in time."""
        if self.revision >= revision:
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

    async def _watch(self, address: str) -> None:
        request = nameserver_pb2.WatchRoutesRequest(
            after_revision=self.revision,
            # Of no interest; but their revisions reach us at once, and callers may wait for those.
            include_groups=True,
        )
        stub = self._nameservers.stub(address)
        async for update in stub.WatchRoutes(request, metadata=self._nameservers.metadata):
            await self._apply(change_from_wire(update, self._broker))
            self._turns.answered()
            self.following = update.etcd_reachable
            self._reach(update.revision)

    def _reach(self, revision: int) -> None:
        self.revision = revision
        self._settled.set()
        for wanted, reached in self._waiting:
            if wanted <= revision and not reached.done():
                reached.set_result(None)
