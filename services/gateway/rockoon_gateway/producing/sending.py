"""Sending: the protocol's calls of producers."""

from typing import Any

from rockoon_gateway.calls import ClientCall
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code


class Sending:
    """See the module."""

    async def send(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("SendMessage")

    async def end_transaction(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("EndTransaction")

    async def recall(self, _request: Any, _call: ClientCall) -> Any:
        raise _missing("RecallMessage")


def _missing(rpc: str) -> Refusal:
    return Refusal(Code.NOT_IMPLEMENTED, f"this gateway does not answer {rpc}")
