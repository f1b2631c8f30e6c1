"""The AccessKeys service: reads from the follower's table, writes to etcd."""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

from collections.abc import AsyncIterator
from typing import Any

from rockoon_core.errors import AccessKeyNotFound, InvalidArgument
from rockoon_nameserver.access_keys import AccessKeys, without_verifiers
from rockoon_nameserver.follower import EtcdFollower
from rockoon_proto.v1 import access_pb2 as pb
from rockoon_proto.v1.access_pb2_grpc import AccessKeysServicer

# How long WatchKeys stays open while etcd is unreachable: another nameserver may have revoked
# keys.
AWAY_SECONDS_MAX = 5.0


class AccessKeyService(AccessKeysServicer):
    """See access.proto.

    Args:
        keys: makes the changes.
        follower: holds the keys as read from etcd.
        is_on: whether callers need keys. If they do not, no key can be created: any caller could
            create one and use it after keys are switched on.
    """

    def __init__(self, keys: AccessKeys, follower: EtcdFollower, *, is_on: bool) -> None:
        self._keys = keys
        self._follower = follower
        self._is_on = is_on

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._served(await self._keys.create(request))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysReply:
        self._refuse_when_off()
        self._follower.refuse_unloaded()
        table = self._follower.table
        keys = [key for key in table.access_keys if request.key_id in ("", key.key_id)]
        if request.key_id and not keys:
            raise AccessKeyNotFound(key=request.key_id)
        return pb.ListKeysReply(keys=map(without_verifiers, keys), revision=table.revision)

    async def UpdateKey(self, request: pb.UpdateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._served(await self._keys.update(request))

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._served(await self._keys.rotate(request))

    async def DeleteKey(self, request: pb.DeleteKeyRequest, context: Any) -> pb.DeleteKeyReply:
        self._refuse_when_off()
        reply = await self._keys.delete(request.key_id)
        await self._follower.wait_served(reply.revision)
        return reply

    async def WatchKeys(
        self, request: pb.WatchKeysRequest, context: Any
    ) -> AsyncIterator[pb.KeysUpdate]:
        self._refuse_when_off()
        async for update in self._follower.access_keys(AWAY_SECONDS_MAX):
            yield update

    async def _served(self, reply: pb.KeyReply) -> pb.KeyReply:
        """Return the reply once this nameserver applies the change to its own callers."""
        await self._follower.wait_served(reply.revision)
        return reply

    def _refuse_when_off(self) -> None:
        if not self._is_on:
            raise InvalidArgument(
                reason="this nameserver has no access keys (access = off): set access and "
                "cluster_secret"
            )
