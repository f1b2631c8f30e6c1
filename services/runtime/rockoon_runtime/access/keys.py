"""The access keys that a service knows, and the permissions of each. No I/O.

A service decides by a snapshot in memory. Each key caches its answers. A changed key is a new
object, so no cached answer outlives the permission that it came from.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from rockoon_core.errors import NotPermitted
from rockoon_core.signature import CLUSTER_KEY_ID, RENEWAL_MS, verifier_of
from rockoon_proto.v1.access_pb2 import (
    ACCESS_ADMIN,
    ACCESS_READ,
    ACCESS_WRITE,
    AccessKeyInfo,
    AccessPermission,
)

# "see" is not a permission of its own: read, write or admin includes it.
Action = Literal["read", "write", "admin", "see"]
ACTIONS: Mapping[int, Action] = {
    ACCESS_READ: "read",
    ACCESS_WRITE: "write",
    ACCESS_ADMIN: "admin",
}

CLUSTER = "cluster"
Secrets = Callable[[], tuple[str, ...]]

# Bounds of the cache: a caller that asks for ever new or very long names must not fill the memory.
ANSWERS_MAX = 10_000
# The longest valid names, "topic:" and 255 characters, are shorter.
RESOURCE_CHARACTERS_MAX = 300


def covers(pattern: str, resource: str) -> bool:
    """True if a permission's resource equals a resource, or is a pattern that matches it."""
    if pattern.endswith("*"):
        return resource.startswith(pattern[:-1])
    return pattern == resource


class KnownKey:
    """One version of an access key."""

    def __init__(self, info: AccessKeyInfo) -> None:
        self.info = info
        self.key_id = info.key_id
        self._permissions = [
            (permission.resource, frozenset(map(ACTIONS.__getitem__, permission.actions)))
            for permission in map(understood, info.permissions)
        ]
        self._answers: dict[tuple[Action, str], bool] = {}

    @property
    def enabled(self) -> bool:
        return not self.info.disabled

    def verifiers(self, now_ms: int) -> tuple[bytes, ...]:
        """Verifiers of the valid secrets, the current one first."""
        if self.info.former_verifier and now_ms < self.info.former_until_ms:
            return self.info.verifier, self.info.former_verifier
        return (self.info.verifier,)

    def may(self, action: Action, resource: str) -> bool:
        """True if the key has a permission on "topic:NAME", "group:NAME" or "cluster".

        Each other action includes "see".
        """
        found = self._answers.get((action, resource))
        if found is None:
            found = any(
                covers(pattern, resource) and (action in actions or action == "see")
                for pattern, actions in self._permissions
            )
            if len(resource) <= RESOURCE_CHARACTERS_MAX:
                if len(self._answers) >= ANSWERS_MAX:
                    self._answers.clear()
                self._answers[action, resource] = found
        return found


class ClusterKey(KnownKey):
    """The key of the services themselves; it has every permission.

    Args:
        secrets: returns the cluster secret, and further ones that are accepted during a rotation.
        on_change: called when the secrets have changed.
    """

    def __init__(self, secrets: Secrets, on_change: Callable[[], None]) -> None:
        super().__init__(AccessKeyInfo(key_id=CLUSTER_KEY_ID))
        self._read = secrets
        self._on_change = on_change
        self._secrets: tuple[str, ...] = ()
        self._verifiers: tuple[bytes, ...] = ()
        self._next_read_ms = 0

    def verifiers(self, now_ms: int) -> tuple[bytes, ...]:
        if now_ms >= self._next_read_ms:
            self._next_read_ms = now_ms + RENEWAL_MS
            found = self._read()
            if found != self._secrets:
                is_change = bool(self._secrets)
                self._secrets, self._verifiers = found, tuple(map(verifier_of, found))
                if is_change:
                    self._on_change()
        return self._verifiers

    def may(self, action: Action, resource: str) -> bool:  # noqa: ARG002 - every permission
        return True


def understood(permission: AccessPermission) -> AccessPermission:
    """Return a permission without the actions that this version does not know."""
    actions = [action for action in permission.actions if action in ACTIONS]
    return AccessPermission(resource=permission.resource, actions=actions)


class KeyTable:
    """All keys that a service knows; for the arguments see `ClusterKey`."""

    def __init__(
        self, cluster_secrets: Secrets, on_cluster_change: Callable[[], None] = lambda: None
    ) -> None:
        self._cluster_key = ClusterKey(cluster_secrets, on_cluster_change)
        self._keys: dict[str, KnownKey] = {}
        # True once a nameserver has sent the keys; until then only the cluster key is known.
        self.loaded = False

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key_id: str) -> KnownKey | None:
        if key_id == CLUSTER_KEY_ID:
            return self._cluster_key
        return self._keys.get(key_id)

    def replace(self, infos: Iterable[AccessKeyInfo]) -> set[str]:
        """Replace all keys; returns the names of added, changed and deleted keys."""
        before, self._keys = self._keys, {}
        for info in infos:
            known = before.get(info.key_id)
            if info.key_id != CLUSTER_KEY_ID:
                same = known is not None and known.info == info
                self._keys[info.key_id] = known if known and same else KnownKey(info)
        self.loaded = True
        names = before.keys() | self._keys.keys()
        return {name for name in names if before.get(name) is not self._keys.get(name)}


def require(key: KnownKey, action: Action, resource: str) -> None:
    """Raises NotPermitted if a key does not have a permission."""
    if not key.may(action, resource):
        wanted = "read, write or admin" if action == "see" else action
        named = shown(resource)
        raise NotPermitted(
            f"access key {key.key_id!r} has no {wanted} permission on {named}",
            key=key.key_id,
            action=action,
            resource=named,
        )


def shown(resource: str) -> str:
    """Return a resource name for texts and logs: escaped and clipped, since callers may send any
    name."""
    if len(resource) <= RESOURCE_CHARACTERS_MAX and resource.isprintable():
        return resource
    return resource[:RESOURCE_CHARACTERS_MAX].encode("unicode_escape").decode() + "..."
