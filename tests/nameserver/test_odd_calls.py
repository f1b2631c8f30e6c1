"""Every call of a nameserver, with arbitrary requests."""

import pytest

from rockoon_proto.v1 import access_pb2, logs_pb2, nameserver_pb2
from support.etcd import EtcdServer
from support.nameserver import running_nameserver
from support.odd_calls import sweep
from support.seeds import seeds


@pytest.mark.parametrize("seed", seeds(1))
async def test_whatever_is_asked_the_answer_is_of_the_error_table(
    shared_etcd: EtcdServer, cluster: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nameserver(etcd=(shared_etcd.endpoint,), cluster=cluster) as nameserver:
        for module in (nameserver_pb2, logs_pb2, access_pb2):
            for service in module.DESCRIPTOR.services_by_name.values():
                await sweep(nameserver.channel, service, seed, calls=20)
    assert "Traceback" not in caplog.text
