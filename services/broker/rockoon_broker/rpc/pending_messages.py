"""Calls for transactions and delayed messages: decode, call one method, encode."""

from collections.abc import AsyncIterator

from rockoon_broker.delays.delays import Delays
from rockoon_broker.transactions.ends import TransactionEnding
from rockoon_broker.transactions.transactions import Transactions
from rockoon_core.errors import InvalidArgument, MessageNotFound
from rockoon_format.names import CLUSTER, group_fault, topic_need
from rockoon_proto.v1 import broker_pb2 as pb
from rockoon_runtime.access.callers import current_caller

LISTED_DEFAULT = 100
LISTED_MAX = 1024
CLIENT_ID_CHARACTERS_MAX = 255

_ENDINGS: dict[int, TransactionEnding] = {
    pb.COMMIT: TransactionEnding.COMMITTED,
    pb.ROLLBACK: TransactionEnding.ROLLED_BACK,
}


async def end_transaction(
    transactions: Transactions, request: pb.EndTransactionRequest, store_host: bytes
) -> pb.EndTransactionReply:
    """End a transaction for a producer; see `Ends.end`."""
    check_group(request.producer_group)
    place = (request.physical_offset, request.queue_offset, request.producer_group)
    ending = _ENDINGS.get(request.resolution)
    if ending is None:
        if request.resolution != pb.UNKNOWN or not request.from_check:
            raise InvalidArgument(reason="a transaction ends with COMMIT or ROLLBACK")
        transactions.ends.check_waiting(*place)
        return pb.EndTransactionReply()
    outcome = await transactions.ends.end(*place, ending)
    if ending is TransactionEnding.ROLLED_BACK:
        return pb.EndTransactionReply()
    return pb.EndTransactionReply(
        committed=pb.Appended(
            first_queue_offset=outcome.queue_offset,
            first_physical_offset=outcome.position,
            messages=1,
            store_timestamp_ms=outcome.store_timestamp_ms,
            store_host=store_host,
        )
    )


async def check_transactions(
    transactions: Transactions, request: pb.CheckTransactionsRequest
) -> AsyncIterator[pb.TransactionCheck]:
    """Send checks of transactions to a producer; see `Asking.checks`."""
    check_group(request.producer_group)
    if not 1 <= len(request.client_id) <= CLIENT_ID_CHARACTERS_MAX:
        count = len(request.client_id)
        raise InvalidArgument(
            reason=f"a client id of {count} characters, not 1 to {CLIENT_ID_CHARACTERS_MAX}"
        )
    async for check in transactions.asking.checks(request.producer_group, request.client_id):
        if check is None:
            yield pb.TransactionCheck()
            continue
        yield pb.TransactionCheck(
            queue_offset=check.half.queue_offset,
            physical_offset=check.half.position,
            frame=check.frame,
            checks=check.half.checks - 1,
        )


def list_transactions(
    transactions: Transactions, request: pb.ListTransactionsRequest, now_ms: int
) -> pb.ListTransactionsReply:
    """List pending transactions; see `Transactions.listed`."""
    if not 0 <= request.max_messages <= LISTED_MAX:
        raise InvalidArgument(reason=f"{request.max_messages} messages, not 1 to {LISTED_MAX}")
    reply = pb.ListTransactionsReply(pending=len(transactions), as_of_ms=now_ms)
    for listed in transactions.listed(request.max_messages or LISTED_DEFAULT):
        reply.transactions.add(
            transaction_id=listed.facts.transaction_id,
            topic=listed.facts.topic,
            queue_id=listed.facts.queue_id,
            producer_group=listed.facts.group,
            queue_offset=listed.half.queue_offset,
            physical_offset=listed.half.position,
            store_timestamp_ms=listed.store_timestamp_ms,
            checks=listed.half.checks,
        )
    return reply


def describe_transactions(transactions: Transactions, reply: pb.DescribeBrokerReply) -> None:
    """Set the transaction fields of DescribeBroker's reply."""
    counts = transactions.ends.counts
    reply.transactions_pending = len(transactions)
    reply.transactions_committed = counts.committed
    reply.transactions_rolled_back = counts.rolled_back
    reply.transactions_given_up = counts.given_up
    reply.transaction_checks_sent = transactions.asking.checks_sent
    reply.transactions_lost = counts.lost


def check_group(group: str) -> None:
    """Raise InvalidArgument if a producer group name is invalid."""
    if fault := group_fault(group):
        raise InvalidArgument(reason=fault)


async def cancel_delayed(delays: Delays, request: pb.CancelDelayedRequest) -> pb.CancelDelayedReply:
    """Cancel a delayed message; see `Delays.cancel`. The caller needs the permission to send to the
    message's topic."""
    caller = current_caller()

    def check(topic: str) -> None:
        if request.topic and request.topic != topic:
            raise MessageNotFound(position=request.message_id)
        if caller is None or caller.may("write", CLUSTER):
            return
        if not topic or not caller.may(*topic_need("see", topic)):
            # The caller may not learn whether the message exists.
            raise MessageNotFound(position=request.message_id)
        caller.require(*topic_need("write", topic))

    await delays.cancel(request.message_id, check)
    return pb.CancelDelayedReply()


def list_delayed(
    delays: Delays, request: pb.ListDelayedRequest, now_ms: int
) -> pb.ListDelayedReply:
    """List the delayed messages that are due next; see `Delays.next_due`."""
    if not 0 <= request.max_messages <= LISTED_MAX:
        raise InvalidArgument(reason=f"{request.max_messages} messages, not 1 to {LISTED_MAX}")
    waiting = delays.next_due(request.max_messages or LISTED_DEFAULT)
    return pb.ListDelayedReply(
        messages=[
            pb.PendingDelayed(
                message_id=one.message_id,
                topic=one.topic,
                queue_id=one.queue_id,
                unique_id=one.unique_id,
                deliver_at_ms=one.deliver_at_ms,
                level=one.level,
                store_timestamp_ms=one.store_timestamp_ms,
            )
            for one in waiting
        ],
        counts=delayed_counts(delays),
        as_of_ms=now_ms,
    )


def delayed_counts(delays: Delays) -> pb.DelayedCounts:
    pending = delays.pending_by_level()
    counts = delays.delivery.counts
    return pb.DelayedCounts(
        pending_timed=pending.pop(0, 0),
        pending_by_level={level: count for level, count in pending.items() if count},
        delivered=counts.delivered,
        cancelled=counts.cancelled,
        undeliverable=counts.undeliverable,
        lost=counts.lost,
        lag_ms=counts.lag_ms,
        rolled=counts.rolled,
    )
