"""Receipt handles of clients: opaque to them, another one for each delivery.

    orders@broker-a:3/17/4711/1764000000000
    queue            /acquisition/offset/end of its validity, epoch ms; 0: the lease is extended

Any gateway accepts them. The offset service would still accept a late acknowledgement while no
other client has the message; RocketMQ does not, and its clients' programs expect the error. So the
handle has the end of its validity, by the clock of the gateway that issued it.
"""

from typing import NamedTuple

from rockoon.errors import InvalidArgument
from rockoon.receiving.received import ReceiptHandle
from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

RENEWED = 0
HANDLE_CHARACTERS_MAX = 1024


class Handle(NamedTuple):
    """Receipt handle of one delivery of a message."""

    receipt: ReceiptHandle
    valid_until_ms: int

    def text(self) -> str:
        """Return the handle as text, for the client."""
        return f"{self.receipt.text()}/{self.valid_until_ms}"

    @classmethod
    def parse(cls, text: str, now_ms: int) -> "Handle":
        """Parse the handle that a client has sent.

        Args:
            now_ms: epoch milliseconds.

        Raises:
            Refusal: it is malformed or expired: INVALID_RECEIPT_HANDLE.
        """
        receipt, _, until = text.rpartition("/")
        if len(text) > HANDLE_CHARACTERS_MAX or not (until.isascii() and until.isdecimal()):
            raise refused(text[:HANDLE_CHARACTERS_MAX], "is not a receipt handle")
        try:
            handle = cls(ReceiptHandle.parse(receipt), int(until))
        except (InvalidArgument, ValueError) as failure:
            raise refused(text, "is not a receipt handle") from failure
        if handle.valid_until_ms != RENEWED and handle.valid_until_ms <= now_ms:
            raise refused(text, "is not valid any more: its time is over")
        return handle


def refused(text: str, reason: str) -> Refusal:
    """Return the error for an invalid receipt handle."""
    return Refusal(Code.INVALID_RECEIPT_HANDLE, f"{text!r} {reason}")


def settled(text: str) -> Refusal:
    """Return the error for a receipt handle that the offset service does not accept."""
    return refused(text, "is not valid any more: the message is settled, or acquired by another")
