"""The DescribeBroker call: counters and problems of a broker."""

from rockoon_broker.broker import Broker
from rockoon_broker.problems import problems_of
from rockoon_broker.retries.send_back import SendBacks
from rockoon_broker.rpc.compaction import compaction_state
from rockoon_broker.rpc.delays import delayed_counts
from rockoon_broker.rpc.transactions import describe_transactions
from rockoon_format import kernel
from rockoon_proto.v1 import broker_pb2


def describe(broker: Broker, send_backs: SendBacks) -> broker_pb2.DescribeBrokerReply:
    """Return the whole reply."""
    described = _in_numbers(broker)
    described.messages_sent_back = send_backs.messages_returned
    described.messages_dead = send_backs.messages_dead
    described.delayed.CopyFrom(delayed_counts(broker.aside.delays))
    describe_transactions(broker.aside.transactions, described)
    described.compaction.CopyFrom(compaction_state(broker))
    described.problems.extend(problems_of(broker))
    return described


def _in_numbers(broker: Broker) -> broker_pb2.DescribeBrokerReply:
    store, served = broker.store, broker.topics.table.served
    return broker_pb2.DescribeBrokerReply(
        name=broker.settings.name,
        cluster=broker.settings.cluster,
        log_min_offset=store.log_min_offset,
        log_max_offset=store.appended_end,
        log_synced_offset=store.durable_end,
        flush=broker.settings.flush,
        writable=store.writable and not store.write_failure,
        not_writable_reason=store.refusal_reason,
        disk_used_ratio=broker.disk_used_ratio,
        topics=len(served),
        queues=sum(topic.queues for topic in served),
        recovery_records_scanned=store.recovery.records_scanned,
        recovery_bytes_scanned=store.recovery.bytes_scanned,
        recovery_seconds=broker.recovery_seconds,
        recovery_was_clean=store.recovery.was_clean,
        route_revision=broker.topics.table.revision,
        messages_appended=broker.appends.messages,
        messages_pulled=broker.pulls.messages,
        bytes_appended=broker.appends.bytes,
        bytes_pulled=broker.pulls.bytes,
        waiting_pulls=broker.waiting_pulls,
        kernel=kernel.name(),
        lost_bytes=store.recovery.lost_bytes,
        index_end_offset=0 if broker.key_index is None else broker.key_index.end_offset,
    )
