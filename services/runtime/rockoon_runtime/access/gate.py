"""The gate before a service's calls: signatures, permissions, and calls in progress.

A call passes when its signature holds, is recent and has not been used (`authentication`), and its
key has every permission that the rule for the method asks for (`rules`). All of it is decided from
memory. When keys change, the calls in progress are judged again, and those that would not pass now
end (`open_calls`).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rockoon_core.errors import NotAuthenticated, NotPermitted
from rockoon_core.signature import steady_clock
from rockoon_proto.v1.access_pb2 import AccessKeyInfo
from rockoon_runtime.access.authentication import Authentication, is_signed
from rockoon_runtime.access.callers import CALLER, Caller
from rockoon_runtime.access.keys import KeyTable
from rockoon_runtime.access.open_calls import OpenCall, OpenCalls
from rockoon_runtime.access.refusals import Refusals
from rockoon_runtime.access.rules import ANY_KEY, Rule, Rules, check

# What the server can be asked of its own methods.
REFLECTION = "/grpc.reflection."


class Gate:
    """See the module.

    Args:
        rules: what each method needs; one that is not in it is refused.
        cluster_verifiers: by which the other services' calls are known.
        optional: also let those pass who do not sign, and let them do everything but what a rule
            says is never open.
        window_seconds: how far a signature's time may be from the clock.
        clock: epoch milliseconds, never going back.

    Attributes:
        keys: those in force; written by `update`.
        authentication: tells who is calling.
        refusals: the calls that did not pass.
    """

    def __init__(
        self,
        rules: Rules,
        cluster_verifiers: Sequence[bytes],
        window_seconds: float,
        clock: Callable[[], int] | None = None,
        *,
        optional: bool = False,
    ) -> None:
        clock = clock or steady_clock()
        self.rules = rules
        self._optional = optional
        self.keys = KeyTable(cluster_verifiers)
        self.authentication = Authentication(self.keys, window_seconds, clock)
        self.refusals = Refusals(clock)
        self._calls = OpenCalls(self.keys, clock)

    def rule(self, method: str) -> Rule:
        """Raises NotPermitted for a method that no rule names: forgotten is not allowed."""
        if method.startswith(REFLECTION):
            return ANY_KEY
        try:
            return self.rules[method]
        except KeyError:
            raise NotPermitted(
                f"no rule says who may call {method}", key="", action="call", resource=method
            ) from None

    @contextmanager
    def passing(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None, request: Any
    ) -> Iterator[OpenCall]:
        """The time of a call that passes.

        Args:
            method, metadata, body: as of `Authentication.admit`.
            request: makes the request from its bytes, after the signature has held; None for a
                stream of requests.

        Raises:
            RockoonError: it does not pass.
        """
        rule = self.rule(method)
        # Only what is not signed passes unproven: a wrong signature is refused in this mode too, or
        # nobody would notice it before the mode ends.
        if self._optional and not rule.never_open and not is_signed(metadata):
            yield OpenCall(rule, request(), b"")
            return
        try:
            key, verifier = self.authentication.admit(method, metadata, body)
            # After the signature: bytes of strangers are not parsed.
            made = request()
            check(key, rule, made)
        except (NotAuthenticated, NotPermitted) as refusal:
            self.refusals.note(method, refusal)
            raise
        call = OpenCall(rule, made, verifier)
        # After the check, and without an await in between: a change of the key finds the call here,
        # or was seen by the check.
        self._calls.add(key.key_id, call)
        # Each call has a context of its own, so no other call finds it set.
        CALLER.set(Caller(self.keys, key.key_id, call))
        try:
            yield call
        except asyncio.CancelledError:
            refusal_since = call.interrupted()
            if refusal_since is None:
                raise
            # The cancellation was ours, by a changed key. Anybody else's is left alone above.
            raise refusal_since from None
        finally:
            self._calls.remove(key.key_id, call)

    def update(self, infos: Sequence[AccessKeyInfo]) -> None:
        """Take over all keys; calls in progress that would not pass now end."""
        # The new keys are in force before calls are ended, which come again at once.
        for key_id in self.keys.replace(infos):
            self._calls.key_changed(key_id)
