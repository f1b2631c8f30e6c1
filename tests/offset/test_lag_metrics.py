"""A group's lag as a metric: of a topic, derived from the known state of its queues."""

from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState, StartReason
from rockoon_offset.in_flight.window import WindowCopy
from rockoon_offset.metrics import of_lag
from rockoon_offset.progress.lag_rows import QueueLag, ReceivedQueue, filled, pulled_offset
from rockoon_offset.progress.records import Progress

GROUP = "billing"
NOTHING = WindowCopy(floor=10, settled=0, acquisitions=(), now_ms=7)
OF_ORDERS = (GROUP, "orders", "false")


def row(topic: str, queue_id: int, **known: object) -> QueueLag:
    return QueueLag(MessageQueue(topic, "broker-a", queue_id))._replace(**known)


def measured(*rows: QueueLag) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(each.metric.name, each.labels): each.value for each in of_lag(GROUP, rows)}


def test_messages_of_queues_are_added_and_of_ages_the_worst_is_told() -> None:
    found = measured(
        row("orders", 0, lag=2, lag_ms=900, in_flight=1, ready=1, queueing_ms=40, lost=3,
            loss_ms=8_000),
        row("orders", 1, lag=5, lag_ms=100, in_flight=2, ready=3, queueing_ms=70, lost=4,
            loss_ms=5_000),
        # No message of it can be lost: retention does not matter.
        row("orders", 2, lag=0, lag_ms=0, in_flight=0, ready=0, queueing_ms=0, loss_ms=10),
        row("%RETRY%billing", 0, lag=1, lag_ms=7, in_flight=0, ready=1, queueing_ms=7),
    )  # fmt: skip
    assert {name: value for (name, labels), value in found.items() if labels == OF_ORDERS} == {
        "rockoon_consumer_lag_unknown_queues": 0,
        "rocketmq_consumer_lag_messages": 7,
        "rocketmq_consumer_lag_latency": 900,
        "rocketmq_consumer_inflight_messages": 3,
        "rocketmq_consumer_ready_messages": 4,
        "rocketmq_consumer_queueing_latency": 70,
        "rockoon_consumer_lost_messages": 7,
        "rockoon_consumer_time_to_loss_seconds": 5.0,
    }
    assert found["rocketmq_consumer_lag_messages", (GROUP, "%RETRY%billing", "true")] == 1


def test_what_is_unknown_of_one_queue_is_counted_and_not_guessed() -> None:
    known = {"lag": 4, "lag_ms": 50, "in_flight": 1, "ready": 3}
    found = measured(
        row("orders", 0, **known),
        row("orders", 1, unknown_because="its broker is away"),
        # Left there by a member that is gone and that alone may read it.
        row("orders", 2, lag=100, lag_ms=1, absent=True),
        row("elsewhere", 0, unknown_because="its broker is away"),
    )
    assert found["rockoon_consumer_lag_unknown_queues", OF_ORDERS] == 1
    assert found["rocketmq_consumer_lag_messages", OF_ORDERS] == 4
    # Its member has not reported its pulled offset: no age, rather than one that is too small.
    assert ("rocketmq_consumer_queueing_latency", OF_ORDERS) not in found
    assert ("rockoon_consumer_time_to_loss_seconds", OF_ORDERS) not in found
    elsewhere = {name for name, labels in found if labels == (GROUP, "elsewhere", "false")}
    assert elsewhere == {"rockoon_consumer_lag_unknown_queues"}


def test_what_receivers_have_is_as_old_as_the_first_message_that_one_may_get() -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    progress = Progress(
        GROUP, queue, 10, 1, 1, 1, "", "", 0, "", 0, StartReason.FIRST, "", 0, gap_total=0
    )
    at_floor = QueueState(0, 50, as_of_ms=9_000, asked_store_ms=1_000)
    at_ready = QueueState(0, 50, as_of_ms=9_000, asked_store_ms=8_000)
    received = ReceivedQueue(
        in_flight=5, settled_above=15, first_ready=30, as_of_ms=7, window=NOTHING
    )
    assert pulled_offset(queue, progress, None, received) == 30
    row = filled(QueueLag(queue), progress, at_floor, None, at_ready, received)
    assert (row.lag, row.lag_ms, row.in_flight, row.ready) == (40, 8_000, 5, 20)
    assert (row.queueing_ms, row.in_flight_as_of_ms, row.settled_above) == (1_000, 7, 15)
    # A failed message waits at the floor.
    received = received._replace(first_ready=10)
    assert pulled_offset(queue, progress, None, received) is None
    assert filled(QueueLag(queue), progress, at_floor, None, None, received).queueing_ms == 8_000
    # All messages are acquired.
    received = ReceivedQueue(
        in_flight=25, settled_above=15, first_ready=50, as_of_ms=7, window=NOTHING
    )
    assert filled(QueueLag(queue), progress, at_floor, None, None, received).queueing_ms == 0
