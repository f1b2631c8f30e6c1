"""The nameserver's process: starts store, follower and gRPC server, and stops them in reverse.

Also the permissions for its calls; docs/operate/security.md lists them for operators.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpc import aio

from rockoon_core.channels import Tls
from rockoon_core.clock import steady_clock
from rockoon_core.errors import EtcdUnavailable, StoreCorrupt, StoreLocked
from rockoon_core.protocol import LEVEL, RECOMMENDED, is_recommended
from rockoon_format.names import Action, Need, group_resource, topic_need
from rockoon_nameserver.access_keys import AccessKeys, AccessKeyService
from rockoon_nameserver.broker_removal import BrokerRemoval
from rockoon_nameserver.embedded_store import EmbeddedStore
from rockoon_nameserver.follower import EtcdFollower, Rounds
from rockoon_nameserver.groups import GroupRecords, GroupTopics
from rockoon_nameserver.keyspace import Keyspace
from rockoon_nameserver.live_settings import LiveSettingService
from rockoon_nameserver.log_servicer import LogStateService
from rockoon_nameserver.logs import Logs, freeze_when_etcd_goes_back
from rockoon_nameserver.metrics import TABLE, NameserverMetrics
from rockoon_nameserver.nodes import RENEW_SHARE, Nodes
from rockoon_nameserver.request_checks import Fingerprints
from rockoon_nameserver.route_import import import_routes
from rockoon_nameserver.route_store import RouteStore
from rockoon_nameserver.servicer import ClusterLevel, NameServer
from rockoon_nameserver.settings import NameserverSettings
from rockoon_nameserver.topics import TopicRecords
from rockoon_proto.v1.access_pb2_grpc import add_AccessKeysServicer_to_server
from rockoon_proto.v1.logs_pb2_grpc import add_LogsServicer_to_server
from rockoon_proto.v1.nameserver_pb2_grpc import add_NameServerServicer_to_server
from rockoon_proto.v1.settings_pb2_grpc import (
    add_LiveSettingsServicer_to_server,
    add_SettingsServicer_to_server,
)
from rockoon_runtime import settings_service
from rockoon_runtime.access.gate import Gate
from rockoon_runtime.access.rules import (
    ANY_KEY,
    FILTERED,
    KEYS_FOR_SERVICES,
    SERVICES_ONLY,
    Rule,
    Rules,
    on_cluster,
)
from rockoon_runtime.frontend import Frontend
from rockoon_runtime.live_settings import LiveSettings
from rockoon_runtime.process import ExitStatus, Fatal, Program, Stop, announce
from rockoon_runtime.settings import SettingsError, refused_by, shared_settings
from rockoon_runtime.settings_checks import CHECKS, addresses, caller_files
from rockoon_runtime.settings_service import SettingsService
from rockoon_runtime.tls import NodeIdentities
from rockoon_runtime.wire import GrpcServer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)


def named_topic(action: Action) -> Rule:
    return Rule(lambda request: (topic_need(action, request.name),))


def named_group(action: Action) -> Rule:
    return Rule(lambda request: ((action, group_resource(request.name)),))


def route_of(request: Any) -> Iterable[Need]:
    """Require "see" of topics that may not exist: a refusal must not reveal whether they do."""
    return (topic_need("see", topic) for topic in request.topics)


def subscription(request: Any) -> Iterable[Need]:
    """Permissions of a group's first read of a topic, which creates the group if needed."""
    return topic_need("read", request.topic), ("read", group_resource(request.group))


def provided(request: Any) -> Iterable[Need]:
    """Readers need "read" on the group; a request for more queues changes it and needs "admin"."""
    yield "admin" if request.queues else "read", group_resource(request.group)


RULES: Rules = (
    {
        f"/rockoon.v1.NameServer/{method}": rule
        for method, rule in {
            "RegisterNode": SERVICES_ONLY,
            "UnregisterNode": SERVICES_ONLY,
            "GetRoute": Rule(route_of),
            # All nodes, and the topics and groups that the caller may see.
            "WatchRoutes": FILTERED,
            "CreateTopic": Rule(lambda request: (topic_need("admin", request.config.name),)),
            "CreateTopics": Rule(
                lambda request: (topic_need("admin", each.config.name) for each in request.topics)
            ),
            "UpdateTopic": named_topic("admin"),
            "DeleteTopic": named_topic("admin"),
            "ListTopics": ANY_KEY,
            "CreateGroup": Rule(lambda request: (("admin", group_resource(request.config.name)),)),
            "UpdateGroup": Rule(lambda request: (("admin", group_resource(request.config.name)),)),
            "DeleteGroup": named_group("admin"),
            "GetGroup": Rule(lambda request: (("see", group_resource(request.group)),)),
            "ListGroups": ANY_KEY,
            "Subscribe": Rule(subscription),
            "ProvideGroupTopic": Rule(provided),
            "RemoveBroker": on_cluster("admin"),
            "DescribeCluster": on_cluster("read"),
            "ReadRoutes": on_cluster("admin"),
            "FinishUpgrade": on_cluster("admin"),
        }.items()
    }
    | {
        f"/rockoon.v1.Logs/{method}": rule
        for method, rule in {
            "WatchLogs": SERVICES_ONLY,
            "SuspectLeader": SERVICES_ONLY,
            "ReportLog": SERVICES_ONLY,
            "ConfirmEpoch": SERVICES_ONLY,
            "RecordCommittedEnd": SERVICES_ONLY,
            "ChangeInSync": SERVICES_ONLY,
            "HandOver": SERVICES_ONLY,
            "Resign": SERVICES_ONLY,
            "GoOnAlone": SERVICES_ONLY,
            "ListLogs": on_cluster("read"),
            "DescribeLog": on_cluster("read"),
            "MoveReplica": on_cluster("admin"),
            "RemoveReplica": on_cluster("admin"),
            "SetCopies": on_cluster("admin"),
            "ElectLog": on_cluster("admin"),
            "AdoptLog": on_cluster("admin"),
        }.items()
    }
    | {
        "/rockoon.v1.LiveSettings/StoreSetting": SERVICES_ONLY,
        "/rockoon.v1.LiveSettings/WatchSettings": SERVICES_ONLY,
        "/rockoon.v1.LiveSettings/ListGateways": on_cluster("admin"),
    }
    | dict(settings_service.RULES)
    | {
        f"/rockoon.v1.AccessKeys/{method}": rule
        for method, rule in {
            "CreateKey": on_cluster("admin", never_open=True),
            "ListKeys": on_cluster("admin", never_open=True),
            "UpdateKey": on_cluster("admin", never_open=True),
            "RotateKey": on_cluster("admin", never_open=True),
            "DeleteKey": on_cluster("admin", never_open=True),
            "WatchKeys": KEYS_FOR_SERVICES,
        }.items()
    }
)


# Maximum interval of heartbeats to watchers and of probes of etcd.
ROUND_SECONDS_MAX = 4.0
SERVICE_NAMES = (
    "rockoon.v1.NameServer",
    "rockoon.v1.Logs",
    "rockoon.v1.AccessKeys",
    "rockoon.v1.LiveSettings",
    settings_service.SERVICE_NAME,
)


async def serve(
    settings: NameserverSettings,
    stop: Stop,
    *,
    announce: Callable[[str, str, str], None] = announce,
) -> None:
    """Run a nameserver until `stop` is requested.

    With etcd, it listens before it has read the routes, and replies NOT_SERVING until then; with a
    file it reads the routes first. It is announced once it serves.

    Args:
        settings: settings of this nameserver.
        stop: ends it; failed here too, if the file of routes cannot be written.
        announce: called with kind, name and address when it serves.

    Raises:
        SettingsError: the cluster's name is invalid, no etcd endpoint is given, or a certificate
            or cluster secret cannot be used.
        ListenError: it cannot listen on the address.
        Fatal: etcd did not reply within `start_timeout_seconds`, or the file of routes cannot be
            used.
    """
    frontend = Frontend("nameserver", settings, RULES)
    keyspace, node_identities = identities(settings)
    async with AsyncExitStack() as opened:
        try:
            etcd = await opened.enter_async_context(route_store(settings, stop))
        except (StoreLocked, StoreCorrupt, OSError) as failure:
            raise Fatal(ExitStatus.STORE, str(failure)) from failure
        if settings.import_routes is not None:
            await restore_routes(etcd, keyspace, settings.import_routes)
        await run_with(etcd, settings, stop, frontend, keyspace, node_identities, announce)


async def restore_routes(etcd: RouteStore, keyspace: Keyspace, path: Path) -> None:
    """Store the routes of a backup before the first snapshot is read. Raises Fatal."""
    try:
        if await import_routes(etcd, keyspace, path):
            log.warning("routes were restored from %s: remove the setting import_routes", path)
        else:
            log.warning(
                "import_routes is set, and has no effect: the routes of %s were restored before",
                path,
            )
    except (StoreCorrupt, OSError) as failure:
        raise Fatal(ExitStatus.STORE, str(failure)) from failure
    except EtcdUnavailable as failure:
        raise Fatal(ExitStatus.UNAVAILABLE, str(failure)) from failure


async def run_with(
    etcd: RouteStore,
    settings: NameserverSettings,
    stop: Stop,
    frontend: Frontend,
    keyspace: Keyspace,
    node_identities: NodeIdentities | None,
    announce: Callable[[str, str, str], None],
) -> None:
    """Serve the routes of a store; see `serve`."""
    # One interval for all periodic work; see `rounds`.
    interval_seconds = min(settings.node_lease_seconds * RENEW_SHARE, ROUND_SECONDS_MAX)
    follower = EtcdFollower(
        etcd,
        keyspace,
        time.monotonic,
        probe_seconds=interval_seconds,
        heartbeat_seconds=interval_seconds,
        log_revisions_max=settings.route_log_revisions_max,
    )
    logs = Logs(etcd, keyspace)
    register = registration(settings, frontend, etcd, keyspace, follower, logs, node_identities)

    def listener(tracer: "Tracer | None", external_listen: str = "") -> GrpcServer:
        return frontend.server(
            partial(register, external=bool(external_listen)),
            SERVICE_NAMES,
            tracer=tracer,
            also_listen=external_listen,
        )

    async with (
        frontend.telemetry(TABLE, NameserverMetrics(follower, etcd, logs).measure) as telemetry,
        asyncio.TaskGroup() as tasks,
    ):
        servers = [listener(telemetry.tracer)]
        if settings.external_listen:
            servers.append(listener(telemetry.tracer, settings.external_listen))
        following = tasks.create_task(follower.run(), name="follow etcd")
        if settings.routes_path is not None:
            # Reading a file is fast: callers wait instead of retrying.
            await wait_loaded(settings, follower, stop)
        async with AsyncExitStack() as listening:
            for server in servers:
                await listening.enter_async_context(server)
            if await wait_loaded(settings, follower, stop):
                check_level(follower.table.level)
                await check_versions(settings, etcd)
                guarding = freeze_when_etcd_goes_back(follower, logs)
                tasks.create_task(guarding, name="freeze logs when etcd goes back")
                if frontend.gate is not None:
                    tasks.create_task(keep_keys(frontend.gate, follower), name="access keys")
                tasks.create_task(
                    keep_settings(frontend.live, follower, settings.name), name="live settings"
                )
                for server in servers:
                    await server.set_serving(True)
                announce("nameserver", settings.name, settings.advertise or servers[0].address)
                await stop.wait()
            for server in servers:
                server.start_drain()
            # Watchers end and go to another nameserver; callers do so when connections close.
            follower.close()
        following.cancel()


def registration(
    settings: NameserverSettings,
    frontend: Frontend,
    etcd: RouteStore,
    keyspace: Keyspace,
    follower: EtcdFollower,
    logs: Logs,
    node_identities: NodeIdentities | None,
) -> Callable[..., None]:
    """Return a function that adds the services to a server; `external`: see NameServer."""
    oldest_deletions = follower.table.oldest_deletions
    topics = TopicRecords(etcd, keyspace, oldest_deletions, follower.wait_broker)
    has_queues = follower.table.has_queues
    lease_seconds = settings.node_lease_seconds
    rounds = Rounds(lease_seconds * RENEW_SHARE, time.monotonic)
    nodes = Nodes(etcd, keyspace, lease_seconds, has_queues, rounds)
    groups, group_topics = (
        GroupRecords(etcd, keyspace, oldest_deletions),
        GroupTopics(etcd, keyspace, topics),
    )
    removal = BrokerRemoval(etcd, keyspace, topics, follower.table.topics_on, follower.wait_reached)
    fingerprints = Fingerprints(settings.cluster, settings.name, shared_settings(settings))
    level = ClusterLevel(etcd, keyspace)
    keys = AccessKeys(etcd, keyspace, lambda: len(follower.table.access_keys), steady_clock())
    key_service = AccessKeyService(keys, follower, is_on=frontend.gate is not None)
    live_settings = LiveSettingService(etcd, keyspace, follower, steady_clock())
    own_settings = SettingsService("nameserver", settings.name, frontend.live, live_settings.store)

    def register(server: aio.Server, *, external: bool) -> None:
        servicer = NameServer(
            keyspace,
            settings.name,
            follower,
            nodes,
            topics,
            groups,
            group_topics,
            removal,
            fingerprints,
            level,
            node_identities,
            external=external,
            routes_in_file=settings.routes_path is not None,
        )
        log_service = LogStateService(logs, follower, node_identities, external=external)
        add_NameServerServicer_to_server(servicer, server)
        add_LogsServicer_to_server(log_service, server)
        add_AccessKeysServicer_to_server(key_service, server)
        add_LiveSettingsServicer_to_server(live_settings, server)
        add_SettingsServicer_to_server(own_settings, server)

    return register


def identities(settings: NameserverSettings) -> tuple[Keyspace, NodeIdentities | None]:
    """Return the names of etcd's keys, and nodes' required certificates. Raises SettingsError."""
    try:
        keyspace = Keyspace(settings.cluster)
        mutual = settings.tls == "mutual"
        return keyspace, NodeIdentities(settings.tls_node_name) if mutual else None
    except ValueError as failure:
        raise SettingsError(str(failure)) from failure


def route_store(
    settings: NameserverSettings, stop: Stop
) -> AbstractAsyncContextManager[RouteStore]:
    """Open the store of the routes. Raises SettingsError."""
    if settings.routes_path is not None:

        def failed(reason: str) -> None:
            stop.fail(Fatal(ExitStatus.DISK_FAILED, reason))

        return EmbeddedStore(settings.routes_path, failed)
    # Imported here: the etcd client is a fifth of a nameserver's imports.
    from rockoon_nameserver.etcd import Etcd

    try:
        return Etcd(
            settings.etcd,
            user=settings.etcd_user,
            password=settings.etcd_password,
            timeout_seconds=settings.etcd_timeout_seconds,
            tls=etcd_tls(settings),
        )
    except ValueError as failure:
        raise SettingsError(str(failure)) from failure


async def keep_keys(gate: Gate, follower: EtcdFollower) -> None:
    """Update the access keys of this nameserver's own callers until the follower is closed."""
    async for update in follower.access_keys():
        gate.update(update.keys)


async def keep_settings(live: LiveSettings[Any], follower: EtcdFollower, name: str) -> None:
    """Update the live settings of this nameserver until the follower is closed."""
    async for update in follower.live_settings("nameserver", name):
        live.replace(update.settings, update.revision)


def etcd_tls(settings: NameserverSettings) -> Tls | None:
    """TLS for connections to etcd; None: off. Raises SettingsError."""
    tls = Tls(
        settings.etcd_tls_ca,
        settings.etcd_tls_certificate,
        settings.etcd_tls_key,
        settings.etcd_tls_server_name,
    )
    if settings.etcd_tls == "on":
        return tls
    if tls != Tls():
        raise SettingsError("etcd_tls_... is set, but etcd_tls = off: nothing would be encrypted")
    return None


def check_level(level: int) -> None:
    """Refuse to serve a cluster whose feature level this program does not support. Raises Fatal."""
    if level > LEVEL:
        raise Fatal(
            ExitStatus.CONFIGURATION,
            f"the cluster has feature level {level}, and this nameserver supports {LEVEL}: start "
            "the version with which the upgrade was finished, or a newer one",
        )


async def check_versions(settings: NameserverSettings, etcd: RouteStore) -> None:
    """Warn of etcd members with a version that is not recommended, or refuse to start."""
    for address, version in (await etcd.versions()).items():
        if is_recommended(version):
            continue
        fault = (
            f"etcd at {address} has version {version}, which may lose acknowledged writes; "
            f"recommended is {RECOMMENDED}"
        )
        if settings.etcd_version_check == "refuse":
            raise Fatal(ExitStatus.CONFIGURATION, f"{fault} (etcd_version_check)")
        log.warning("%s", fault)


async def wait_loaded(settings: NameserverSettings, follower: EtcdFollower, stop: Stop) -> bool:
    """Wait for the first snapshot of the routes; False if a stop was requested before."""
    if settings.routes_path is None:
        log.info("waiting for etcd at %s", ", ".join(settings.etcd))
    async with asyncio.TaskGroup() as tasks:
        stopping = tasks.create_task(stop.wait(), name="stop while starting")
        loading = tasks.create_task(follower.wait_loaded(), name="first snapshot")
        await asyncio.wait(
            {stopping, loading},
            timeout=settings.start_timeout_seconds or None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        stopping.cancel()
        loading.cancel()
    if not follower.table.loaded and not stop.requested:
        raise Fatal(
            ExitStatus.UNAVAILABLE,
            f"no reply from etcd for {settings.start_timeout_seconds} s: {follower.trouble}",
        )
    return follower.table.loaded


PROGRAM = Program(
    "nameserver",
    "Rockoon's nameserver: serves the cluster's routes",
    NameserverSettings,
    serve,
    (
        *CHECKS,
        addresses(listen=("external_listen",), dialed=("advertise", "etcd")),
        refused_by(identities),
        caller_files(etcd_tls, "etcd_tls"),
    ),
)
