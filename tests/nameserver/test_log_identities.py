"""With mutual TLS a replica calls only about the log that its certificate names."""

from typing import Any

import pytest

from rockoon_core.errors import InvalidArgument, LogNotFound, WrongIdentity
from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.follower import EtcdFollower
from rockoon_nameserver.keyspace import Keyspace
from rockoon_nameserver.log_servicer import LogStateService
from rockoon_nameserver.logs import Logs
from rockoon_proto.v1 import logs_pb2 as pb
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_runtime.tls import NodeIdentities
from support.etcd import EtcdServer

CALLS: tuple[tuple[str, type[Any]], ...] = (
    ("SuspectLeader", pb.SuspectLeaderRequest),
    ("ReportLog", pb.ReportLogRequest),
    ("ConfirmEpoch", pb.ConfirmEpochRequest),
    ("RecordCommittedEnd", pb.RecordCommittedEndRequest),
    ("ChangeInSync", pb.ChangeInSyncRequest),
    ("HandOver", pb.HandOverRequest),
    ("Resign", pb.ResignRequest),
)


class CallOf:
    """Return a call over a connection with a certificate; `name` empty: without one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def auth_context(self) -> dict[str, list[bytes]]:
        if not self._name:
            return {}
        return {"x509_pem_cert": [b"verified"], "x509_common_name": [self._name.encode()]}


async def test_no_call_of_a_replica_is_taken_from_the_node_of_another_log(
    shared_etcd: EtcdServer, cluster: str
) -> None:
    keyspace = Keyspace(cluster)
    async with Etcd([shared_etcd.endpoint]) as etcd:
        follower = EtcdFollower(etcd, keyspace, lambda: 0.0)
        service = LogStateService(Logs(etcd, keyspace), follower, NodeIdentities("{name}"))
        caller = pb.ReplicaCall(kind=BROKER, log="broker-a", replica_id="a")
        for method, request in CALLS:
            for name in ("broker-b", ""):
                with pytest.raises(WrongIdentity, match="'broker-a'"):
                    await getattr(service, method)(request(caller=caller), CallOf(name))
            # The right one is asked about a log that does not exist.
            with pytest.raises(LogNotFound):
                await getattr(service, method)(request(caller=caller), CallOf("broker-a"))
        other = pb.WatchLogsRequest(kind=BROKER, logs=["broker-a", "broker-b"])
        with pytest.raises(WrongIdentity):
            await anext(service.WatchLogs(other, CallOf("broker-a")))
        everything = pb.WatchLogsRequest(kind=BROKER)
        with pytest.raises(InvalidArgument, match="must name the logs"):
            await anext(service.WatchLogs(everything, CallOf("broker-a")))
