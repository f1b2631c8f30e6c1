"""Receipt handles as clients hold them: opaque to them, another one for each delivery.

    orders@broker-a:3/17/4711/1764000000000
    queue            /acquisition/offset/when its time is over, epoch ms; 0: it is renewed

Any gateway takes them. The offset service would still count an acknowledgement that comes late,
while nobody else has the message; RocketMQ does not, and its clients' programs expect to be told.
So the time is in the handle, by the clock of the gateway that gave it.
"""

from typing import NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.receiving.received import ReceiptHandle
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

RENEWED = 0
HANDLE_CHARACTERS_MAX = 1024


class Handle(NamedTuple):
    """One delivery."""

    receipt: ReceiptHandle
    valid_until_ms: int

    def text(self) -> str:
        """What a client gets."""
        return f"{self.receipt.text()}/{self.valid_until_ms}"

    @classmethod
    def parse(cls, text: str, now_ms: int) -> "Handle":
        """Read what a client has.

        Args:
            text: the client's.
            now_ms: epoch milliseconds.

        Raises:
            Refusal: it is none, or its time is over: INVALID_RECEIPT_HANDLE.
        """
        receipt, _, until = text.rpartition("/")
        if len(text) > HANDLE_CHARACTERS_MAX or not (until.isascii() and until.isdecimal()):
            raise refused(text[:HANDLE_CHARACTERS_MAX], "is no handle of ours")
        try:
            handle = cls(ReceiptHandle.parse(receipt), int(until))
        except (InvalidArgument, ValueError) as failure:
            raise refused(text, "is no handle of ours") from failure
        if handle.valid_until_ms != RENEWED and handle.valid_until_ms <= now_ms:
            raise refused(text, "does not count any more: its time is over")
        return handle


def refused(text: str, reason: str) -> Refusal:
    """What a client is told of a handle that is no good."""
    return Refusal(Code.INVALID_RECEIPT_HANDLE, f"{text!r} {reason}")


def settled(text: str) -> Refusal:
    """What a client is told of a handle that the offset service does not take."""
    return refused(text, "does not count any more: the message was settled, or is another's")
