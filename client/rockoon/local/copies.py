"""Copies of a running cluster's logs: as many as are wanted are asked for, and waited for.

Who counts is changed by each log's leader, when nothing is lost by it. Until then all replicas run.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rockoon import sync
from rockoon.errors import InvalidArgument, RockoonError
from rockoon.local.process import LocalClusterError

if TYPE_CHECKING:
    from rockoon.cluster import Cluster
    from rockoon.net.access import AccessKey
    from rockoon.net.tls import Tls

LOOK_SECONDS = 0.1


def settle_copies(
    nameservers: Sequence[str],
    logs: Mapping[str, Collection[str]],
    wanted: int,
    seconds_max: float,
    tls: "Tls | None" = None,
    access: "AccessKey | None" = None,
) -> Mapping[str, Collection[str]]:
    """Have logs have so many copies, and wait where they have more.

    Args:
        nameservers, tls, access: how the cluster is reached.
        logs: names of the replicas that run, by that of their log.
        wanted: how many copies each log is to have.
        seconds_max: how long to wait.

    Returns:
        Of each log with more replicas than that, the names of those that count now.

    Raises:
        LocalClusterError: it could not be asked for, or has not come to that in time. It may come
            to it later: all replicas go on.
    """
    deadline = time.monotonic() + seconds_max
    fewer = [log for log, replicas in logs.items() if len(replicas) > wanted]
    with sync.connect(nameservers, tls=tls, access=access) as cluster:
        try:
            cluster.call(ask_for(cluster.asyncio, logs, wanted, deadline))
            return {
                log: cluster.call(_counting(cluster.asyncio, log, wanted, deadline))
                for log in fewer
            }
        except RockoonError as failure:
            raise LocalClusterError(f"not all logs have {wanted} copies: {failure}") from failure


async def ask_for(cluster: "Cluster", logs: Collection[str], wanted: int, deadline: float) -> None:
    """Ask for copies of logs, again until a deadline, monotonic seconds, where one is refused.

    Raises:
        RockoonError: the last refusal.
    """
    for log in logs:
        while True:
            found = await cluster.admin.logs.describe(log)
            # A new one waits for its first replicas.
            if not found.epoch or found.copies == wanted:
                break
            try:
                await cluster.admin.logs.set_copies(log, wanted)
                break
            except InvalidArgument:
                # A process that was killed as the log's only copy is listed for a lease; those
                # that were started now take its place then.
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK_SECONDS)


async def _counting(cluster: "Cluster", log: str, wanted: int, deadline: float) -> list[str]:
    while True:
        found = await cluster.admin.logs.describe(log)
        if found.leader is not None and found.confirmed and len(found.in_sync) == wanted:
            return [each.name for each in found.in_sync]
        if time.monotonic() > deadline:
            raise LocalClusterError(
                f"log {log} still has {len(found.in_sync)} copies that count, and is to have "
                f"{wanted}: see `rockoon log describe {log}`, with all of them running"
            )
        await asyncio.sleep(LOOK_SECONDS)
