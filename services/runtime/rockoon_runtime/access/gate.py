"""The gate in front of a service's methods: signatures, permissions, and calls in progress.

A call passes if its signature is valid, recent and unused (`authentication`), and its key has every
permission that the rule of the method requires (`rules`). The gate decides from memory. When keys
change, it checks the calls in progress again and ends those that are no longer permitted
(`callers`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from rockoon_core.clock import steady_clock
from rockoon_core.errors import InvalidArgument, NotAuthenticated, NotPermitted, RockoonError
from rockoon_core.pem_files import PemError
from rockoon_core.secret_files import RenewedSecrets
from rockoon_core.signature import CLUSTER_KEY_ID, AccessKey, Credentials
from rockoon_proto.v1.access_pb2 import AccessKeyInfo
from rockoon_runtime.access.authentication import Authentication, is_signed
from rockoon_runtime.access.callers import CALLER, Caller, OpenCall, OpenCalls
from rockoon_runtime.access.keys import KeyTable, Secrets
from rockoon_runtime.access.rules import ANY_KEY, Refusals, Rule, Rules, check
from rockoon_runtime.settings import SettingsError, setting
from rockoon_runtime.telemetry.metrics import Measurement, counter, gauge

# Server reflection: describes the server's own methods.
REFLECTION = "/grpc.reflection."

REFUSED = counter(
    "rockoon_access_refused_total", "Calls refused because of access keys, by reason", "reason"
)
KEYS = gauge("rockoon_access_keys", "Access keys that this service knows; -1 before it knows any")
TABLE = (REFUSED, KEYS)

Abort = Callable[[Any, RockoonError], Awaitable[None]]
Behaviour = Callable[[Any, Any], Awaitable[Any]]


class Gate:
    """Checks signature and permissions of each call of a service, and ends calls in progress that
    are no longer permitted.

    Args:
        rules: the permissions that each method requires; a method without a rule is refused.
        cluster_secrets: returns the cluster secrets, for calls of other services.
        optional: also accept unsigned calls, with all permissions except where a rule is
            `never_open`.
        window_seconds: largest difference between a signature's time and the clock.
        clock: epoch milliseconds, never decreasing.

    Attributes:
        keys: the current keys; written by `update`.
        authentication: finds the caller's key.
        refusals: counts of refused calls.
    """

    def __init__(
        self,
        rules: Rules,
        cluster_secrets: Secrets,
        window_seconds: float,
        clock: Callable[[], int] | None = None,
        *,
        optional: bool = False,
    ) -> None:
        clock = clock or steady_clock()
        self.rules = rules
        self._optional = optional
        self.keys = KeyTable(cluster_secrets, lambda: self._calls.key_changed(CLUSTER_KEY_ID))
        self.authentication = Authentication(self.keys, window_seconds, clock)
        self.refusals = Refusals(clock)
        self._calls = OpenCalls(self.keys, clock)

    def rule(self, method: str) -> Rule:
        """Return the permissions that a method requires. Raises NotPermitted for a method without a
        rule: a missing rule never permits a call."""
        if method.startswith(REFLECTION):
            return ANY_KEY
        try:
            return self.rules[method]
        except KeyError:
            raise NotPermitted(
                f"method {method} has no access rule, so no caller may call it",
                key="",
                action="call",
                resource=method,
            ) from None

    @contextmanager
    def passing(
        self, method: str, metadata: Sequence[tuple[str, Any]], body: bytes | None, request: Any
    ) -> Iterator[OpenCall]:
        """Context of a call that passes the gate.

        Args:
            method, metadata, body: see `Authentication.admit`.
            request: parses the request after the signature was verified; returns None for a stream
                of requests.

        Raises:
            RockoonError: the call is refused.
        """
        rule = self.rule(method)
        # Only unsigned calls pass without a check. A wrong signature is refused in this mode too:
        # otherwise operators would notice it only after the mode has ended.
        if self._optional and not rule.never_open and not is_signed(metadata):
            yield OpenCall(rule, request(), b"")
            return
        try:
            key, verifier = self.authentication.admit(method, metadata, body)
            # After the signature check: requests of strangers are not parsed.
            made = request()
            check(key, rule, made)
        except (NotAuthenticated, NotPermitted) as refusal:
            self.refusals.record(method, refusal)
            raise
        call = OpenCall(rule, made, verifier)
        # After the check, without an await in between: a change of the key either was visible to
        # the check, or finds the call here.
        self._calls.add(key.key_id, call)
        # Each call has its own context, so no other call sees this caller.
        CALLER.set(Caller(self.keys, key.key_id, call))
        try:
            yield call
        except asyncio.CancelledError:
            refusal_since = call.interrupted()
            if refusal_since is None:
                raise
            # The gate cancelled the call because its key changed. Other cancellations pass above.
            raise refusal_since from None
        finally:
            self._calls.remove(key.key_id, call)

    def measurements(self) -> Iterator[Measurement]:
        for reason, count in self.refusals.counts.items():
            yield REFUSED.at(count, reason)
        yield KEYS.at(len(self.keys) if self.keys.loaded else -1)

    def update(self, infos: Sequence[AccessKeyInfo]) -> None:
        """Replace all keys; end calls in progress that are no longer permitted."""
        # The keys are replaced before calls end, because their clients retry immediately.
        for key_id in self.keys.replace(infos):
            self._calls.key_changed(key_id)


def gated(
    gate: Gate,
    path: str,
    behaviour: Behaviour,
    parse: Callable[[bytes], Any] | None,
    abort: Abort,
    *,
    is_stream: bool,
) -> Behaviour:
    """Return a coroutine method that runs `behaviour` for permitted calls.

    Requests arrive as bytes because signatures cover bytes, and because requests of strangers are
    not parsed before their signature is verified.

    Args:
        behaviour: the method; it handles its own errors.
        parse: parses a request.
        abort: ends a call with an error.
        is_stream: the method has a stream of requests. The method checks each request itself.
    """

    async def answer(request: Any, context: Any) -> Any:
        metadata = context.invocation_metadata()
        try:
            if is_stream:
                with gate.passing(path, metadata, None, no_request):
                    return await behaviour(request, context)
            with gate.passing(path, metadata, request, partial(parsed, parse, request)) as call:
                return await behaviour(call.request, context)
        except RockoonError as refusal:
            await abort(context, refusal)

    return answer


def parsed(parse: Callable[[bytes], Any] | None, raw: Any) -> Any:
    """Parse a request. Raises InvalidArgument if the bytes are invalid."""
    try:
        return raw if parse is None else parse(raw)
    except DecodeError as failure:
        raise InvalidArgument(reason=f"the request cannot be parsed: {failure}") from failure


def no_request() -> None:
    """Return None as the request of a stream, because the method checks each request itself."""


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Whether callers need access keys, and the cluster secret."""

    access: str = setting(
        "off",
        "on: every call except health checks must be signed with an access key that permits it, or "
        "with the cluster secret; optional: unsigned calls are accepted too, for the migration "
        "from off to on",
        choices=("off", "optional", "on"),
        shared=True,
    )
    cluster_secret: str = setting(
        "",
        "secret with which services sign their calls to each other, and an operator the first "
        "calls; the same for all services, at least 24 characters",
        secret=True,
    )
    cluster_secret_also: str = setting(
        "",
        "second cluster secret that is accepted while one replaces the other",
        secret=True,
    )
    cluster_secret_file: str = setting(
        "",
        "file with the cluster secret, instead of cluster_secret, read again when it changes: the "
        "first line signs, further lines are accepted too while one secret replaces another",
    )
    access_window_seconds: float = setting(
        300.0,
        "largest difference between the time of a signature and this service's clock, seconds",
        minimum=1,
        maximum=3600,
    )


def cluster_credentials(settings: AccessSettings) -> Credentials | None:
    """Return the credentials with which this service signs its calls; None if access is off. Raises
    SettingsError: access is on without a valid cluster secret, or off with one."""
    if settings.access == "off":
        if settings.cluster_secret or settings.cluster_secret_also or settings.cluster_secret_file:
            raise SettingsError("cluster_secret is set, but access = off: no call would be refused")
        return None
    secrets = cluster_secrets(settings)
    renewed = (lambda: secrets()[0]) if settings.cluster_secret_file else None
    return Credentials(AccessKey(CLUSTER_KEY_ID, secrets()[0]), renewed=renewed)


def cluster_secrets(settings: AccessSettings) -> Secrets:
    """Return a function that returns the valid cluster secrets, the one that signs first. Raises
    SettingsError: there is no secret, a secret can be guessed, or the file cannot be used."""
    file, given = (
        settings.cluster_secret_file,
        (settings.cluster_secret, settings.cluster_secret_also),
    )
    if file:
        if any(given):
            raise SettingsError(
                "set cluster_secret_file, or cluster_secret and cluster_secret_also"
            )
        try:
            secrets: Secrets = RenewedSecrets(Path(file)).secrets
        except PemError as failure:
            raise SettingsError(f"cluster_secret_file: {failure}") from failure
        named = dict.fromkeys(secrets(), "cluster_secret_file")
    else:
        if not settings.cluster_secret:
            raise SettingsError(
                f"access = {settings.access} needs cluster_secret, from the environment, or "
                "cluster_secret_file: the same for every service"
            )
        found = tuple(filter(None, given))
        named = dict(zip(given, ("cluster_secret", "cluster_secret_also"), strict=True))
        named.pop("", None)

        def secrets() -> tuple[str, ...]:
            return found

    for secret, name in named.items():
        if fault := AccessKey(CLUSTER_KEY_ID, secret).fault:
            raise SettingsError(f"{name}: {fault}")
    return secrets


def access_gate(settings: AccessSettings, cluster: Credentials | None, rules: Rules) -> Gate | None:
    """Return the gate in front of a service's methods; None if access is off. Raises SettingsError:
    the second cluster secret is not valid."""
    if cluster is None:
        return None
    return Gate(
        rules,
        cluster_secrets(settings),
        settings.access_window_seconds,
        optional=settings.access == "optional",
    )
