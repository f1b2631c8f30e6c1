"""Calls a service with arbitrary requests, and checks that no reply is an internal error."""

import random
from typing import Any

import grpc
from grpc import StatusCode, aio

from rockoon_core.errors import ERROR_METADATA_KEY
from support.odd_messages import odd_message, unary_methods
from support.waiting import DEADLINE_SECONDS

# An unforeseen bug, or an error of gRPC before our code.
NEVER = (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED)

# Methods that correctly wait for some seconds, and are tested elsewhere.
WAITED_FOR = ("wait_ms", "route_revision", "min_revision", "group_incarnation")


async def sweep(channel: aio.Channel, service: Any, seed: int, calls: int) -> None:
    """Call each unary method several times.

    Args:
        channel: channel to the service.
        service: its descriptor.
        seed: seed of the requests.
        calls: number of calls of each method.
    """
    randomness = random.Random(seed)
    for method in unary_methods(service):
        call = channel.unary_unary(f"/{service.full_name}/{method.name}")
        for _ in range(calls):
            request = odd_message(method.input_type, randomness)
            for field in WAITED_FOR:
                if hasattr(request, field) and randomness.random() < 0.95:
                    request.ClearField(field)
            await answered(call, request.SerializeToString(), f"{method.name} of {request}")
        await answered(call, b"\xff\xff\xff no protobuf", f"{method.name} of no protobuf")


async def answered(call: Any, raw: bytes, what: str) -> None:
    try:
        await call(raw, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as failure:
        text = f"{failure.code()} {failure.details()} for {what[:3000]}"
        assert failure.code() not in NEVER, text
        # Each error of a service has its row of the table; errors of gRPC itself have none.
        metadata = dict(failure.trailing_metadata() or ())
        assert ERROR_METADATA_KEY in metadata or failure.code() is StatusCode.UNIMPLEMENTED, text
        if raw.startswith(b"\xff\xff\xff"):
            assert failure.code() is StatusCode.INVALID_ARGUMENT, text
