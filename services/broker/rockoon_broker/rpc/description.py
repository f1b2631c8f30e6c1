"""The DescribeBroker call: counters and problems of a broker."""

from collections.abc import Iterator

from rockoon_broker.broker import Broker
from rockoon_broker.retries.send_back import SendBacks
from rockoon_broker.rpc.compaction import compaction_state
from rockoon_broker.rpc.transactions import delayed_counts, describe_transactions
from rockoon_broker.store.retention.foreign_store import KEEPS_ALL_FILES
from rockoon_format import kernel
from rockoon_proto.v1 import broker_pb2


def describe(broker: Broker, send_backs: SendBacks) -> broker_pb2.DescribeBrokerReply:
    described = _in_numbers(broker)
    described.messages_sent_back = send_backs.messages_returned
    described.messages_dead = send_backs.messages_dead
    described.delayed.CopyFrom(delayed_counts(broker.pending.delays))
    describe_transactions(broker.pending.transactions, described)
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


def problems_of(broker: Broker) -> Iterator[str]:
    """Yield a sentence per problem that makes sends or reads fail, now or soon."""
    store, pending = broker.store, broker.pending
    if reason := store.refusal_reason:
        yield f"it takes no messages: {reason}"
    if store.keeps_all_files:
        yield KEEPS_ALL_FILES
    if store.retention_held_end:
        held_bytes = store.retention_held_end - store.log_min_offset
        yield f"retention keeps {held_bytes} bytes of the log for copies that lack them"
    if store.removal_failure is not None:
        yield f"old files cannot be deleted, retrying: {store.removal_failure}"
    if store.point_failure is not None:
        yield f"no recovery point can be written: {store.point_failure}"
    if broker.topics.change_failure is not None:
        yield f"a change of topics is delayed: {broker.topics.change_failure}"
    if not broker.topics.routes.following:
        yield "no connected nameserver reaches etcd: changes of topics do not arrive"
    if broker.key_index is not None and broker.key_index.failure is not None:
        yield f"indexing by key is interrupted by the disk: {broker.key_index.failure}"
    if (failure := pending.delays.delivery.work.failure) is not None and store.writable:
        yield f"delayed messages are not delivered: {failure}"
    for damage in broker.pulls.recent_damage():
        yield f"readers found damage in {damage.path}: {damage.reason}"
