"""Consuming: the protocol's calls of consumers."""

from collections.abc import AsyncGenerator
from typing import Any

from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code


class Consuming:
    """See the module."""

    async def receive(
        self, _request: pb.ReceiveMessageRequest, _call: ClientCall
    ) -> AsyncGenerator[pb.ReceiveMessageResponse, None]:
        raise _missing("ReceiveMessage")
        yield pb.ReceiveMessageResponse()

    async def pull(
        self, _request: pb.PullMessageRequest, _call: ClientCall
    ) -> AsyncGenerator[pb.PullMessageResponse, None]:
        raise _missing("PullMessage")
        yield pb.PullMessageResponse()

    async def query_assignment(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("QueryAssignment")

    async def acknowledge(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("AckMessage")

    async def forward_to_dead_letters(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("ForwardMessageToDeadLetterQueue")

    async def change_invisible(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("ChangeInvisibleDuration")

    async def update_offset(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("UpdateOffset")

    async def get_offset(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("GetOffset")

    async def query_offset(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("QueryOffset")

    async def sync_lite(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("SyncLiteSubscription")


def _missing(rpc: str) -> Refusal:
    return Refusal(Code.NOT_IMPLEMENTED, f"this gateway does not answer {rpc}")
