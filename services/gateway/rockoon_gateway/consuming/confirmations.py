"""Reports deliveries that clients have received, and returns messages that they may have lost.

    reply written ─┬─▶ the client acknowledged a PING sent after it: the delivery is reported
                   └─▶ the connection ended or the client reset the call: returned uncounted, after
                       a part of the lease

The client may have received a reply whose connection ended before the acknowledgement. So it can
acknowledge its messages during that part of the lease.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from rockoon.receiving.received import ReceiptHandle
from rockoon_gateway.clients.reports import Reports
from rockoon_gateway.consuming.receiving import Writer
from rockoon_gateway.consuming.returned_messages import ReturnedMessages

# Part of the lease. At its end the messages become visible and the delivery counts as an attempt.
RETURN_SHARE = 3 / 4


class Confirmations:
    """Waits for clients to receive their messages; see the module.

    Args:
        reports: reports deliveries.
        giving_back: returns messages.
    """

    def __init__(self, reports: Reports, returned_messages: ReturnedMessages) -> None:
        self._reports = reports
        self._returned_messages = returned_messages

    def await_receipt(self, writer: Writer, group: str, receipts: Sequence[ReceiptHandle]) -> None:
        """Report written messages once their client has received them, or return them."""
        writer.on_received(partial(self._ended, group, receipts))

    def _ended(self, group: str, receipts: Sequence[ReceiptHandle], is_received: bool) -> None:
        if is_received:
            self._reports.delivered(receipts)
            return
        asyncio.get_running_loop().call_later(
            RETURN_SHARE * self._reports.lease_seconds,
            self._returned_messages.return_later,
            group,
            receipts,
        )
