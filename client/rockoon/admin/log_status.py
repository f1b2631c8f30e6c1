"""Status of replicated logs: the nameservers' state of each log, and the replies of its copies."""

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
    """Status of one replicated log.

    Attributes:
        log: state of the log at the nameservers.
        standings: status by replica id, for the copies that answered.
    """

    log: LogDescription
    standings: Mapping[str, ReplicaStanding]

    @property
    def is_well(self) -> bool:
        """True if the log has a leader, and enough copies are in sync and ready."""
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
    """Return the status of all replicated logs, sorted by name; none if no nameserver answers.

    Args:
        cluster: an open connection.
        seconds_max: timeout of the nameserver call; the calls to the copies have their own.

    Raises:
        NotPermitted: the access key has no permission to ask.
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
        # The status of the nameservers reports that they do not answer.
        return []
    logs = [LogDescription.from_wire(each) for each in reply.logs]
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (log, tasks.create_task(ask_standings(cluster, log.name, log.reached)))
            for log in logs
            if log.has_copies
        ]
    return [LogStatus(log, task.result()) for log, task in asked]
