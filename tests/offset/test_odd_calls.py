"""Every call of the offset service, with arbitrary requests."""

import pytest
from grpc import aio
from offset.cluster import TOPIC, Cluster

from rockoon_proto.v1 import offset_pb2 as pb
from support.odd_calls import sweep
from support.seeds import seeds


@pytest.mark.parametrize("seed", seeds(1))
async def test_whatever_is_asked_the_answer_is_of_the_error_table(
    cluster: Cluster, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.queue(TOPIC).append(10)
    async with aio.insecure_channel(cluster.address) as channel:
        await sweep(channel, pb.DESCRIPTOR.services_by_name["OffsetService"], seed, calls=40)
    await cluster.start_of()
    assert "Traceback" not in caplog.text
