"""Checks of access keys, their permissions and the owners of declared objects. Pure.

Nameservers run them before each change, `rockoon apply` before the first one.
"""

import re
from collections.abc import Iterable

from rockoon_core.errors import InvalidArgument
from rockoon_core.signature import CLUSTER_KEY_ID, KEY_ID
from rockoon_format.names import CLUSTER, GROUP_BYTES_MAX
from rockoon_proto.v1.access_pb2 import ACCESS_ADMIN, ACCESS_READ, ACCESS_WRITE, AccessPermission

PERMISSIONS_MAX = 256
DESCRIPTION_CHARACTERS_MAX = 200
OWNER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
ACTIONS = (ACCESS_READ, ACCESS_WRITE, ACCESS_ADMIN)

# Names or prefixes of topics and groups.
_NAMED = re.compile(rf"(topic|group):[%|a-zA-Z0-9_-]{{0,{GROUP_BYTES_MAX + 7}}}\*?")


def check_key_id(key_id: str) -> None:
    """Check the id of a new key. Raises InvalidArgument if it is invalid, or reserved for
    services."""
    if not KEY_ID.fullmatch(key_id):
        raise InvalidArgument(
            reason=f"{key_id[:80]!r} is no access key's name: 1 to 64 letters, digits and . _ -"
        )
    if key_id == CLUSTER_KEY_ID:
        raise InvalidArgument(
            reason=f"{key_id!r} is the services' own key: its secret is their cluster_secret"
        )


def check_owner(owner: str) -> None:
    """Raises InvalidArgument if no resource file can have this owner; empty means no owner."""
    if owner and not OWNER_NAME.fullmatch(owner):
        raise InvalidArgument(
            reason=f"owner {owner[:80]!r} is not 1 to 64 letters, digits and . _ -"
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
