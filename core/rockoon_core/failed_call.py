"""Conversion of gRPC's exceptions to the error table, for callers.

The server's counterpart is the guard of rockoon_runtime.wire.
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

# Texts of OpenSSL for a failed connection, and of BoringSSL in gRPC's own channels; each with its
# meaning and remedy.
NOT_SIGNED = "the server's certificate is not signed by an authority of the CA file given"
NOT_TAKEN = "the server does not accept this side's certificate, or requires one and got none"
_NOT_NAMED = (
    "the server's certificate does not have the host in this address: another expected server name "
    "can be set"
)
_TROUBLES = (
    ("certificate has expired", "the server's certificate has expired"),
    ("certificate is not yet valid", "the server's certificate is not valid yet: check the clocks"),
    ("Hostname mismatch", _NOT_NAMED),
    ("IP address mismatch", _NOT_NAMED),
    ("Hostname Verification Check failed", _NOT_NAMED),
    ("CERTIFICATE_VERIFY_FAILED", NOT_SIGNED),
    # Signed by another authority of the same name, for example a recreated private one.
    ("certificate signature failure", NOT_SIGNED),
    ("ALERT_CERTIFICATE_EXPIRED", "this side's certificate has expired"),
    ("ALERT_UNKNOWN_CA", NOT_TAKEN),
    ("ALERT_BAD_CERTIFICATE", NOT_TAKEN),
    ("ALERT_CERTIFICATE_REQUIRED", NOT_TAKEN),
    # TLS 1.3: the refusal arrives after the handshake, without a reason.
    ("Unwrap failed (TSI_DATA_CORRUPTED)", NOT_TAKEN),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS, and this side is set to use it"),
)
_HANDSHAKE = "Tls handshake failed"
# Text for a connection that a server closes before it is open. A server that is being killed causes
# it too.
_ENDED_AT_ONCE = ("failed to connect to all addresses", "Socket closed")
# Text for a stream whose connection ends while gRPC's asyncio layer sends.
_ENDED_BELOW = "Internal error from Core"
ENDED_AT_ONCE = (
    "the server closes connections immediately: either it requires TLS and this side uses none, or "
    "it requires a valid client certificate of its own CA (the server's log states which)"
)


def connection_trouble(grpc_details: str) -> str:
    """Return the TLS reason why a connection failed.

    Args:
        grpc_details: the details of a call that failed with UNAVAILABLE.

    Returns:
        A text for people; empty if TLS is not the reason.
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
    """Return the exception for a failed call.

    Args:
        failure: exception of gRPC's asyncio or blocking calls.
        unavailable: error class to return if the peer did not reply.
        details: values for the text of `unavailable`.
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
            return Busy(reason="the server has reached its limit of concurrent calls")
        return Internal(f"{status.name}: {failure.details()}", **details)
    return unavailable(**details)


def may_sign_again(access: Credentials | None, error: RockoonError) -> bool:
    """Return whether a refused call may be repeated with a new signature.

    It may if the credentials had another secret or another clock when they signed the call.

    Args:
        access: credentials that signed the call. If the call was refused because of its time, they
            use the server's clock from now on. If its signature was wrong, they read their secret
            again.
        error: refusal of the server.
    """
    if access is not None and isinstance(error, NotAuthenticated):
        kind = error.details.get("kind")
        if kind == "replaced secret" or (kind == "wrong signature" and access.was_renewed()):
            return True
    server_ms = error.details.get("server_ms", "")
    is_of_time = isinstance(error, NotAuthenticated | NotReady) and server_ms.isdecimal()
    if access is None or not is_of_time:
        return False
    return access.correct(int(server_ms))
