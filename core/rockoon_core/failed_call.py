"""From what grpc raises to the error table: the caller's half of the translation.

The server's half is the guard of rockoon_runtime.wire.
"""

import grpc
from grpc import StatusCode

from rockoon_core.errors import (
    ERROR_METADATA_KEY,
    Busy,
    Internal,
    NotAuthenticated,
    NotReady,
    RockoonError,
    TimedOut,
    from_wire,
)
from rockoon_core.signature import Credentials
from rockoon_proto.v1.errors_pb2 import Error

# What OpenSSL says when a connection does not come about, and BoringSSL in the channels that gRPC
# makes; and what to look at.
NOT_SIGNED = "the server's certificate is not signed by an authority of the CA file given"
NOT_TAKEN = "the server does not take this side's certificate, or is shown none and wants one"
_NOT_NAMED = (
    "the server's certificate does not bear the host in this address: a server name to expect "
    "instead can be given"
)
_TROUBLES = (
    ("certificate has expired", "the server's certificate has expired"),
    ("certificate is not yet valid", "the server's certificate is not valid yet: check the clocks"),
    ("Hostname mismatch", _NOT_NAMED),
    ("IP address mismatch", _NOT_NAMED),
    ("Hostname Verification Check failed", _NOT_NAMED),
    ("CERTIFICATE_VERIFY_FAILED", NOT_SIGNED),
    # By one of the same name, as when a private authority was made again.
    ("certificate signature failure", NOT_SIGNED),
    ("ALERT_CERTIFICATE_EXPIRED", "this side's certificate has expired"),
    ("ALERT_UNKNOWN_CA", NOT_TAKEN),
    ("ALERT_BAD_CERTIFICATE", NOT_TAKEN),
    ("ALERT_CERTIFICATE_REQUIRED", NOT_TAKEN),
    # TLS 1.3: the refusal comes behind the handshake, and is not taken apart then.
    ("Unwrap failed (TSI_DATA_CORRUPTED)", NOT_TAKEN),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS, and this side was told to"),
)
_HANDSHAKE = "Tls handshake failed"
# All that a caller learns when a server ends a connection before it is open. A server that is just
# being killed does it too.
_ENDED_AT_ONCE = ("failed to connect to all addresses", "Socket closed")
# Of a stream whose connection ends while gRPC's asyncio is sending something on it.
_ENDED_BELOW = "Internal error from Core"
ENDED_AT_ONCE = (
    "the server ends connections at once: either it wants TLS and this side uses none, or it wants "
    "a client certificate that is valid and signed by its own CA (the server's log says which)"
)


def connection_trouble(grpc_details: str) -> str:
    """Why a connection does not come about, as far as TLS has to do with it.

    Args:
        grpc_details: the details of a call that failed with UNAVAILABLE.

    Returns:
        What to look at; empty when TLS has nothing to do with it.
    """
    for sign, meaning in _TROUBLES:
        if sign in grpc_details:
            return meaning
    if _HANDSHAKE in grpc_details:
        return f"the TLS handshake fails: {grpc_details.rpartition(_HANDSHAKE)[2].strip()}"
    return ENDED_AT_ONCE if all(sign in grpc_details for sign in _ENDED_AT_ONCE) else ""


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
        ended_below = status is StatusCode.INTERNAL and failure.details() == _ENDED_BELOW
        if ended_below or status in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
            row = unavailable(**details)
            trouble = connection_trouble(failure.details() or "")
            if not trouble:
                return row
            return unavailable(f"{row}: {trouble}", trouble=trouble, **details)
        if "Concurrent RPC limit" in (failure.details() or ""):
            return Busy(reason="the server answers as many calls as it may")
        return Internal(f"{status.name}: {failure.details()}", **details)
    return unavailable(**details)


def clock_corrected(access: Credentials | None, error: RockoonError) -> bool:
    """Whether a call that was refused because of its time may be made again, by another clock.

    Args:
        access: what signed it; signs by the server's clock from now on.
        error: why the call was refused.
    """
    server_ms = error.details.get("server_ms", "")
    is_of_time = isinstance(error, NotAuthenticated | NotReady) and server_ms.isdecimal()
    if access is None or not is_of_time:
        return False
    return access.correct(int(server_ms))
