"""Access keys: their permissions, their changes in etcd, and the AccessKeys service."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to each method

from collections.abc import AsyncIterator, Callable
from typing import Any

from rockoon_core.errors import (
    AccessKeyChanged,
    AccessKeyExists,
    AccessKeyNotFound,
    Busy,
    InvalidArgument,
)
from rockoon_core.key_checks import check_description, check_key_id, check_owner, granted
from rockoon_core.signature import VERIFIER_BYTES
from rockoon_nameserver.etcd_data import DeleteKey, PutKey, absent, exists, unchanged
from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.keyspace import (
    AccessKeyName,
    Keyspace,
    access_key_value,
    read_access_key,
)
from rockoon_nameserver.route_store import RouteStore
from rockoon_proto.v1 import access_pb2 as pb
from rockoon_proto.v1.access_pb2 import (
    AccessKeyInfo,
    CreateKeyRequest,
    DeleteKeyReply,
    DeleteKeyRequest,
    KeyReply,
    RotateKeyRequest,
    UpdateKeyRequest,
)
from rockoon_proto.v1.access_pb2_grpc import AccessKeysServicer

ATTEMPTS_MAX = 8
# Each service holds all keys, and receives all keys after a change of one.
KEYS_MAX = 5_000
FORMER_SECONDS_MAX = 30 * 86_400.0
# How long WatchKeys stays open while etcd is unreachable: another nameserver may have revoked
# keys.
AWAY_SECONDS_MAX = 5.0


class AccessKeys:
    """Changes access keys in etcd; `count` returns how many this nameserver knows."""

    def __init__(
        self,
        etcd: RouteStore,
        keyspace: Keyspace,
        count: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._count = count
        self._now_ms = now_ms

    async def create(self, request: CreateKeyRequest) -> KeyReply:
        """Create an access key.

        Raises:
            InvalidArgument: the id, verifier, description, owner or a permission is invalid.
            AccessKeyExists: a key with this id and another secret exists.
            Busy: the cluster has `KEYS_MAX` keys.
        """
        check_key_id(request.key_id)
        check_verifier(request.verifier)
        check_description(request.description)
        check_owner(request.owner)
        if self._count() >= KEYS_MAX:
            raise Busy(reason=f"there are {KEYS_MAX} access keys: delete some")
        info = AccessKeyInfo(
            key_id=request.key_id,
            verifier=request.verifier,
            permissions=granted((), request.permissions),
            description=request.description,
            owner=request.owner,
            created_ms=self._now_ms(),
        )
        key = AccessKeyName(request.key_id)
        outcome = await self._etcd.transaction(
            [absent(self._keyspace.one(key))],
            [PutKey(self._keyspace.key(key), access_key_value(info))],
            otherwise=[self._keyspace.one(key)],
        )
        if outcome.succeeded:
            return answer(info, outcome.revision)
        stored = outcome.found[0][0]
        known = read_access_key(key, stored.value, stored.mod_revision)
        if known.verifier != request.verifier:
            raise AccessKeyExists(key=request.key_id)
        # A repeated call whose reply was lost: only that caller has this secret.
        return answer(known, stored.mod_revision)

    async def update(self, request: UpdateKeyRequest) -> KeyReply:
        """Grant or revoke permissions, enable, disable or describe a key.

        Raises:
            InvalidArgument: the description, owner or a permission is invalid.
            AccessKeyNotFound: no key has this id.
            AccessKeyChanged: its revision is not the expected one.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """

        def changed(info: AccessKeyInfo) -> None:
            if request.expected_modified_revision not in (0, info.modified_revision):
                raise AccessKeyChanged(key=request.key_id)
            left = granted(info.permissions, request.grant, request.revoke)
            del info.permissions[:]
            info.permissions.extend(left)
            if request.HasField("disabled"):
                info.disabled = request.disabled
            if request.HasField("description"):
                check_description(request.description)
                info.description = request.description
            if request.HasField("owner"):
                check_owner(request.owner)
                info.owner = request.owner

        return await self._change(request.key_id, changed)

    async def rotate(self, request: RotateKeyRequest) -> KeyReply:
        """Replace the secret of a key; the former one stays valid for `former_seconds`.

        Raises:
            InvalidArgument: the verifier or `former_seconds` is invalid.
            AccessKeyNotFound: no key has this id.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """
        check_verifier(request.verifier)
        if not 0 <= request.former_seconds <= FORMER_SECONDS_MAX:
            raise InvalidArgument(reason="a former secret stays valid for 30 days at most")

        def changed(info: AccessKeyInfo) -> None:
            if info.verifier == request.verifier:
                # A repeated call whose reply was lost.
                return
            now_ms = self._now_ms()
            info.former_verifier = info.verifier if request.former_seconds else b""
            info.former_until_ms = (
                now_ms + round(request.former_seconds * 1000) if request.former_seconds else 0
            )
            info.verifier = request.verifier
            info.rotated_ms = now_ms

        return await self._change(request.key_id, changed)

    async def delete(self, request: DeleteKeyRequest) -> DeleteKeyReply:
        """Delete a key. Raises AccessKeyNotFound, or AccessKeyChanged at another revision."""
        key_id, expected = request.key_id, request.expected_modified_revision
        check_key_id(key_id)
        name = self._keyspace.key(AccessKeyName(key_id))
        one = self._keyspace.one(AccessKeyName(key_id))
        conditions = [exists(name), *([unchanged(name, expected)] if expected else ())]
        outcome = await self._etcd.transaction(conditions, [DeleteKey(one)], otherwise=[one])
        if not outcome.succeeded:
            if outcome.found[0]:
                raise AccessKeyChanged(key=key_id)
            raise AccessKeyNotFound(key=key_id)
        return DeleteKeyReply(revision=outcome.revision)

    async def _change(self, key_id: str, change: Callable[[AccessKeyInfo], None]) -> KeyReply:
        check_key_id(key_id)
        key = AccessKeyName(key_id)
        for _ in range(ATTEMPTS_MAX):
            found = (await self._etcd.read(self._keyspace.one(key))).items
            if not found:
                raise AccessKeyNotFound(key=key_id)
            info = read_access_key(key, found[0].value, found[0].mod_revision)
            change(info)
            outcome = await self._etcd.transaction(
                [unchanged(found[0].key, found[0].mod_revision)],
                [PutKey(found[0].key, access_key_value(info))],
            )
            if outcome.succeeded:
                return answer(info, outcome.revision)
        raise Busy(reason=f"access key {key_id!r} keeps changing: try again")


def answer(info: AccessKeyInfo, revision: int) -> KeyReply:
    info.modified_revision = revision
    return KeyReply(key=without_verifiers(info), revision=revision)


def without_verifiers(info: AccessKeyInfo) -> AccessKeyInfo:
    """Return a copy of a key without its verifiers, for callers that are not services."""
    shown = AccessKeyInfo()
    shown.CopyFrom(info)
    shown.ClearField("verifier")
    shown.ClearField("former_verifier")
    return shown


def check_verifier(verifier: bytes) -> None:
    """Raises InvalidArgument if the verifier has a wrong length."""
    if len(verifier) != VERIFIER_BYTES:
        raise InvalidArgument(
            reason=f"a verifier of {len(verifier)} bytes: it has {VERIFIER_BYTES}"
        )


class AccessKeyService(AccessKeysServicer):
    """The gRPC service AccessKeys (access.proto): creates, changes, deletes and lists access keys.

    Args:
        is_on: whether callers need keys. If they do not, no key can be created: any caller could
            create one and use it after keys are switched on.
    """

    def __init__(self, keys: AccessKeys, follower: EtcdFollower, *, is_on: bool) -> None:
        self._keys = keys
        self._follower = follower
        self._is_on = is_on

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._follower.served(self._keys.create(request))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysReply:
        self._refuse_when_off()
        self._follower.refuse_unloaded()
        table = self._follower.table
        keys = [key for key in table.access_keys if request.key_id in ("", key.key_id)]
        if request.key_id and not keys:
            raise AccessKeyNotFound(key=request.key_id)
        return pb.ListKeysReply(
            keys=map(without_verifiers, keys),
            revision=table.revision,
            verifier_matches=[key.verifier for key in keys] == [request.verifier],
        )

    async def UpdateKey(self, request: pb.UpdateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._follower.served(self._keys.update(request))

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Any) -> pb.KeyReply:
        self._refuse_when_off()
        return await self._follower.served(self._keys.rotate(request))

    async def DeleteKey(self, request: pb.DeleteKeyRequest, context: Any) -> pb.DeleteKeyReply:
        self._refuse_when_off()
        return await self._follower.served(self._keys.delete(request))

    async def WatchKeys(
        self, request: pb.WatchKeysRequest, context: Any
    ) -> AsyncIterator[pb.KeysUpdate]:
        self._refuse_when_off()
        async for update in self._follower.access_keys(AWAY_SECONDS_MAX):
            yield update

    def _refuse_when_off(self) -> None:
        if not self._is_on:
            raise InvalidArgument(
                reason="this nameserver has no access keys (access = off): set access and "
                "cluster_secret"
            )
