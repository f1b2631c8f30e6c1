"""The part of a fake offset service that keeps messages in flight: it has none to give."""

from typing import Any

from rockoon_core.errors import InvalidArgument
from rockoon_core.message_queue import ACQUIRES_PER_CALL_MAX
from rockoon_proto.v1 import in_flight_pb2 as wire
from rockoon_proto.v1.in_flight_pb2_grpc import InFlightServiceServicer


class FakeInFlight(InFlightServiceServicer):
    """Grants nothing to any wish.

    Attributes:
        wished: the groups of each Acquire call.
    """

    def __init__(self) -> None:
        self.wished: list[list[str]] = []

    async def Acquire(self, request: Any, _: Any) -> wire.AcquireReply:
        if len(request.wanted) > ACQUIRES_PER_CALL_MAX:
            raise InvalidArgument(reason=f"more than {ACQUIRES_PER_CALL_MAX} entries in one call")
        self.wished.append([each.group for each in request.wanted])
        return wire.AcquireReply(granted=[wire.Granted() for _ in request.wanted])
