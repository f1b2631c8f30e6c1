"""Callers: the access key of the call in progress, with its permissions."""

from contextvars import ContextVar

from rockoon_runtime.access.keys import Action, KeyTable, require
from rockoon_runtime.access.open_calls import OpenCall
from rockoon_runtime.access.rules import refused


class Caller:
    """The caller of one call.

    Args:
        keys: the current keys, read for every check.
        key_id: name of the caller's key.
        call: the caller's call.
    """

    def __init__(self, keys: KeyTable, key_id: str, call: OpenCall) -> None:
        self._keys = keys
        self.key_id = key_id
        self._call = call

    @property
    def permissions_revision(self) -> int:
        """etcd revision of the last permission change; 0 if permissions never change."""
        key = self._keys.get(self.key_id)
        return 0 if key is None else key.info.modified_revision

    def may(self, action: Action, resource: str) -> bool:
        """See `KnownKey.may`; a deleted key has no permission."""
        key = self._keys.get(self.key_id)
        return key is not None and key.may(action, resource)

    def require_open(self) -> None:
        """Raises the reason if the call must end. A call whose caller does not read the responses
        may otherwise continue."""
        if self._call.refusal is not None:
            raise self._call.refusal

    def require(self, action: Action, resource: str) -> None:
        """Raises NotPermitted without the permission, or the error of `require_open`."""
        self.require_open()
        key = self._keys.get(self.key_id)
        if key is None:
            raise refused("unknown key", f"there is no access key {self.key_id!r} any more")
        require(key, action, resource)


# Set during a call; unset if access is off.
CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the call in progress; None if access is off."""
    return CALLER.get()


def sees(resource: str) -> bool:
    """True if the caller may see a resource; always if access is off."""
    caller = CALLER.get()
    return caller is None or caller.may("see", resource)
