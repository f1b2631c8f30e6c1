"""Status of logs with copies: what nameservers keep of each, and what its copies say themselves."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rockoon.admin.logs import LogDescription
from rockoon.admin.replica_standings import ReplicaStanding, ask_standings
from rockoon.errors import NotPermitted, RockoonError
from rockoon_proto.v1.logs_pb2 import ListLogsRequest
from rockoon_proto.v1.logs_pb2_grpc import LogsStub

if TYPE_CHECKING:
    from rockoon.net.connection import Connection


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log with copies.

    Attributes:
        log: as the nameservers keep it.
        standings: of its copies that answer, by their ids.
    """

    log: LogDescription
    standings: Mapping[str, ReplicaStanding]

    @property
    def is_well(self) -> bool:
        """Whether it is led, and as many copies as it is to have count and are ready."""
        log = self.log
        return (
            not log.frozen
            and log.leader is not None
            and log.confirmed
            and len(log.in_sync) >= log.copies
            and all(self._is_ready(each.id) for each in log.in_sync)
        )

    def _is_ready(self, replica_id: str) -> bool:
        standing = self.standings.get(replica_id)
        return standing is not None and standing.ready


async def ask_log_status(cluster: "Connection", seconds_max: float) -> Sequence[LogStatus]:
    """All logs with copies, in the order of names; none while no nameserver tells.

    Args:
        cluster: an open connection.
        seconds_max: how long the nameservers may take; the copies have as long again.

    Raises:
        NotPermitted: the access key may not ask.
    """
    try:
        reply = await cluster.call_nameserver(
            "ListLogs",
            ListLogsRequest(),
            retry_seconds=0,
            timeout_seconds=seconds_max,
            service=LogsStub,
        )
    except NotPermitted:
        raise
    except RockoonError:
        # That they do not answer is told of the nameservers themselves.
        return []
    logs = [LogDescription.from_wire(each) for each in reply.logs]
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (log, tasks.create_task(ask_standings(cluster, log.name, log.reached)))
            for log in logs
            if log.has_copies
        ]
    return [LogStatus(log, task.result()) for log, task in asked]
