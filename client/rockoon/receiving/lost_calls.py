"""Acquire calls whose answers did not come: their messages are released.

The offset service may have granted messages by a failed call. If a gateway reports their holders,
the service would extend messages that no receiver has. So each failed call is named in a later one.
"""

import secrets
from collections.abc import Iterable

from rockoon.receiving.line import ReceiverName
from rockoon_core.bulk_calls import QUEUES_PER_CALL_MAX
from rockoon_proto.v1.in_flight_pb2 import AcquireRequest, ClientName, LostCall

# Of calls and their receivers. Beyond it, the messages wait for the end of their holders' time.
LOST_MAX = 100_000


class LostCalls:
    """The calls of one connection that have failed and are not reported yet."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._calls = 0
        # Call, group and receiver, in the order of the failures.
        self._lost: dict[tuple[str, str, ReceiverName], None] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    def begin(self, request: AcquireRequest) -> None:
        """Name a call, and report lost ones with it."""
        self._calls += 1
        request.call_id = f"{self._process}-{self._calls}"
        for call_id, group, name in list(self._lost)[:QUEUES_PER_CALL_MAX]:
            receiver = ClientName(group=group, client_id=name.receiver, key_id=name.key_id)
            request.lost.append(LostCall(call_id=call_id, receiver=receiver))

    def answered(self, request: AcquireRequest) -> None:
        """A call was answered: the lost calls that it named are released."""
        for each in request.lost:
            of = each.receiver
            name = ReceiverName(of.client_id, of.key_id)
            self._lost.pop((each.call_id, of.group, name), None)

    def failed(self, request: AcquireRequest, held_by: Iterable[tuple[str, ReceiverName]]) -> None:
        """A call was not answered.

        Args:
            request: of the call.
            held_by: group and name of each receiver that may hold messages by it.
        """
        for group, name in held_by:
            if len(self._lost) < LOST_MAX:
                self._lost[request.call_id, group, name] = None
