"""Administrative calls to the offset service; calls that are safe to repeat are retried."""

import asyncio
from typing import TYPE_CHECKING, Any

from rockoon.errors import OffsetServiceUnavailable, RockoonError
from rockoon.net.connection import CALL_SECONDS_MAX, UNLISTED_SECONDS
from rockoon_core.clock import Backoff

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# An import may have 100,000 entries, and a nameserver may have to create a group for each one.
IMPORT_SECONDS_MAX = 600.0
# Calls without side effects.
_READ_ONLY = frozenset(
    {"ListLocks", "ListMembers", "ListInFlight", "ListClients", "ListProgress", "Lag", "Export"}
    | {"Query"}
)
# Each of the added calls names a reset, so repeating it has no further effect.
_REPEATABLE = _READ_ONLY | {"Reset", "ApplyReset", "UndoReset"}


async def ask_offset_service(cluster: "Connection", method_name: str, request: Any) -> Any:
    """Call the offset service, which may be restarting.

    A read-only or repeatable call is retried until `cluster.retry_seconds` have passed. Any other
    call is not retried, because the change may have been made although its reply was lost.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + cluster.retry_seconds
    backoff = Backoff()
    is_read_only = method_name in _READ_ONLY
    while True:
        left = max(deadline - loop.time(), 0.0)
        try:
            # A service that is not in the routes for this long may still answer at its old address.
            stub: Any = await cluster.wait_offset_service(
                min(left, UNLISTED_SECONDS) if is_read_only else left
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
