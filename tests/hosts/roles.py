"""Present roles of the hosts."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping

from hosts.shape import (
    ETCD_LEADER,
    FOLLOWER,
    LEADER,
    LOG,
    OFFSET,
    OFFSET_FOLLOWERS,
    OFFSET_LOG,
    OTHER_FOLLOWER,
    Shape,
)

import rockoon
from rockoon.errors import RockoonError

ASK_SECONDS_MAX = 2.0
LOOK_SECONDS = 0.25
ROLES_SECONDS_MAX = 90.0


async def roles_of(
    cluster: rockoon.Cluster, shape: Shape, etcds: Mapping[str, str]
) -> Mapping[str, str]:
    """Return role → host, once every log has a leader and all its copies, and etcd has one.

    Args:
        cluster: a connection that is never cut.
        shape: numbers of the processes.
        etcds: host → address.

    Raises:
        TimeoutError: it is not complete in time.
    """
    roles: dict[str, str] = {}
    async with asyncio.timeout(ROLES_SECONDS_MAX):
        leader, *followers = await replicas_of(cluster, LOG, shape.copies)
        roles[LEADER] = leader
        roles.update(zip((FOLLOWER, OTHER_FOLLOWER), followers, strict=False))
        roles[OFFSET], *followers = await replicas_of(cluster, OFFSET_LOG, shape.offsets)
        roles.update(zip(OFFSET_FOLLOWERS, followers, strict=False))
        roles[ETCD_LEADER] = await asyncio.to_thread(etcd_leader, etcds)
    return roles


async def replicas_of(cluster: rockoon.Cluster, log: str, copies: int) -> list[str]:
    """Return hosts of a log's copies, its leader first; all are present and count."""
    if copies == 1:
        return [log]
    while True:
        try:
            described = await cluster.admin.logs.describe(log)
            counted = [each for each in described.in_sync if each.address is not None]
            leader = described.leader
            if leader is not None and described.confirmed and len(counted) == copies:
                standings = await cluster.admin.logs.ask_replicas(described)
                if sum(each.ready for each in standings.values()) >= copies:
                    return [leader.name, *(each.name for each in counted if each is not leader)]
        except RockoonError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(LOOK_SECONDS)


def etcd_leader(etcds: Mapping[str, str]) -> str:
    """Return the host whose member leads."""
    while True:
        for host, address in etcds.items():
            request = urllib.request.Request(f"http://{address}/v3/maintenance/status", data=b"{}")
            try:
                with urllib.request.urlopen(request, timeout=ASK_SECONDS_MAX) as answer:
                    said = json.load(answer)
            except OSError:
                continue
            if said.get("leader") == said["header"]["member_id"]:
                return host
