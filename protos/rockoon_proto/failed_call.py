"""From what grpc raises to the error table: the caller's half of the translation.

The server's half is the interceptor of rockoon_runtime.wire.
"""

import grpc
from grpc import StatusCode

from rockoon_proto.errors import (
    ERROR_METADATA_KEY,
    Busy,
    Internal,
    RockoonError,
    TimedOut,
    from_wire,
)
from rockoon_proto.v1.errors_pb2 import Error


def from_rpc_error(
    failure: grpc.RpcError, unavailable: type[RockoonError], **details: object
) -> RockoonError:
    """The exception for a failed call.

    Args:
        failure: what grpc raised, its asyncio or its blocking calls.
        unavailable: the row to use when the peer itself did not answer.
        details: what that row's sentence names.
    """
    if isinstance(failure, grpc.aio.AioRpcError | grpc.Call):
        for key, value in failure.trailing_metadata() or ():
            if key == ERROR_METADATA_KEY and isinstance(value, bytes):
                return from_wire(Error.FromString(value))
        status = failure.code()
        if status is StatusCode.DEADLINE_EXCEEDED:
            return TimedOut(f"no answer in time ({unavailable(**details)})", **details)
        if status in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
            return unavailable(**details)
        if "Concurrent RPC limit" in (failure.details() or ""):
            return Busy(reason="the server answers as many calls as it may")
        return Internal(f"{status.name}: {failure.details()}", **details)
    return unavailable(**details)
