"""The QueueStatus call: queue ends, times, and the state of given offsets."""

from collections.abc import Sequence
from functools import partial
from itertools import repeat

from rockoon_broker import cold_reads
from rockoon_broker.broker import Broker
from rockoon_broker.clock import Clock
from rockoon_broker.cooperative import in_turns
from rockoon_broker.store.retention.cleaner import ExpiryForecast
from rockoon_broker.store.retention.expiry import LossCause
from rockoon_broker.store.retention.retention import DeletionReason
from rockoon_core.errors import InvalidArgument, InvalidOffset, RockoonError
from rockoon_proto.v1 import broker_pb2

OFFSET_MAX = 1 << 62

DELETION_REASONS = {
    DeletionReason.EXPIRED: broker_pb2.DELETED_EXPIRED,
    DeletionReason.DISK_PRESSURE: broker_pb2.DELETED_DISK_PRESSURE,
    DeletionReason.WAIT_LIMIT: broker_pb2.DELETED_WAIT_LIMIT,
}
LOSS_CAUSES = {
    LossCause.EXPIRED_AT_HOUR: broker_pb2.LOSS_EXPIRED_AT_HOUR,
    LossCause.EXPIRED: broker_pb2.LOSS_EXPIRED,
    LossCause.DISK_FULL: broker_pb2.LOSS_DISK_FULL,
    LossCause.DISK_FILLS: broker_pb2.LOSS_DISK_FILLS,
}


async def queue_states(
    broker: Broker, request: broker_pb2.QueueStatusRequest, clock: Clock
) -> broker_pb2.QueueStatusReply:
    """Return the state of each queue; unknown values are absent.

    Raises:
        InvalidArgument: there are offsets, but not one per queue.
        InvalidOffset: an offset is out of range.
    """
    offsets: Sequence[int] = request.offsets
    if offsets and len(offsets) != len(request.queues):
        raise InvalidArgument(reason=f"{len(offsets)} offsets for {len(request.queues)} queues")
    for offset in offsets:
        if not 0 <= offset <= OFFSET_MAX:
            raise InvalidOffset(offset=offset)
    forecast = _forecast(broker, clock.now_ms()) if offsets else None
    asked = zip(request.queues, offsets or repeat(None), strict=False)
    route_revision = broker.topics.table.revision
    states = []
    async for queue, of_interest in in_turns(asked, clock):
        state = await cold_reads.answer(partial(_state, broker, queue, request))
        if of_interest is not None and not state.HasField("error"):
            await _add_message_state(broker, state, of_interest, forecast)
        states.append(state)
    as_of_ms = clock.now_ms()
    for state in states:
        if state.HasField("asked_loss_at_ms"):
            state.asked_loss_at_ms = max(state.asked_loss_at_ms, as_of_ms)
    return broker_pb2.QueueStatusReply(
        queues=states,
        as_of_ms=as_of_ms,
        route_revision=route_revision,
        disk=_disk_state(broker, as_of_ms) if offsets else None,
    )


def _disk_state(broker: Broker, now_ms: int) -> broker_pb2.DiskState | None:
    try:
        used_percent = broker.disk_usage.used_percent
        pressure_ms = broker.store.pressure_ms(now_ms)
    except OSError:
        return None
    return broker_pb2.DiskState(
        used_percent=used_percent,
        pressure_at_ms=pressure_ms,
        deletes_unread=broker.settings.disk_pressure_policy == "delete",
        refusal=broker.store.refusal_reason,
    )


def _forecast(broker: Broker, now_ms: int) -> ExpiryForecast | None:
    try:
        return broker.store.loss_forecast(now_ms)
    except OSError:
        return None


def _state(
    broker: Broker, queue: broker_pb2.BrokerQueue, request: broker_pb2.QueueStatusRequest
) -> broker_pb2.QueueState:
    try:
        served = broker.topics.served(queue.topic, queue.queue_id, request.route_revision)
    except RockoonError as refusal:
        return broker_pb2.QueueState(queue=queue, error=refusal.to_wire())
    key = queue.topic, queue.queue_id
    coverage = broker.store.compaction.coverages.get(key)
    # Fields with None stay absent.
    state = broker_pb2.QueueState(
        queue=queue,
        compacted_to_offset=None if coverage is None else coverage.covered_to,
        compacted_records=None if coverage is None else coverage.records,
        writable=served.writable,
    )
    if request.offsets_only:
        state.min_offset = broker.store.min_offset(*key)
        state.max_offset = broker.store.max_offset(*key)
        return state
    status = broker.store.queue_status(
        *key, with_residency=request.with_residency, with_times=not request.without_times
    )
    found = broker_pb2.QueueState(
        min_offset=status.min_offset,
        max_offset=status.max_offset,
        first_store_timestamp_ms=status.first_store_timestamp_ms,
        last_store_timestamp_ms=status.last_store_timestamp_ms,
        first_in_memory_by_distance=status.first_entry_in_memory_by_distance,
        first_pages_resident=status.first_entry_pages_resident,
        next_offset=status.next_offset,
    )
    state.MergeFrom(found)
    return state


async def _add_message_state(
    broker: Broker, state: broker_pb2.QueueState, offset: int, forecast: ExpiryForecast | None
) -> None:
    """Add store time, deletion reason and forecast of the message at an offset, if known."""
    try:
        asked = (state.queue.topic, state.queue.queue_id, offset)
        deletion = await cold_reads.answer(partial(broker.store.deletion_reason, *asked))
        if deletion is not None:
            state.asked_deletion = DELETION_REASONS[deletion]
        stored = await cold_reads.answer(partial(broker.store.stored_at, *asked))
        if stored is None:
            return
        state.asked_store_timestamp_ms = stored.store_timestamp_ms
        if forecast is not None and not stored.lasting:
            loss = forecast.of(stored.physical_offset)
            state.asked_loss_at_ms = loss.at_ms
            state.asked_loss_cause = LOSS_CAUSES[loss.cause]
    except OSError:
        # The disk refuses; a reader of the queue gets the error.
        return
