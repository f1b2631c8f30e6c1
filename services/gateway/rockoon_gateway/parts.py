"""Parts of a gateway, created on one connection to the cluster."""

import asyncio
from dataclasses import dataclass

from rockoon import Cluster
from rockoon_core.clock import wall_clock_ms
from rockoon_gateway.calls import Callers
from rockoon_gateway.clients.presence import Presence
from rockoon_gateway.clients.telemetry import Telemetry
from rockoon_gateway.consoles.groups_report import GroupReports
from rockoon_gateway.consoles.lookups import Lookups
from rockoon_gateway.consoles.servicer import ConsoleServicer
from rockoon_gateway.consuming.consuming import Consuming
from rockoon_gateway.groups import GroupConfigs
from rockoon_gateway.lite.expiry import Expiry
from rockoon_gateway.lite.lite_topics import LiteTopics
from rockoon_gateway.metrics import GatewayMetrics
from rockoon_gateway.producing.message_checks import SendLimits
from rockoon_gateway.producing.sending import Sending
from rockoon_gateway.producing.transactions import GatewayTransactions
from rockoon_gateway.routes import QueryRoutes
from rockoon_gateway.service import MessagingServicer, Services
from rockoon_gateway.settings import GatewaySettings
from rockoon_gateway.signatures import Signatures
from rockoon_gateway.topics import TopicRoutes


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts of one gateway."""

    services: Services
    servicer: MessagingServicer
    consoles: ConsoleServicer
    metrics: GatewayMetrics
    expiry: Expiry


def assembled(
    settings: GatewaySettings,
    cluster: Cluster,
    signatures: Signatures,
    tasks: asyncio.TaskGroup,
) -> GatewayParts:
    """Create the parts.

    Args:
        settings: of the gateway.
        cluster: the open connection.
        signatures: checks clients' signatures.
        tasks: owns the tasks that read Telemetry streams.
    """
    presence = Presence(settings.client_seconds_max)
    topics = TopicRoutes(cluster, create=settings.create_topics)
    groups = GroupConfigs(cluster, create=settings.create_groups)
    lite_topics = LiteTopics(cluster, settings.lite_topics_max)
    telemetry = Telemetry(presence, topics, groups, settings.body_bytes_max, tasks)
    transactions = GatewayTransactions(
        cluster, topics, presence, settings.send_seconds_max, settings.checked_topics_max
    )
    sending = Sending(
        cluster,
        topics,
        lite_topics,
        presence,
        transactions,
        SendLimits(settings.body_bytes_max, round(settings.delay_seconds_max * 1000)),
        timeout_seconds=settings.send_seconds_max,
        buffer_bytes_max=settings.buffer_bytes_max,
        clock=wall_clock_ms,
    )
    consuming = Consuming(
        cluster,
        topics,
        groups,
        lite_topics,
        presence,
        settings.name,
        create_groups=settings.create_groups,
    )
    services = Services(QueryRoutes(cluster, topics), presence, telemetry, sending, consuming)
    callers = Callers(signatures)
    metrics = GatewayMetrics(
        presence, telemetry, signatures, sending, transactions, consuming, callers.refused
    )
    consoles = ConsoleServicer(
        settings.name,
        callers,
        GroupReports(cluster, consuming.reports.soon),
        Lookups(cluster, topics, presence, telemetry),
        sending,
        presence,
    )
    expiry = Expiry(cluster, lite_topics, consuming.lite_subscriptions, settings.lite_look_seconds)
    return GatewayParts(services, MessagingServicer(callers, services), consoles, metrics, expiry)
