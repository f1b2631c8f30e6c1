"""grpc.health.v1 as every service answers it: is it ready, does it live.

The servicer that comes with grpcio keeps a watch open for ever, so that whoever watches a service
holds up its end; and it takes a process that drains for one that hangs.
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

# The name under which it is said that the process lives, ready or not: one that recovers its store
# or drains must not be taken for one that hangs.
LIVENESS = "liveness"


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpcio brings no types
    """What a process says of itself.

    Args:
        names: the services whose readiness it tells, beside "", which means all of them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = ("", *names)
        # Written by `set_serving` alone.
        self._statuses = dict.fromkeys(self._names, NOT_SERVING) | {LIVENESS: SERVING}
        self._closed = False
        # Set, and replaced by a new one, when one of the two above changes.
        self._changed = asyncio.Event()

    def set_serving(self, *, serving: bool) -> None:
        """Say whether calls are welcome (readiness)."""
        self._statuses.update(dict.fromkeys(self._names, SERVING if serving else NOT_SERVING))
        self._announce_change()

    def close(self) -> None:
        """End every watch, after it was told the last word."""
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
        told = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
                continue
            if self._closed:
                return
            await changed.wait()
