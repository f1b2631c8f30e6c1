"""Connection of the gateway to the cluster, and the cluster's access keys."""

import asyncio
import dataclasses
import logging
from contextlib import AsyncExitStack

from rockoon import Cluster
from rockoon.errors import NameserverUnavailable
from rockoon.net.access import AccessKey
from rockoon_core.channels import Tls
from rockoon_core.clock import wall_clock_ms
from rockoon_core.signature import CLUSTER_KEY_ID
from rockoon_gateway.settings import GatewaySettings
from rockoon_gateway.signatures import SecretFile, Signatures
from rockoon_node.key_follower import KeyFollower
from rockoon_node.nameservers import Nameservers
from rockoon_runtime.access.keys import KeyTable
from rockoon_runtime.frontend import Frontend
from rockoon_runtime.process import Stop
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.tls import client_tls

log = logging.getLogger(__name__)

# A short limit: the gateway retries no calls without its client's knowledge.
RETRY_SECONDS = 2.0


def cluster_tls(settings: GatewaySettings) -> Tls | None:
    """TLS for connections to services; None: off.

    Raises:
        SettingsError: a file is missing.
    """
    if settings.cluster_tls == "same":
        return client_tls(settings)
    inner = dataclasses.replace(
        settings,
        tls=settings.cluster_tls,
        tls_ca=settings.cluster_tls_ca or settings.tls_ca,
        tls_certificate=settings.cluster_tls_certificate or settings.tls_certificate,
        tls_key=settings.cluster_tls_key or settings.tls_key,
    )
    return client_tls(inner)


def connection(settings: GatewaySettings) -> Cluster:
    """Create the connection to the cluster, with the services' own key."""
    access = None
    if settings.access != "off":
        access = AccessKey(CLUSTER_KEY_ID, settings.cluster_secret)
    return Cluster(
        settings.nameservers,
        cluster=settings.cluster,
        retry_seconds=RETRY_SECONDS,
        connect_seconds_max=RETRY_SECONDS,
        tls=cluster_tls(settings),
        access=access,
    )


async def connected(settings: GatewaySettings, stop: Stop, opened: AsyncExitStack) -> Cluster:
    """Return the open connection, as soon as a nameserver replies.

    Args:
        settings: of the gateway.
        stop: ends the wait.
        opened: closes the connection.

    Raises:
        SettingsError: a file cannot be used.
        RockoonError: the nameservers refuse, or a stop was requested before one replied.
    """
    told = False
    while True:
        try:
            return await opened.enter_async_context(connection(settings))
        except NameserverUnavailable as failure:
            if stop.requested:
                raise
            if not told:
                log.warning("%s; waiting for a nameserver", failure)
            told = True


async def access(
    settings: GatewaySettings,
    frontend: Frontend,
    stop: Stop,
    tasks: asyncio.TaskGroup,
    opened: AsyncExitStack,
) -> Signatures:
    """Return the checks of clients' signatures, with the cluster's present keys."""
    if frontend.gate is None:
        if settings.client_secrets is not None:
            raise SettingsError("client_secrets is set, but access = off: calls are not checked")
        return Signatures(None, None, wall_clock_ms)
    secrets = None
    if settings.client_secrets is not None:
        secrets = SecretFile(settings.client_secrets)
    elif settings.access == "on":
        raise SettingsError("access = on needs client_secrets: all calls would be refused")
    nameservers = Nameservers(
        settings.nameservers, settings.cluster, cluster_tls(settings), frontend.credentials
    )
    opened.push_async_callback(nameservers.close)
    follower = KeyFollower(nameservers, frontend.gate)
    following = tasks.create_task(follower.run(stop), name="access keys")
    opened.callback(following.cancel)
    await stop.or_event(follower.attempted)
    keys: KeyTable = frontend.gate.keys
    return Signatures(keys, secrets, wall_clock_ms, optional=settings.access == "optional")
