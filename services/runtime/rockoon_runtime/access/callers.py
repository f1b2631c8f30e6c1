"""Callers: who makes the call that is being answered, with its permissions."""

from contextvars import ContextVar

from rockoon_runtime.access.keys import Action, KeyTable, require
from rockoon_runtime.access.open_calls import OpenCall
from rockoon_runtime.access.refusals import refused


class Caller:
    """Who makes a call.

    Args:
        keys: those in force, looked at again for every question.
        key_id: his key's name.
        call: his.
    """

    def __init__(self, keys: KeyTable, key_id: str, call: OpenCall) -> None:
        self._keys = keys
        self.key_id = key_id
        self._call = call

    @property
    def permissions_revision(self) -> int:
        """etcd's revision of the last change of what he may do; 0 when it never changes."""
        key = self._keys.get(self.key_id)
        return 0 if key is None else key.info.modified_revision

    def may(self, action: Action, resource: str) -> bool:
        """See `KnownKey.may`; a key that is no more may nothing."""
        key = self._keys.get(self.key_id)
        return key is not None and key.may(action, resource)

    def require_open(self) -> None:
        """Raises why the call has to end, if it has to: it may go on for as long as its caller does
        not read what he is being sent."""
        if self._call.refusal is not None:
            raise self._call.refusal

    def require(self, action: Action, resource: str) -> None:
        """Raises NotPermitted without the permission; otherwise as `require_open`."""
        self.require_open()
        key = self._keys.get(self.key_id)
        if key is None:
            raise refused("unknown key", f"there is no access key {self.key_id!r} any more")
        require(key, action, resource)


# Set for the time of a call; unset where access is off.
CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Who makes the call that is being answered; None when access is off."""
    return CALLER.get()


def sees(resource: str) -> bool:
    """Whether who is calling may know of a resource; always when access is off."""
    caller = CALLER.get()
    return caller is None or caller.may("see", resource)
