"""Making and changing access keys: `cluster.admin.access_keys`.

Whoever does it needs `admin` on `cluster`, or signs with the cluster secret. Secrets are made here
and stay here: the cluster is sent what it checks signatures with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rockoon.errors import InvalidArgument
from rockoon.net.access import AccessKey, new_secret, verifier_of
from rockoon.text_checks import refuses_invalid_text
from rockoon_proto.v1.access_pb2 import (
    ACCESS_ADMIN,
    ACCESS_READ,
    ACCESS_WRITE,
    AccessAction,
    AccessKeyInfo,
    AccessPermission,
    CreateKeyRequest,
    DeleteKeyRequest,
    ListKeysRequest,
    RotateKeyRequest,
    UpdateKeyRequest,
)
from rockoon_proto.v1.access_pb2_grpc import AccessKeysStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

ACTIONS: dict[str, AccessAction] = {
    "read": ACCESS_READ,
    "write": ACCESS_WRITE,
    "admin": ACCESS_ADMIN,
}
NAMES = {number: name for name, number in ACTIONS.items()}

FORMER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Permission:
    """What a key may do with a resource.

    Args:
        resource: "topic:NAME", "group:NAME" or "cluster"; a name may end in "*".
        actions: some of "read", "write", "admin".
    """

    resource: str
    actions: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> "Permission":
        """From "topic:orders=read,write".

        Raises:
            InvalidArgument: it is not of that form.
        """
        resource, _, listed = text.partition("=")
        actions = frozenset(action.strip() for action in listed.split(",") if action.strip())
        if not actions or actions - ACTIONS.keys():
            raise InvalidArgument(
                reason=f"{text!r} is no permission: RESOURCE=read,write,admin, or some of those"
            )
        return cls(resource.strip(), actions)

    def __str__(self) -> str:
        return f"{self.resource}={','.join(name for name in ACTIONS if name in self.actions)}"

    def to_wire(self) -> AccessPermission:
        return AccessPermission(
            resource=self.resource, actions=sorted(ACTIONS[name] for name in self.actions)
        )


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """A key, without its secret, which nobody keeps.

    Attributes:
        id: its name.
        permissions: what it may do, in the order of resources.
        disabled: whether it is refused.
        description: for people.
        created_ms, rotated_ms: when it was made, and got its secret (0: never another).
        former_until_ms: until when its former secret goes on; 0 when there is none.
    """

    id: str
    permissions: tuple[Permission, ...]
    disabled: bool
    description: str
    created_ms: int
    rotated_ms: int
    former_until_ms: int

    @classmethod
    def from_wire(cls, info: AccessKeyInfo) -> "KeyDescription":
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
        )


@refuses_invalid_text
class AccessKeyAdmin:
    """See the module.

    Args:
        cluster: an open connection.
    """

    def __init__(self, cluster: "Connection") -> None:
        self._cluster = cluster

    async def create(
        self, key_id: str, permissions: Iterable[Permission] = (), description: str = ""
    ) -> AccessKey:
        """Make a key.

        Args:
            key_id: its name, 1 to 64 letters, digits and . _ -
            permissions: what it may do; more can be granted later.
            description: for people.

        Returns:
            The key with its secret: this is the only time that anybody sees it.

        Raises:
            AccessKeyExists, InvalidArgument: as the text says.
            NotPermitted: this connection's key may not make keys.
        """
        key = AccessKey(key_id, new_secret())
        await self._call(
            "CreateKey",
            CreateKeyRequest(
                key_id=key_id,
                verifier=verifier_of(key.secret),
                permissions=[each.to_wire() for each in permissions],
                description=description,
            ),
        )
        return key

    async def list(self) -> Sequence[KeyDescription]:
        """All keys, in the order of names."""
        reply = await self._call("ListKeys", ListKeysRequest())
        return [KeyDescription.from_wire(info) for info in reply.keys]

    async def describe(self, key_id: str) -> KeyDescription:
        """One key. Raises AccessKeyNotFound."""
        reply = await self._call("ListKeys", ListKeysRequest(key_id=key_id))
        return KeyDescription.from_wire(reply.keys[0])

    async def grant(self, key_id: str, permissions: Iterable[Permission]) -> KeyDescription:
        """Let a key do more. Raises AccessKeyNotFound, InvalidArgument."""
        return await self._update(key_id, grant=[each.to_wire() for each in permissions])

    async def revoke(self, key_id: str, permissions: Iterable[Permission]) -> KeyDescription:
        """Let a key do less; what is open and would not be let begin now ends.

        Raises:
            AccessKeyNotFound: there is none of that name.
            InvalidArgument: it was not granted so.
        """
        return await self._update(key_id, revoke=[each.to_wire() for each in permissions])

    async def disable(self, key_id: str) -> KeyDescription:
        """Have a key refused; what is open in its name ends. Raises AccessKeyNotFound."""
        return await self._update(key_id, disabled=True)

    async def enable(self, key_id: str) -> KeyDescription:
        """Put a key into force again. Raises AccessKeyNotFound."""
        return await self._update(key_id, disabled=False)

    async def rotate(self, key_id: str, former_seconds: float = FORMER_SECONDS) -> AccessKey:
        """Give a key another secret.

        Args:
            key_id: its name.
            former_seconds: how long the former secret goes on, at most 30 days; with 0, what is
                open with it ends at once.

        Returns:
            The key with its new secret: this is the only time that anybody sees it.

        Raises:
            AccessKeyNotFound, InvalidArgument: as the text says.
        """
        key = AccessKey(key_id, new_secret())
        verifier = verifier_of(key.secret)
        await self._call(
            "RotateKey",
            RotateKeyRequest(key_id=key_id, verifier=verifier, former_seconds=former_seconds),
        )
        return key

    async def delete(self, key_id: str) -> None:
        """Delete a key; what is open in its name ends. Raises AccessKeyNotFound."""
        await self._call("DeleteKey", DeleteKeyRequest(key_id=key_id))

    async def _update(self, key_id: str, **changes: Any) -> KeyDescription:
        reply = await self._call("UpdateKey", UpdateKeyRequest(key_id=key_id, **changes))
        return KeyDescription.from_wire(reply.key)

    async def _call(self, method_name: str, request: Any) -> Any:
        return await self._cluster.call_nameserver(method_name, request, service=AccessKeysStub)
