"""Lost calls: acquire calls without a reply, whose messages must be released.

The offset service may have granted messages in a failed call. If a gateway reports their holders,
the service would extend messages that no receiver has. So a later call names each failed call, and
the service releases its messages.
"""

import secrets
from collections.abc import Iterable

from rockoon.receiving.receive_queue import ReceiverName
from rockoon_core.message_queue import QUEUES_PER_CALL_MAX
from rockoon_proto.v1.in_flight_pb2 import AcquireRequest, ClientName, LostCall

# Pairs of call and receiver. Messages of further lost calls stay invisible until their holders end.
LOST_MAX = 100_000


class LostCalls:
    """Failed calls of one connection that are not reported yet."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._calls = 0
        # Call, group and receiver, in the order of the failures.
        self._lost: dict[tuple[str, str, ReceiverName], None] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    def register(self, request: AcquireRequest) -> None:
        """Set the id of a call, and add reports of lost calls to it."""
        self._calls += 1
        request.call_id = f"{self._process}-{self._calls}"
        for call_id, group, name in list(self._lost)[:QUEUES_PER_CALL_MAX]:
            receiver = ClientName(group=group, client_id=name.receiver, key_id=name.key_id)
            request.lost.append(LostCall(call_id=call_id, receiver=receiver))

    def answered(self, request: AcquireRequest) -> None:
        """Delete the lost calls that a successful call has reported."""
        for each in request.lost:
            of = each.receiver
            name = ReceiverName(of.client_id, of.key_id)
            self._lost.pop((each.call_id, of.group, name), None)

    def failed(self, request: AcquireRequest, held_by: Iterable[tuple[str, ReceiverName]]) -> None:
        """Add a call that failed.

        Args:
            request: the request of the call.
            held_by: group and name of each receiver that may hold messages of the call.
        """
        for group, name in held_by:
            if len(self._lost) < LOST_MAX:
                self._lost[request.call_id, group, name] = None
