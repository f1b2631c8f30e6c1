"""Calls in progress and their callers.

If permissions change, the calls in progress are checked again and ended if no longer permitted.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from rockoon_core.errors import NotPermitted, NotReady, RockoonError
from rockoon_runtime.access.keys import Action, KeyTable, require
from rockoon_runtime.access.rules import Rule, check, refused


class OpenCall:
    """A call in progress.

    Attributes:
        refusal: why the call must end; None while it is permitted.
    """

    def __init__(self, rule: Rule, request: Any, verifier: bytes) -> None:
        self.rule = rule
        self.request = request
        self.verifier = verifier
        self.refusal: RockoonError | None = None
        self._task = asyncio.current_task()

    def end(self, refusal: RockoonError) -> None:
        """Cancel the call's task with a reason."""
        if self.refusal is None:
            self.refusal = refusal
            if self._task is not None:
                self._task.cancel()

    def interrupted(self) -> RockoonError | None:
        """Return the reason if `end` has cancelled the call, and undo the cancellation, so that the
        task can send the error; otherwise return None. The cancelled task calls this."""
        if self.refusal is not None and self._task is not None:
            self._task.uncancel()
        return self.refusal


class OpenCalls:
    """Calls in progress of one gate, by the key that signed them.

    Args:
        keys: the current keys, read for every check.
        clock: epoch milliseconds, never decreasing.
    """

    def __init__(self, keys: KeyTable, clock: Callable[[], int]) -> None:
        self._keys = keys
        self._clock = clock
        self._open: dict[str, set[OpenCall]] = {}
        # By key: timer for the end of its former secret.
        self._former_ends: dict[str, asyncio.TimerHandle] = {}

    def add(self, key_id: str, call: OpenCall) -> None:
        self._open.setdefault(key_id, set()).add(call)

    def remove(self, key_id: str, call: OpenCall) -> None:
        calls = self._open.get(key_id, set())
        calls.discard(call)
        if not calls:
            self._open.pop(key_id, None)

    def key_changed(self, key_id: str) -> None:
        """End calls that are no longer permitted after a key was changed or deleted."""
        self._check_again(key_id)
        self._schedule_former_end(key_id)

    def _schedule_former_end(self, key_id: str) -> bool:
        """Schedule a check for the end of a key's former secret, which is not a change of the key.

        Returns:
            True if the former secret is still valid.
        """
        if (awaited := self._former_ends.pop(key_id, None)) is not None:
            awaited.cancel()
        key = self._keys.get(key_id)
        left_ms = 0 if key is None else key.info.former_until_ms - self._clock()
        if left_ms > 0:
            self._former_ends[key_id] = asyncio.get_running_loop().call_later(
                left_ms / 1000 + 0.001, self._on_former_end, key_id
            )
        return left_ms > 0

    def _on_former_end(self, key_id: str) -> None:
        # The clock of secrets may be behind the loop's clock.
        if not self._schedule_former_end(key_id):
            self._check_again(key_id)

    def _check_again(self, key_id: str) -> None:
        key, now_ms = self._keys.get(key_id), self._clock()
        for call in tuple(self._open.get(key_id, ())):
            if key is None:
                call.end(refused("unknown key", f"there is no access key {key_id!r} any more"))
            elif not key.enabled:
                call.end(refused("disabled key", f"access key {key_id!r} is disabled"))
            elif call.verifier not in key.verifiers(now_ms):
                call.end(refused("replaced secret", f"access key {key_id!r} has another secret"))
            elif call.rule.filtered:
                call.end(
                    NotReady(service="this service", reason=f"permissions of {key_id!r} changed")
                )
            else:
                try:
                    check(key, call.rule, call.request)
                except NotPermitted as refusal:
                    call.end(refusal)


class Caller:
    """The caller of one call, by the name of its key."""

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
        """Return whether the key permits an action now; see `KnownKey.may`. A deleted key permits
        nothing."""
        key = self._keys.get(self.key_id)
        return key is not None and key.may(action, resource)

    def require_open(self) -> None:
        """Raises the reason if the call must end. A call whose caller does not read the responses
        may otherwise continue."""
        if self._call.refusal is not None:
            raise self._call.refusal

    def require(self, action: Action, resource: str) -> None:
        """Check that the caller has a permission, and that the call may continue. Raises
        NotPermitted, or the error of `require_open`."""
        self.require_open()
        key = self._keys.get(self.key_id)
        if key is None:
            raise refused("unknown key", f"there is no access key {self.key_id!r} any more")
        require(key, action, resource)


# Set during a call; unset if access is off.
CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Return the caller of the call in progress; None if access is off."""
    return CALLER.get()


def sees(resource: str) -> bool:
    """True if the caller may see a resource; always if access is off."""
    caller = CALLER.get()
    return caller is None or caller.may("see", resource)
