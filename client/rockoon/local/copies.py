"""Number of copies of a running cluster's logs: requests a change and waits for it.

The leader of each log changes the in-sync set once no message is lost by it. Until then all
replicas run.
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
    """Change logs to a number of copies; wait for the logs that have more.

    Args:
        nameservers, tls, access: for the connection to the cluster.
        logs: log → names of its running replicas.
        wanted: number of copies of each log.
        seconds_max: timeout in seconds.

    Returns:
        For each log with more replicas: the names of its replicas in sync.

    Raises:
        LocalClusterError: the request was refused, or timed out. The change may still happen
            later: all replicas keep running.
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
    """Request a number of copies for each log; retry refusals until a monotonic deadline.

    Raises:
        RockoonError: the last refusal.
    """
    for log in logs:
        while True:
            found = await cluster.admin.logs.describe(log)
            # A new log waits for its first replicas.
            if not found.epoch or found.copies == wanted:
                break
            try:
                await cluster.admin.logs.set_copies(log, wanted)
                break
            except InvalidArgument:
                # A killed process that was the log's only copy is listed until its lease ends; then
                # a replica that was started now replaces it.
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
                f"log {log} still has {len(found.in_sync)} copies in sync instead of "
                f"{wanted}: see `rockoon log describe {log}` while all of them run"
            )
        await asyncio.sleep(LOOK_SECONDS)
