"""Every call of a broker, with arbitrary requests."""

from pathlib import Path

import pytest

from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import running_broker
from support.broker_routes import BrokerRoutes
from support.odd_calls import sweep
from support.seeds import seeds


@pytest.mark.parametrize("seed", seeds(1))
async def test_whatever_is_asked_the_answer_is_of_the_error_table(
    tmp_path: Path, nameserver: BrokerRoutes, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    await nameserver.create_topic("T", {"broker-a": 4})
    async with running_broker(tmp_path, [nameserver.address]) as broker:
        await broker.append("T", 0, b"a", b"b", keys="a")
        await sweep(broker.channel, pb.DESCRIPTOR.services_by_name["Broker"], seed, calls=40)
        assert (await broker.append("T", 1, b"a")).messages == 1
    assert "Traceback" not in caplog.text
