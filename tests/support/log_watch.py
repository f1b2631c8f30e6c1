"""A replica of a log as a nameserver sees it: it registers, calls and watches."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc import aio

from rockoon_core.errors import NameserverUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.logs_pb2 import Log, LogReply, LogUpdate, WatchLogsRequest
from rockoon_proto.v1.logs_pb2_grpc import LogsStub
from rockoon_proto.v1.nameserver_pb2 import BROKER, RegisterNodeRequest, ReplicaFacts
from support.log_states import LOG, replica_node
from support.nameserver import Nameserver
from support.waiting import DEADLINE_SECONDS


async def call_logs(nameserver: Nameserver, method: str, request: Any) -> LogReply:
    """Make a call of the Logs service; an error of the table is raised as its class."""
    try:
        stub: Any = LogsStub(nameserver.channel)
        reply = await getattr(stub, method)(request, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as failure:
        address = nameserver.address
        raise from_rpc_error(failure, NameserverUnavailable, address=address) from failure
    assert isinstance(reply, LogReply)
    return reply


async def register(
    nameserver: Nameserver,
    who: str,
    *,
    lease_id: int = 0,
    facts: ReplicaFacts | None = None,
    **fields: Any,
) -> Any:
    """Register a replica; it is empty and one of three unless `facts` differ."""
    request = RegisterNodeRequest(
        node=replica_node(who, **fields),
        lease_id=lease_id,
        replica=facts or ReplicaFacts(empty=True, copies=3),
    )
    return await nameserver.call("RegisterNode", request)


class WatchingLog:
    """A watch of one log, and what it has told last; an async context manager."""

    def __init__(self, nameserver: Nameserver, log: str = LOG) -> None:
        self.log = Log()
        self.updates: list[LogUpdate] = []
        self._nameserver = nameserver
        self._request = WatchLogsRequest(kind=BROKER, logs=[log])

    async def until(self, condition: Callable[[Log], object]) -> Log:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition(self.log):
                update: Any = await self._call.read()
                assert update is not aio.EOF, "the nameserver ended the stream"
                self.updates.append(update)
                for log in update.logs:
                    self.log = log
        return self.log

    async def __aenter__(self) -> "WatchingLog":
        self._call = LogsStub(self._nameserver.channel).WatchLogs(self._request)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
