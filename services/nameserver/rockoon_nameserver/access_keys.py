"""Access keys: their permissions, their changes in etcd, and the AccessKeys service."""
# ruff: noqa: ARG002 - gRPC passes a request and a context to each method

import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from rockoon_core.errors import AccessKeyExists, AccessKeyNotFound, Busy, InvalidArgument
from rockoon_core.signature import CLUSTER_KEY_ID, KEY_ID, VERIFIER_BYTES
from rockoon_format.names import CLUSTER, GROUP_BYTES_MAX
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
    ACCESS_ADMIN,
    ACCESS_READ,
    ACCESS_WRITE,
    AccessKeyInfo,
    AccessPermission,
    CreateKeyRequest,
    DeleteKeyReply,
    KeyReply,
    RotateKeyRequest,
    UpdateKeyRequest,
)
from rockoon_proto.v1.access_pb2_grpc import AccessKeysServicer

ATTEMPTS_MAX = 8
# Each service holds all keys, and receives all keys after a change of one.
KEYS_MAX = 5_000
FORMER_SECONDS_MAX = 30 * 86_400.0
PERMISSIONS_MAX = 256
DESCRIPTION_CHARACTERS_MAX = 200
ACTIONS = (ACCESS_READ, ACCESS_WRITE, ACCESS_ADMIN)

# Names or prefixes of topics and groups.
_NAMED = re.compile(rf"(topic|group):[%|a-zA-Z0-9_-]{{0,{GROUP_BYTES_MAX + 7}}}\*?")
# How long WatchKeys stays open while etcd is unreachable: another nameserver may have revoked
# keys.
AWAY_SECONDS_MAX = 5.0


class AccessKeys:
    """Changes access keys in etcd.

    Args:
        etcd: a connection.
        keyspace: the cluster's keys.
        count: number of access keys that this nameserver knows.
        now_ms: epoch milliseconds.
    """

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
            InvalidArgument: the id, verifier, description or a permission is invalid.
            AccessKeyExists: a key with this id and another secret exists.
            Busy: the cluster has `KEYS_MAX` keys.
        """
        check_key_id(request.key_id)
        check_verifier(request.verifier)
        check_description(request.description)
        if self._count() >= KEYS_MAX:
            raise Busy(reason=f"there are {KEYS_MAX} access keys: delete some")
        info = AccessKeyInfo(
            key_id=request.key_id,
            verifier=request.verifier,
            permissions=granted((), request.permissions),
            description=request.description,
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
            InvalidArgument: the description or a permission is invalid.
            AccessKeyNotFound: no key has this id.
            Busy: concurrent changes won `ATTEMPTS_MAX` times.
        """

        def changed(info: AccessKeyInfo) -> None:
            left = granted(info.permissions, request.grant, request.revoke)
            del info.permissions[:]
            info.permissions.extend(left)
            if request.HasField("disabled"):
                info.disabled = request.disabled
            if request.HasField("description"):
                check_description(request.description)
                info.description = request.description

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

    async def delete(self, key_id: str) -> DeleteKeyReply:
        """Delete a key.

        Raises:
            AccessKeyNotFound: no key has this id.
        """
        check_key_id(key_id)
        key = AccessKeyName(key_id)
        outcome = await self._etcd.transaction(
            [exists(self._keyspace.key(key))], [DeleteKey(self._keyspace.one(key))]
        )
        if not outcome.succeeded:
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


def check_key_id(key_id: str) -> None:
    """Raises InvalidArgument if a key cannot have this id, or the id is the services' own."""
    if not KEY_ID.fullmatch(key_id):
        raise InvalidArgument(
            reason=f"{key_id[:80]!r} is no access key's name: 1 to 64 letters, digits and . _ -"
        )
    if key_id == CLUSTER_KEY_ID:
        raise InvalidArgument(
            reason=f"{key_id!r} is the services' own key: its secret is their cluster_secret"
        )


def check_verifier(verifier: bytes) -> None:
    """Raises InvalidArgument if the verifier has a wrong length."""
    if len(verifier) != VERIFIER_BYTES:
        raise InvalidArgument(
            reason=f"a verifier of {len(verifier)} bytes: it has {VERIFIER_BYTES}"
        )


def check_description(description: str) -> None:
    """Raises InvalidArgument if the description is too long."""
    if len(description) > DESCRIPTION_CHARACTERS_MAX:
        raise InvalidArgument(
            reason=f"the description is longer than {DESCRIPTION_CHARACTERS_MAX} characters"
        )


def granted(
    present: Iterable[AccessPermission],
    grant: Iterable[AccessPermission],
    revoke: Iterable[AccessPermission] = (),
) -> list[AccessPermission]:
    """Return the permissions of a key after a change.

    Args:
        present: permissions before the change.
        grant: added after `revoke` is removed.
        revoke: removed.

    Raises:
        InvalidArgument: a permission is malformed, or one in `revoke` was not granted with this
            resource: revoking `topic:orders` from a key with `topic:*` would change nothing.
    """
    actions = {permission.resource: set(permission.actions) for permission in present}
    for permission in checked(revoke):
        missing = set(permission.actions) - actions.get(permission.resource, set())
        if missing:
            raise InvalidArgument(
                reason=f"{permission.resource} was not granted with all of that: permissions are "
                "revoked by the resource with which they were granted"
            )
        actions[permission.resource] -= set(permission.actions)
    for permission in checked(grant):
        actions.setdefault(permission.resource, set()).update(permission.actions)
    left = [
        AccessPermission(resource=resource, actions=sorted(actions[resource]))
        for resource in sorted(actions)
        if actions[resource]
    ]
    if len(left) > PERMISSIONS_MAX:
        raise InvalidArgument(
            reason=f"more than {PERMISSIONS_MAX} resources: use names that end in *"
        )
    return left


def checked(permissions: Iterable[AccessPermission]) -> Iterable[AccessPermission]:
    for permission in permissions:
        if permission.resource != CLUSTER and not well_named(permission.resource):
            raise InvalidArgument(
                reason=f"{permission.resource[:200]!r} is no resource: topic:NAME, group:NAME, "
                "either with * at its end, or cluster"
            )
        unknown = set(permission.actions) - set(ACTIONS)
        if unknown or not permission.actions:
            raise InvalidArgument(
                reason=f"{permission.resource}: permissions are read, write and admin"
            )
        yield permission


def well_named(resource: str) -> bool:
    return bool(_NAMED.fullmatch(resource)) and not resource.endswith(":")


class AccessKeyService(AccessKeysServicer):
    """The gRPC service AccessKeys (access.proto): creates, changes, deletes and lists access keys.

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
        """Return the reply to a change of a key once this nameserver checks its callers by the new
        key.
        """
        await self._follower.wait_served(reply.revision)
        return reply

    def _refuse_when_off(self) -> None:
        if not self._is_on:
            raise InvalidArgument(
                reason="this nameserver has no access keys (access = off): set access and "
                "cluster_secret"
            )
