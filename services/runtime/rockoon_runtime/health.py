"""grpc.health.v1 of every service: readiness and liveness.

The servicer of grpcio is not used: it keeps a watch open for ever, so that a client that watches a
service delays its shutdown, and it reports a draining process as a process that does not work.
Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""
# ruff: noqa: ARG002 - gRPC hands every method a request and a context

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

# Service name for liveness: a process that recovers its store or drains is not ready, but must not
# be restarted.
LIVENESS = "liveness"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpcio brings no types
    """Health status of a process.

    Args:
        names: the services whose readiness it reports, in addition to "", which means all.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = ("", *names)
        # Written by `set_serving` alone.
        self._statuses = dict.fromkeys(self._names, NOT_SERVING) | {LIVENESS: SERVING}
        self._closed = False
        # Set, and replaced by a new event, when a status or `_closed` changes.
        self._changed = asyncio.Event()

    def set_serving(self, *, serving: bool) -> None:
        """Set whether the service accepts calls (readiness)."""
        self._statuses.update(dict.fromkeys(self._names, SERVING if serving else NOT_SERVING))
        self._announce_change()

    def close(self) -> None:
        """End every watch after it has received the last status."""
        self._closed = True
        self._announce_change()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
                continue
            if self._closed:
                return
            await changed.wait()
