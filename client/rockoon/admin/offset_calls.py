"""Calls to the offset service for people and tools: tried again where that can do no harm."""

import asyncio
from typing import TYPE_CHECKING, Any

from rockoon.errors import OffsetServiceUnavailable, RockoonError
from rockoon.net.connection import CALL_SECONDS_MAX, UNLISTED_SECONDS
from rockoon_core.backoff import Backoff

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# An import may have 100,000 entries, and a nameserver may have to create a group for each one.
IMPORT_SECONDS_MAX = 600.0
# Those that change nothing.
_LOOKS = frozenset(
    {"ListLocks", "ListMembers", "ListInFlight", "ListClients", "ListProgress", "Lag", "Export"}
    | {"Query"}
)
# Each names a reset: doing it twice is doing it once.
_REPEATABLE = _LOOKS | {"Reset", "ApplyReset", "UndoReset"}


async def ask_offset_service(cluster: "Connection", method_name: str, request: Any) -> Any:
    """Call the offset service, which may be on its way back.

    A call that only looks, or that may be repeated, is made again when it fails on the way. Any
    other call is not: the change may have been made although its answer was lost.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + cluster.retry_seconds
    backoff = Backoff()
    looks = method_name in _LOOKS
    while True:
        left = max(deadline - loop.time(), 0.0)
        try:
            # One that is not in the routes for long may answer all the same.
            stub: Any = await cluster.wait_offset_service(
                min(left, UNLISTED_SECONDS) if looks else left
            )
            if method_name in ("ListInFlight", "ListClients"):
                stub = cluster.in_flight_service()
            return await cluster.call(
                getattr(stub, method_name),
                request,
                unavailable=OffsetServiceUnavailable,
                timeout_seconds=IMPORT_SECONDS_MAX if method_name == "Import" else CALL_SECONDS_MAX,
            )
        except RockoonError as error:
            pause = backoff.next_seconds()
            may_pass = method_name in _REPEATABLE and error.retriable
            if not may_pass or loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
