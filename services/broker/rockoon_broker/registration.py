"""Keeps a broker in the routes: announced to any nameserver, renewed in time, taken out."""

import asyncio
import logging
import secrets
from pathlib import Path

import grpc

from rockoon_broker.nameservers import Nameservers, Turns
from rockoon_broker.store.disk import Disk
from rockoon_proto.errors import (
    NameserverUnavailable,
    NodeNameTaken,
    RockoonError,
    WrongCluster,
    from_rpc_error,
)
from rockoon_proto.v1 import nameserver_pb2
from rockoon_runtime.process import ExitStatus, Fatal

log = logging.getLogger(__name__)

STORE_ID_FILE = "storeId"
CALL_SECONDS_MAX = 3.0
UNREGISTER_SECONDS_MAX = 1.0
RENEW_SECONDS_MIN = 0.05


def read_or_make_store_id(config: Path, disk: Disk) -> str:
    """The identity of a store: made with it, kept in its config directory, never changed.

    Args:
        config: the store's config directory.
        disk: where a new one is written.

    Raises:
        OSError: it can be neither read nor written.
    """
    path = config / STORE_ID_FILE
    if path.exists() and (text := path.read_text().strip()):
        return text
    store_id = secrets.token_hex(16)
    for changed in disk.make_directory(config):
        disk.sync_directory(changed)
    disk.replace_file(path, store_id.encode() + b"\n")
    return store_id


class Registration:
    """A broker's entry in the routes.

    Args:
        nameservers: any of them is told.
        node: the entry.
    """

    def __init__(self, nameservers: Nameservers, node: nameserver_pb2.Node) -> None:
        self._nameservers = nameservers
        self._node = node
        self._turns = Turns(nameservers.addresses)
        self._lease_id = 0
        self._settled = asyncio.Event()
        # The name in the routes is another's, not ours to take out.
        self._refused = False
        # Whether the last call was answered; for logging each change once.
        self._in_routes = False

    async def run(self) -> None:
        """Announce and renew until cancelled.

        Raises:
            Fatal: another live broker bears the name, or the nameservers are another cluster's.
        """
        while True:
            address = self._turns.address
            try:
                await asyncio.sleep(await self._register(address))
            except grpc.RpcError as failure:
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                pause_seconds = self._give_up_on(reason)
                await asyncio.sleep(pause_seconds)

    async def wait_settled(self) -> None:
        """Wait until the broker is in the routes, or every nameserver was asked in vain."""
        await self._settled.wait()

    async def _register(self, address: str) -> float:
        """One call; returns after how many seconds the next is due."""
        reply = await self._nameservers.stub(address).RegisterNode(
            nameserver_pb2.RegisterNodeRequest(node=self._node, lease_id=self._lease_id),
            timeout=CALL_SECONDS_MAX,
            metadata=self._nameservers.metadata,
        )
        self._lease_id = reply.lease_id
        self._turns.answered()
        self._settled.set()
        if not self._in_routes:
            log.info("in the routes as %s at %s", self._node.name, self._node.address)
            self._in_routes = True
        return max(reply.renew_seconds, RENEW_SECONDS_MIN)

    def _give_up_on(self, reason: RockoonError) -> float:
        """Decide what a refusal means; returns how long to wait before the next call."""
        never_accepted = self._lease_id == 0
        if isinstance(reason, NodeNameTaken) or (
            isinstance(reason, WrongCluster) and never_accepted
        ):
            self._refused = True
            self._settled.set()
            raise Fatal(ExitStatus.CONFIGURATION, str(reason))
        if self._in_routes or not self._settled.is_set():
            log.warning("not registered: %s; serving what is known, and trying on", reason)
            self._in_routes = False
        pause_seconds = self._turns.failed()
        if self._turns.round_failed:
            self._settled.set()
        return pause_seconds

    async def leave(self) -> None:
        """Take the broker out of the routes: one short try at each nameserver."""
        if self._refused:
            return
        request = nameserver_pb2.UnregisterNodeRequest(
            kind=self._node.kind, name=self._node.name, store_id=self._node.store_id
        )
        for _ in self._nameservers.addresses:
            address = self._turns.address
            try:
                await self._nameservers.stub(address).UnregisterNode(
                    request, timeout=UNREGISTER_SECONDS_MAX, metadata=self._nameservers.metadata
                )
            except grpc.RpcError as failure:
                self._turns.failed()
                reason = from_rpc_error(failure, NameserverUnavailable, address=address)
                log.info("not taken out of the routes: %s", reason)
            else:
                return
