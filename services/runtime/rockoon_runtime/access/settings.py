"""Access key settings of every service."""

from dataclasses import dataclass

from rockoon_core.signature import CLUSTER_KEY_ID, AccessKey, Credentials, verifier_of
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.rules import Rules
from rockoon_runtime.settings import SettingsError, setting


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
    access_window_seconds: float = setting(
        300.0,
        "largest difference between the time of a signature and this service's clock, seconds",
        minimum=1,
        maximum=3600,
    )


def cluster_credentials(settings: AccessSettings) -> Credentials | None:
    """The credentials with which this service signs its calls; None if access is off.

    Raises:
        SettingsError: access is on without a valid cluster secret, or off with one.
    """
    if settings.access == "off":
        if settings.cluster_secret or settings.cluster_secret_also:
            raise SettingsError("cluster_secret is set, but access = off: no call would be refused")
        return None
    if not settings.cluster_secret:
        raise SettingsError(
            f"access = {settings.access} needs cluster_secret, from the environment: the same for "
            "every service"
        )
    try:
        return Credentials(AccessKey(CLUSTER_KEY_ID, settings.cluster_secret))
    except ValueError as failure:
        raise SettingsError(f"cluster_secret: {failure}") from failure


def access_gate(settings: AccessSettings, cluster: Credentials | None, rules: Rules) -> Gate | None:
    """The gate in front of a service's methods; None if access is off.

    Args:
        settings: settings of the service.
        cluster: result of `cluster_credentials`.
        rules: the rule of each of its methods.

    Raises:
        SettingsError: the second cluster secret is not valid.
    """
    if cluster is None:
        return None
    verifiers = [cluster.verifier]
    if settings.cluster_secret_also:
        also = AccessKey(CLUSTER_KEY_ID, settings.cluster_secret_also)
        if also.fault:
            raise SettingsError(f"cluster_secret_also: {also.fault}")
        verifiers.append(verifier_of(also.secret))
    return Gate(
        rules,
        verifiers,
        settings.access_window_seconds,
        optional=settings.access == "optional",
    )
