"""The nameserver's life: etcd, the follower, the gRPC server; put away in the reverse order."""

import asyncio
import logging
import time

from grpc import aio

from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.follower import RouteFollower
from rockoon_nameserver.group_topics import GroupTopics
from rockoon_nameserver.groups import Groups
from rockoon_nameserver.keyspace import Keyspace
from rockoon_nameserver.nodes import Nodes
from rockoon_nameserver.servicer import NameServer
from rockoon_nameserver.settings import NameserverSettings
from rockoon_nameserver.topics import Topics
from rockoon_proto.v1.nameserver_pb2_grpc import add_NameServerServicer_to_server
from rockoon_runtime.process import ExitStatus, Fatal, Stop, announce
from rockoon_runtime.settings import SettingsError
from rockoon_runtime.wire import GrpcServer

log = logging.getLogger(__name__)

SERVICE_NAMES = ("rockoon.v1.NameServer",)


async def serve(settings: NameserverSettings, stop: Stop) -> None:
    """Run a nameserver until `stop` is requested.

    It listens at once, answers NOT_SERVING while it waits for etcd, and is announced when it has
    read the routes.

    Raises:
        SettingsError: the cluster's name cannot be one, or no etcd endpoint is given.
        ListenError: the address cannot be had.
        Fatal: etcd did not answer within `start_timeout_seconds`.
    """
    try:
        keyspace = Keyspace(settings.cluster)
        etcd = Etcd(
            settings.etcd,
            user=settings.etcd_user,
            password=settings.etcd_password,
            timeout_seconds=settings.etcd_timeout_seconds,
        )
    except ValueError as failure:
        raise SettingsError(str(failure)) from failure
    follower = RouteFollower(
        etcd,
        keyspace,
        time.monotonic,
        log_revisions_max=settings.route_log_revisions_max,
    )
    topics = Topics(etcd, keyspace)
    servicer = NameServer(
        settings.cluster,
        settings.name,
        follower,
        Nodes(etcd, keyspace, settings.node_lease_seconds),
        topics,
        Groups(etcd, keyspace),
        GroupTopics(etcd, keyspace, topics),
    )

    def register(server: aio.Server) -> None:
        add_NameServerServicer_to_server(servicer, server)

    server = GrpcServer("nameserver", settings.cluster, settings.listen, register, SERVICE_NAMES)
    async with etcd, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follower.run(), name="follow etcd")
        async with server:
            await server.set_serving(False)
            if await wait_loaded(settings, follower, stop):
                await server.set_serving(True)
                announce("nameserver", settings.name, settings.advertise or server.address)
                await stop.wait()
            # Watchers would otherwise keep the server from draining.
            follower.close()
        following.cancel()


async def wait_loaded(settings: NameserverSettings, follower: RouteFollower, stop: Stop) -> bool:
    """Wait for the first snapshot; False when the wish to stop came first."""
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
            f"nothing from etcd for {settings.start_timeout_seconds} s: {follower.trouble}",
        )
    return follower.table.loaded
