"""The settings that every service has for access keys."""

from dataclasses import dataclass

from rockoon_core.signature import CLUSTER_KEY_ID, AccessKey, Credentials, verifier_of
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.rules import Rules
from rockoon_runtime.settings import SettingsError, setting


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Whether callers need access keys."""

    access: str = setting(
        "off",
        "on: every call has to be signed with an access key that may make it, or with the cluster "
        "secret, health alone is open; optional: calls that are not signed pass as well, for the "
        "way from off to on",
        choices=("off", "optional", "on"),
        shared=True,
    )
    cluster_secret: str = setting(
        "",
        "what services sign their calls to one another with, and an operator his first ones; the "
        "same on all of them, 24 characters or more",
        secret=True,
    )
    cluster_secret_also: str = setting(
        "",
        "another cluster secret that is accepted, while one is replaced by the other",
        secret=True,
    )
    access_window_seconds: float = setting(
        300.0,
        "how far the time of a signature may be from this service's clock, seconds",
        minimum=1,
        maximum=3600,
    )


def cluster_credentials(settings: AccessSettings) -> Credentials | None:
    """How this service signs its calls; None when it does not.

    Raises:
        SettingsError: access is on without a usable cluster secret, or off with one.
    """
    if settings.access == "off":
        if settings.cluster_secret or settings.cluster_secret_also:
            raise SettingsError("cluster_secret is set, but access = off: nobody would be refused")
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
    """What stands before a service's calls; None when access is off.

    Args:
        settings: the service's.
        cluster: as of `cluster_credentials`.
        rules: what each of its methods needs.

    Raises:
        SettingsError: the other cluster secret cannot be used.
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
