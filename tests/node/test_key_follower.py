"""A service and the access keys: the keys of nameservers that are in effect."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to every method

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from grpc import aio

from rockoon_node.key_follower import KeyFollower
from rockoon_node.nameservers import Nameservers
from rockoon_proto.v1 import access_pb2 as pb
from rockoon_proto.v1.access_pb2_grpc import AccessKeysServicer, add_AccessKeysServicer_to_server
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.process import Stop
from rockoon_runtime.wire import GrpcServer
from support.drains import AT_ONCE
from support.eventually import eventually

TellsOf = Callable[..., Nameservers]

NOBODY = "127.0.0.1:1"


def keys_at(revision: int, *key_ids: str, etcd_reachable: bool) -> pb.KeysUpdate:
    infos = [pb.AccessKeyInfo(key_id=key_id) for key_id in key_ids]
    return pb.KeysUpdate(keys=infos, revision=revision, etcd_reachable=etcd_reachable)


class Teller(AccessKeysServicer):
    """A nameserver that sends each watcher the keys of the test, and ends the watch when they
    change.

    Attributes:
        watches: number of watches so far.
    """

    def __init__(self, update: pb.KeysUpdate) -> None:
        self._update = update
        self._changed = asyncio.Event()
        self.watches = 0

    def tell(self, update: pb.KeysUpdate) -> None:
        self._update = update
        self._changed.set()
        self._changed = asyncio.Event()

    async def WatchKeys(
        self, request: pb.WatchKeysRequest, context: object
    ) -> AsyncIterator[pb.KeysUpdate]:
        self.watches += 1
        changed = self._changed
        yield self._update
        await changed.wait()


@asynccontextmanager
async def told_by(teller: Teller, told_of: TellsOf) -> AsyncIterator[Gate]:
    """The gate of a service that knows this nameserver, and one that does not reply."""
    gate = Gate({}, tuple, 300.0)

    def register(server: aio.Server) -> None:
        add_AccessKeysServicer_to_server(teller, server)

    server = GrpcServer("nameserver", "rockoon", "127.0.0.1:0", register, [], drain=AT_ONCE)
    async with server, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        follower = KeyFollower(told_of(server.address, NOBODY), gate)
        running = tasks.create_task(follower.run(Stop()))
        yield gate
        running.cancel()


async def test_a_nameserver_without_etcd_brings_no_revoked_key_back(told_of: TellsOf) -> None:
    """However long it is the only one that replies."""
    teller = Teller(keys_at(10, "shop", etcd_reachable=True))
    async with told_by(teller, told_of) as gate:
        await eventually(lambda: gate.keys.get("shop") is not None)
        teller.tell(keys_at(5, "shop", "revoked", etcd_reachable=False))
        begun = teller.watches
        await eventually(lambda: teller.watches >= begun + 4)
        assert gate.keys.get("revoked") is None
        assert gate.keys.get("shop") is not None


async def test_when_etcd_itself_went_back_its_keys_are_those_in_force(told_of: TellsOf) -> None:
    teller = Teller(keys_at(10, "shop", etcd_reachable=True))
    async with told_by(teller, told_of) as gate:
        await eventually(lambda: gate.keys.get("shop") is not None)
        teller.tell(keys_at(5, "restored", etcd_reachable=True))
        await eventually(lambda: gate.keys.get("restored") is not None)
        assert gate.keys.get("shop") is None
