"""Access keys: created, granted, rotated and deleted through `cluster.admin.access_keys`.

The caller needs `admin` on `cluster`, or signs its calls with the cluster secret. Secrets are
never sent: the cluster stores only a verifier for signatures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.bounds import refuses_invalid_text
from rockoon.errors import InvalidArgument
from rockoon.net.access import AccessKey, new_secret, verifier_of
from rockoon_core.signature import secret_fault
from rockoon_proto.v1 import access_pb2 as access_pb
from rockoon_proto.v1.access_pb2_grpc import AccessKeysStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

ACTIONS: dict[str, access_pb.AccessAction] = {
    "read": access_pb.ACCESS_READ,
    "write": access_pb.ACCESS_WRITE,
    "admin": access_pb.ACCESS_ADMIN,
}
NAMES = {number: name for name, number in ACTIONS.items()}

FORMER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Permission:
    """Actions that a key may perform on a resource.

    Args:
        resource: "topic:NAME", "group:NAME" or "cluster"; NAME may end in "*".
        actions: some of "read", "write", "admin".
    """

    resource: str
    actions: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> "Permission":
        """Parse a text of the form "topic:orders=read,write".

        Raises:
            InvalidArgument: the text does not have this form.
        """
        resource, _, listed = text.partition("=")
        actions = frozenset(action.strip() for action in listed.split(",") if action.strip())
        if not actions or actions - ACTIONS.keys():
            raise InvalidArgument(
                reason=f"{text!r} is not a permission: write RESOURCE=ACTIONS, with some of "
                "read,write,admin"
            )
        return cls(resource.strip(), actions)

    def __str__(self) -> str:
        return f"{self.resource}={','.join(name for name in ACTIONS if name in self.actions)}"

    def to_wire(self) -> access_pb.AccessPermission:
        return access_pb.AccessPermission(
            resource=self.resource, actions=sorted(ACTIONS[name] for name in self.actions)
        )


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """An access key without its secret.

    Attributes:
        id: name of the key.
        permissions: granted permissions, sorted by resource.
        disabled: calls signed with the key are refused.
        description: free text.
        owner: name of the resource files that `rockoon apply` made the key from; empty if none.
        modified_revision: etcd's revision of its last change.
        created_ms: creation time, epoch milliseconds.
        rotated_ms: time of the last rotation, epoch milliseconds; 0 if never rotated.
        former_until_ms: time until which the former secret is accepted, epoch milliseconds; 0 if
            there is none.
    """

    id: str
    permissions: tuple[Permission, ...]
    disabled: bool
    description: str
    created_ms: int
    rotated_ms: int
    former_until_ms: int
    owner: str = ""
    modified_revision: int = 0

    @classmethod
    def from_wire(cls, info: access_pb.AccessKeyInfo) -> "KeyDescription":
        return cls(
            info.key_id,
            tuple(
                Permission(each.resource, frozenset(NAMES[a] for a in each.actions if a in NAMES))
                for each in info.permissions
            ),
            info.disabled,
            info.description,
            info.created_ms,
            info.rotated_ms,
            info.former_until_ms,
            info.owner,
            info.modified_revision,
        )


@refuses_invalid_text
class AccessKeyAdmin:
    """Administration of access keys: `cluster.admin.access_keys`."""

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def create(
        self,
        key_id: str,
        permissions: Iterable[Permission] = (),
        description: str = "",
        *,
        secret: str = "",
        owner: str = "",
    ) -> AccessKey:
        """Create a key. If it exists with this secret, it is returned unchanged.

        Args:
            key_id: name of the key: 1 to 64 letters, digits and . _ -
            permissions: initial permissions; `grant` adds more.
            secret: its secret; empty for a new one.
            owner: see `KeyDescription`.

        Returns:
            The key with its secret. The secret cannot be read again later.

        Raises:
            AccessKeyExists: a key of this name exists.
            InvalidArgument: the name, the secret or a permission is invalid.
            NotPermitted: this connection's key has no `admin` permission on `cluster`.
        """
        key = with_secret(key_id, secret)
        await self._call(
            "CreateKey",
            access_pb.CreateKeyRequest(
                key_id=key_id,
                verifier=verifier_of(key.secret),
                permissions=[each.to_wire() for each in permissions],
                description=description,
                owner=owner,
            ),
        )
        return key

    async def list(self) -> Sequence[KeyDescription]:
        """Return all keys, sorted by name."""
        reply = await self._call("ListKeys", access_pb.ListKeysRequest())
        return [KeyDescription.from_wire(info) for info in reply.keys]

    async def describe(self, key_id: str) -> KeyDescription:
        """Return one key. Raises AccessKeyNotFound."""
        reply = await self._call("ListKeys", access_pb.ListKeysRequest(key_id=key_id))
        return KeyDescription.from_wire(reply.keys[0])

    async def has_secret(self, key: AccessKey) -> bool:
        """Return whether a key has this secret at present. Raises AccessKeyNotFound."""
        request = access_pb.ListKeysRequest(key_id=key.id, verifier=verifier_of(key.secret))
        matches: bool = (await self._call("ListKeys", request)).verifier_matches
        return matches

    async def grant(self, key_id: str, permissions: Iterable[Permission]) -> KeyDescription:
        """Add permissions to a key. Raises AccessKeyNotFound, InvalidArgument."""
        return await self._update(key_id, grant=[each.to_wire() for each in permissions])

    async def revoke(self, key_id: str, permissions: Iterable[Permission]) -> KeyDescription:
        """Remove permissions from a key; the cluster ends open calls that need them.

        Raises:
            AccessKeyNotFound: there is no key of this name.
            InvalidArgument: the key does not have a permission.
        """
        return await self._update(key_id, revoke=[each.to_wire() for each in permissions])

    async def disable(self, key_id: str) -> KeyDescription:
        """Refuse calls signed with a key, and end its open calls. Raises AccessKeyNotFound."""
        return await self._update(key_id, disabled=True)

    async def enable(self, key_id: str) -> KeyDescription:
        """Accept a disabled key again. Raises AccessKeyNotFound."""
        return await self._update(key_id, disabled=False)

    async def rotate(
        self, key_id: str, former_seconds: float = FORMER_SECONDS, *, secret: str = ""
    ) -> AccessKey:
        """Replace the secret of a key.

        Args:
            former_seconds: time for which the former secret is still accepted, in seconds, at most
                30 days. With 0, open calls signed with it end immediately.
            secret: the new secret; empty for a random one. With the present secret, nothing
                changes.

        Returns:
            The key with its new secret. The secret cannot be read again later.

        Raises:
            AccessKeyNotFound: there is no key of this name.
            InvalidArgument: `former_seconds` is out of range, or the secret is invalid.
        """
        key = with_secret(key_id, secret)
        verifier = verifier_of(key.secret)
        await self._call(
            "RotateKey",
            access_pb.RotateKeyRequest(
                key_id=key_id, verifier=verifier, former_seconds=former_seconds
            ),
        )
        return key

    async def delete(self, key_id: str, *, expected_modified_revision: int = 0) -> None:
        """Delete a key and end its open calls.

        Args:
            expected_modified_revision: delete only if the key has this `modified_revision`; 0 means
                any.

        Raises:
            AccessKeyNotFound: there is no key of this name.
            AccessKeyChanged: the key has another `modified_revision`.
        """
        request = access_pb.DeleteKeyRequest(
            key_id=key_id, expected_modified_revision=expected_modified_revision
        )
        await self._call("DeleteKey", request)

    async def update(
        self,
        key_id: str,
        *,
        grant: Iterable[Permission] = (),
        revoke: Iterable[Permission] = (),
        disabled: bool | None = None,
        description: str | None = None,
        owner: str | None = None,
        expected_modified_revision: int = 0,
    ) -> KeyDescription:
        """Change several fields of a key at once; None means no change. Errors as `revoke`, and
        AccessKeyChanged as `delete`."""
        return await self._update(
            key_id,
            grant=[each.to_wire() for each in grant],
            revoke=[each.to_wire() for each in revoke],
            disabled=disabled,
            description=description,
            owner=owner,
            expected_modified_revision=expected_modified_revision,
        )

    async def _update(self, key_id: str, **changes: Any) -> KeyDescription:
        reply = await self._call("UpdateKey", access_pb.UpdateKeyRequest(key_id=key_id, **changes))
        return KeyDescription.from_wire(reply.key)

    async def _call(self, method_name: str, request: Any) -> Any:
        return await self._cluster.call_nameserver(method_name, request, service=AccessKeysStub)


def with_secret(key_id: str, secret: str) -> AccessKey:
    """Return a key with a secret, by default a new one. Raises InvalidArgument."""
    if secret and (fault := secret_fault(secret)):
        raise InvalidArgument(reason=f"the secret of access key {key_id!r} has {fault}")
    return AccessKey(key_id, secret or new_secret())
