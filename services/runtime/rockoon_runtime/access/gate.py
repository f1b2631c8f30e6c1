"""The gate before a service's calls: signatures, permissions, and calls in progress.

A call passes when its signature holds, is recent and has not been used, and its key has every
permission that the rule for the method asks for. All of it is decided from memory. When keys
change, the calls in progress are judged again, and those that would not pass now end.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rockoon_proto.errors import Busy, NotAuthenticated, NotPermitted, NotReady, RockoonError
from rockoon_proto.signature import (
    ACCESS_METADATA_KEY,
    CLUSTER_KEY_ID,
    Signature,
    steady_clock,
)
from rockoon_proto.v1.access_pb2 import AccessKeyInfo
from rockoon_runtime.access.keys import Action, KeyTable, KnownKey, require
from rockoon_runtime.access.replays import NoRoom, UsedSignatures
from rockoon_runtime.access.rules import ANY_KEY, SERVICES, Rule, Rules

log = logging.getLogger(__name__)

# Refusals are for the caller; the log shows that there are some, not each.
LOGGED_SECONDS = 1.0

# What the server can be asked of its own methods.
REFLECTION = "/grpc.reflection."

REASONS = ("no key", "unknown key", "disabled key", "wrong signature", "stale", "replayed")


class Caller:
    """Who makes a call.

    Args:
        keys: those in force, looked at anew for every question.
        key_id: his key's name.
        call: his.
    """

    def __init__(self, keys: KeyTable, key_id: str, call: "OpenCall") -> None:
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

    def require(self, action: Action, resource: str) -> None:
        """Raises NotPermitted without the permission; why the call has to end, if it has to: it
        may go on for as long as its caller does not read what he is being sent."""
        if self._call.refusal is not None:
            raise self._call.refusal
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


class OpenCall:
    """A call in progress.

    Attributes:
        refusal: why it has to end.
        is_sending: gRPC is sending an answer of its stream; interrupted there, it would end
            without a word.
    """

    def __init__(self, rule: Rule, request: Any, verifier: bytes) -> None:
        self.rule = rule
        self.request = request
        self.verifier = verifier
        self.refusal: RockoonError | None = None
        self.is_sending = False
        self._task = asyncio.current_task()

    def end(self, refusal: RockoonError) -> None:
        """Have it end at once, or as soon as what it is sending is sent."""
        if self.refusal is None:
            self.refusal = refusal
            if not self.is_sending and self._task is not None:
                self._task.cancel()

    def interrupted(self) -> RockoonError | None:
        """In the call's task, when it was cancelled: why, if it was here; the call can go on to
        say so."""
        if self.refusal is not None and self._task is not None:
            self._task.uncancel()
        return self.refusal


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
        audiences: the addresses at which this service is called, once known: a call is only taken
            when it was signed for one of them, so that what was overheard at one node is of no use
            at another. Empty where callers may have any address: nameservers, behind names and
            balancers.
        refusals: how many calls were refused, by reason.
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
        self.rules = rules
        self._optional = optional
        self.keys = KeyTable(cluster_verifiers)
        self.audiences: set[str] = set()
        self.refusals: dict[str, int] = dict.fromkeys((*REASONS, "not permitted"), 0)
        self._clock = clock or steady_clock()
        self._window_ms = round(window_seconds * 1000)
        self._used = UsedSignatures(self._window_ms)
        # What was used before is not known.
        self._started_ms = self._clock()
        self._open: dict[str, set[OpenCall]] = {}
        # By key: when its former secret ends.
        self._former_ends: dict[str, asyncio.TimerHandle] = {}
        self._logged_ms = 0

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

    def admit(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None
    ) -> tuple[KnownKey, bytes]:
        """Who is calling.

        Args:
            method: "/package.Service/Method".
            metadata: of the call.
            body: the request as it came; None for a stream of them.

        Returns:
            The key, and the verifier of the secret that signed.

        Raises:
            NotAuthenticated: the signature is missing, does not hold, is stale or has been used.
            NotReady: it cannot be told yet.
            Busy: too many callers have signed lately to remember one more.
        """
        signature = signature_in(metadata)
        now_ms = self._clock()
        key = self._signer(signature)
        verifiers = key.verifiers(now_ms)
        for held in verifiers:
            if signature.holds_for(held, method, body):
                break
        else:
            raise refused(
                "wrong signature",
                f"the signature of access key {key.key_id!r} does not hold: its secret is another "
                "one, or the request was changed on the way",
            )
        self._check_time(signature, now_ms)
        if self.audiences and signature.audience not in self.audiences:
            here = " or ".join(sorted(self.audiences))
            raise refused(
                "wrong signature",
                f"the call was signed for {signature.audience or 'nobody'}, and this is {here}",
            )
        try:
            is_new = self._used.admit(
                key.key_id, signature.instance, signature.counter, signature.time_ms, now_ms
            )
        except NoRoom:
            raise Busy(reason="more callers have signed lately than are remembered") from None
        if not is_new:
            raise refused("replayed", "the signature has been used before")
        return key, held

    def _signer(self, signature: Signature) -> KnownKey:
        key = self.keys.get(signature.key_id)
        if key is None and not self.keys.loaded:
            raise NotReady(service="this service", reason="it waits for the access keys")
        if key is None:
            raise refused("unknown key", f"there is no access key {signature.key_id!r}")
        if not key.enabled:
            raise refused("disabled key", f"access key {key.key_id!r} is disabled")
        return key

    def _check_time(self, signature: Signature, now_ms: int) -> None:
        apart_ms = now_ms - signature.time_ms
        if abs(apart_ms) > self._window_ms:
            raise refused(
                "stale",
                f"the call was signed at {clock_text(signature.time_ms)}, and the clock of this "
                f"service says {clock_text(now_ms)}: more than {self._window_ms / 1000:g} s apart. "
                "Set the clocks",
                server_ms=now_ms,
            )
        if signature.time_ms < self._started_ms:
            # Its time is told too: a caller whose clock is behind would be told this, at each
            # restart of a service, for as long as it is.
            raise NotReady(
                service="this service",
                reason="the call was signed before it started",
                server_ms=now_ms,
            )

    def check(self, key: KnownKey, rule: Rule, request: Any) -> None:
        """Whether a key may make a call.

        Raises:
            NotPermitted: it lacks a permission.
        """
        if rule.services_only and key.key_id != CLUSTER_KEY_ID:
            raise NotPermitted(key=key.key_id, action="admin", resource=SERVICES)
        for action, resource in rule.needs(request):
            require(key, action, resource)

    @contextmanager
    def passing(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None, request: Any
    ) -> Iterator[OpenCall]:
        """The time of a call that passes.

        Args:
            method, metadata, body: as of `admit`.
            request: makes the request from its bytes, after the signature has held; None for a
                stream of requests.

        Raises:
            RockoonError: it does not pass.
        """
        rule = self.rule(method)
        if self._optional and not rule.never_open and not is_signed(metadata):
            yield OpenCall(rule, request(), b"")
            return
        try:
            key, verifier = self.admit(method, metadata, body)
            made = request()
            self.check(key, rule, made)
        except (NotAuthenticated, NotPermitted) as refusal:
            self._note(method, refusal)
            raise
        call = OpenCall(rule, made, verifier)
        mine = self._open.setdefault(key.key_id, set())
        mine.add(call)
        # Each call is a task, so nobody else finds it set.
        CALLER.set(Caller(self.keys, key.key_id, call))
        try:
            yield call
        except asyncio.CancelledError:
            refusal_since = call.interrupted()
            if refusal_since is None:
                raise
            raise refusal_since from None
        finally:
            mine.discard(call)
            if not mine and self._open.get(key.key_id) is mine:
                del self._open[key.key_id]

    def update(self, infos: Sequence[AccessKeyInfo]) -> None:
        """Take over all keys; calls in progress that would not pass now end."""
        changed = self.keys.replace(infos)
        for key_id in changed:
            self._judge_again(key_id)
            self._await_former_end(key_id)

    def _await_former_end(self, key_id: str) -> bool:
        """Have calls be judged when a key's former secret ends, which is no change of the key.

        Returns:
            Whether there is one whose end is still to come.
        """
        if (awaited := self._former_ends.pop(key_id, None)) is not None:
            awaited.cancel()
        key = self.keys.get(key_id)
        left_ms = 0 if key is None else key.info.former_until_ms - self._clock()
        if left_ms > 0:
            self._former_ends[key_id] = asyncio.get_running_loop().call_later(
                left_ms / 1000 + 0.001, self._note_former_end, key_id
            )
        return left_ms > 0

    def _note_former_end(self, key_id: str) -> None:
        # The loop's clock is not the one by which secrets end, and may be ahead of it.
        if not self._await_former_end(key_id):
            self._judge_again(key_id)

    def _judge_again(self, key_id: str) -> None:
        key, now_ms = self.keys.get(key_id), self._clock()
        for call in tuple(self._open.get(key_id, ())):
            if key is None:
                call.end(refused("unknown key", f"there is no access key {key_id!r} any more"))
            elif not key.enabled:
                call.end(refused("disabled key", f"access key {key_id!r} is disabled"))
            elif call.verifier not in key.verifiers(now_ms):
                call.end(refused("wrong signature", f"access key {key_id!r} has another secret"))
            elif call.rule.filtered:
                call.end(
                    NotReady(service="this service", reason=f"what {key_id!r} may do has changed")
                )
            else:
                try:
                    self.check(key, call.rule, call.request)
                except NotPermitted as refusal:
                    call.end(refusal)

    def _note(self, method: str, refusal: RockoonError) -> None:
        self.refusals[refusal.details.get("kind", "not permitted")] += 1
        now_ms = self._clock()
        if now_ms - self._logged_ms >= LOGGED_SECONDS * 1000:
            self._logged_ms = now_ms
            log.warning("%s was refused: %s", method, refusal)


def is_signed(metadata: Sequence[tuple[str, Any]]) -> bool:
    return any(name == ACCESS_METADATA_KEY for name, _ in metadata)


def signature_in(metadata: Sequence[tuple[str, Any]]) -> Signature:
    """Raises NotAuthenticated when there is none."""
    header = next((value for name, value in metadata if name == ACCESS_METADATA_KEY), None)
    if header is None:
        raise refused("no key", "the call bears no access key, and this cluster wants one")
    signature = Signature.parse(header) if isinstance(header, str) else None
    if signature is None:
        raise refused("wrong signature", "the signature is of no form that is known here")
    return signature


def refused(kind: str, reason: str, **details: object) -> NotAuthenticated:
    return NotAuthenticated(reason=reason, kind=kind, **details)


def clock_text(epoch_ms: int) -> str:
    """A moment for people and for comparing two of them: UTC, to the second."""
    try:
        moment = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
