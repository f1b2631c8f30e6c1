"""Where readers of a running service start: one scenario per complaint that must not return."""

from offset.cluster import TOPIC, Cluster, cluster

from rockoon_proto.v1 import offset_pb2 as pb

__all__ = ["cluster"]


async def test_a_new_group_on_an_old_topic_starts_behind_the_newest_message(
    cluster: Cluster,
) -> None:
    cluster.broker.queue(TOPIC).append(100)
    start = await cluster.start_of()
    assert (start.offset, start.reason) == (100, pb.LAST)
    assert "100" in start.explanation
