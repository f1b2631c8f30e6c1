"""The lag of a group: never negative, and never estimated."""

import asyncio
import urllib.request
from typing import Any

import pytest
from offset.cluster import GROUP, TOPIC, Cluster

from rockoon.local.directory import choose_port
from rockoon_core.errors import ERROR_METADATA_KEY
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.broker_pb2 import LOSS_EXPIRED_AT_HOUR
from rockoon_proto.v1.errors_pb2 import Error
from support.waiting import DEADLINE_SECONDS

FIRST = ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)


def code(failure: pytest.ExceptionInfo[Exception]) -> str:
    metadata: Any = failure.value
    (raw,) = [v for k, v in metadata.trailing_metadata() if k == ERROR_METADATA_KEY]
    return Error.Code.Name(Error.FromString(raw).code)


async def started(cluster: Cluster) -> int:
    """Queue 0 has 20 to 99, the first half stored at 1000 and the rest at 4000; progress 50."""
    queue = cluster.broker.queue(TOPIC)
    queue.append(60, time_ms=1000)
    queue.append(40, time_ms=4000)
    epoch = (await cluster.start_of(policy=FIRST)).epoch
    await cluster.commit(50, epoch)
    queue.expire_below(20)
    await cluster.until_revision()
    return epoch


async def lag(cluster: Cluster) -> pb.LagReply:
    return await cluster.stub.Lag(pb.LagRequest(group=GROUP))  # type: ignore[no-any-return]


async def test_lag_is_what_is_left_to_read_and_how_old_it_is(cluster: Cluster) -> None:
    await started(cluster)
    await cluster.start_of(1)
    reply = await lag(cluster)
    first, second = reply.queues
    assert (first.min_offset, first.max_offset) == (20, 100)
    assert (first.committed_offset, first.lag) == (50, 50)
    assert first.as_of_ms == cluster.broker.now_ms
    assert reply.as_of_ms > 0
    # The message at 50 was stored at 1000; the broker's clock shows 10000.
    assert first.lag_ms == 9000
    assert first.owner == "m1"
    assert (second.lag, second.lag_ms) == (0, 0)
    assert (reply.total_lag, reply.complete) == (50, True)


async def test_a_queue_without_progress_has_no_lag_and_a_silent_broker_an_unknown_one(
    cluster: Cluster,
) -> None:
    await started(cluster)
    reply = await lag(cluster)
    assert reply.queues[1].known
    assert not reply.queues[1].HasField("lag")
    await cluster.broker.stop()
    reply = await lag(cluster)
    assert [queue.known for queue in reply.queues] == [False, False]
    assert "does not answer" in reply.queues[0].unknown_because
    assert (reply.total_lag, reply.complete) == (0, False)
    await cluster.broker.start()


async def test_lag_is_never_negative(cluster: Cluster) -> None:
    await started(cluster)
    cluster.broker.queue(TOPIC).lose_from(30)
    reply = await lag(cluster)
    assert (reply.queues[0].lag, reply.queues[0].lag_ms) == (0, 0)


async def beat(cluster: Cluster, *positions: tuple[int, int, int], expression: str = "*") -> None:
    """Return a heartbeat of member m1; positions are (queue id, next offset, epoch)."""
    await cluster.stub.Heartbeat(
        pb.HeartbeatRequest(
            group=GROUP,
            member_id="m1",
            instance="i1",
            mode=pb.CLUSTERING,
            subscriptions=[pb.TopicSubscription(topic=TOPIC, expression=expression)],
            positions=[
                pb.PulledPosition(queue=cluster.ref(queue_id), next_offset=offset, epoch=epoch)
                for queue_id, offset, epoch in positions
            ],
        )
    )


async def test_lag_is_split_into_what_its_member_has_and_what_nobody_has(cluster: Cluster) -> None:
    await started(cluster)
    epochs = [start.epoch for start in await cluster.resolve(0, 1)]

    async def split() -> list[int | None]:
        row = (await lag(cluster)).queues[0]
        assert row.lag == 50
        return [
            getattr(row, name) if row.HasField(name) else None for name in ("in_flight", "ready")
        ]

    # Its owner is not a live member: no member has messages.
    assert await split() == [0, 50]
    await beat(cluster)
    assert await split() == [None, None]
    await beat(cluster, (0, 80, epochs[0]))
    assert await split() == [30, 20]
    assert (await lag(cluster)).queues[0].in_flight_as_of_ms > 0
    await beat(cluster, (0, 40, epochs[0]))
    assert await split() == [0, 50]
    await beat(cluster, (0, 1_000_000, epochs[0]))
    assert await split() == [50, 0]
    await beat(cluster, (0, 80, epochs[0] + 1))
    assert await split() == [None, None]
    await beat(cluster, (1, 80, epochs[1]))
    assert await split() == [None, None]


async def parts(cluster: Cluster) -> tuple[int, int, int, int]:
    """Return lost, settled above, in flight and ready of queue 0; their sum is its lag."""
    row = (await lag(cluster)).queues[0]
    found = (row.lost, row.settled_above, row.in_flight, row.ready)
    assert sum(found) == row.lag
    return found


async def test_what_a_member_has_finished_behind_a_slow_message_is_not_in_flight(
    cluster: Cluster,
) -> None:
    await started(cluster)
    epoch = (await cluster.start_of()).epoch
    position = pb.PulledPosition(queue=cluster.ref(0), next_offset=90, epoch=epoch, unfinished=1)
    await cluster.stub.Heartbeat(
        pb.HeartbeatRequest(
            group=GROUP, member_id="m1", instance="i1", mode=pb.CLUSTERING, positions=[position]
        )
    )
    assert await parts(cluster) == (0, 39, 1, 10)
    # Committed since the heartbeat: fewer pulled messages are in flight.
    await cluster.commit(90, epoch)
    assert await parts(cluster) == (0, 0, 0, 10)


async def test_what_retention_deleted_is_not_ready(cluster: Cluster) -> None:
    await started(cluster)
    epoch = (await cluster.start_of()).epoch
    queue = cluster.broker.queue(TOPIC)
    queue.expire_below(70)
    assert await parts(cluster) == (20, 0, 0, 30)
    await beat(cluster, (0, 80, epoch))
    assert await parts(cluster) == (20, 0, 10, 20)
    await beat(cluster, (0, 60, epoch))
    assert await parts(cluster) == (20, 0, 0, 30)
    queue.expire_below(100)
    assert await parts(cluster) == (50, 0, 0, 0)


async def test_lag_says_when_retention_overtakes_it_and_what_it_took_already(
    cluster: Cluster,
) -> None:
    await started(cluster)
    await cluster.start_of(1)
    cluster.broker.queue(TOPIC, 0).loss_in_ms = 7200_000
    first, second = (await lag(cluster)).queues
    assert (first.loss_ms, first.lost) == (7200_000, 0)
    assert first.loss_cause == LOSS_EXPIRED_AT_HOUR
    assert first.as_of_ms == cluster.broker.now_ms
    assert not second.HasField("loss_ms")
    cluster.broker.queue(TOPIC, 0).expire_below(70)
    first = (await lag(cluster)).queues[0]
    assert (first.committed_offset, first.lag, first.lost) == (50, 50, 20)
    assert first.loss_ms == 7200_000


async def test_lag_says_what_its_readers_leave_out(cluster: Cluster) -> None:
    await started(cluster)
    assert {row.filter for row in (await lag(cluster)).queues} == {""}
    await beat(cluster, expression="TagA || TagB")
    assert {row.filter for row in (await lag(cluster)).queues} == {"TagA || TagB"}


async def test_lag_of_a_group_that_does_not_exist(cluster: Cluster) -> None:
    with pytest.raises(Exception, match="does not exist"):
        await cluster.stub.Lag(pb.LagRequest(group="nobody"))


async def test_how_long_messages_wait_for_a_reader_is_told_only_when_it_is_known(
    cluster: Cluster,
) -> None:
    """Queue 0 has 50 to 99 to read: the first 10 stored at 1000, the rest at 4000; now is 10000."""
    page = f"127.0.0.1:{choose_port()}"
    cluster.more_settings = {"metrics_listen": page}
    await cluster.restart_service()
    await started(cluster)
    start = await cluster.start_of()

    def queueing_ms() -> float | None:
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=DEADLINE_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith("rocketmq_consumer_queueing_latency{")]
        return float(found[0].rpartition(" ")[2]) if found else None

    assert await asyncio.to_thread(queueing_ms) == 9000, "nobody has pulled anything"
    await beat(cluster)
    assert await asyncio.to_thread(queueing_ms) is None, "its member has not told"
    await beat(cluster, (0, 55, start.epoch))
    assert await asyncio.to_thread(queueing_ms) == 9000
    await beat(cluster, (0, 60, start.epoch))
    assert await asyncio.to_thread(queueing_ms) == 6000
    await beat(cluster, (0, 100, start.epoch))
    assert await asyncio.to_thread(queueing_ms) == 0
