"""Calls of each service that wait, for attacks by long polls."""

from faults.flood_choice import BROKER, GATEWAY, NAMESERVER, OFFSET
from faults.workload import when_there
from google.protobuf.duration_pb2 import Duration

import rockoon
from rockoon.local import LocalCluster
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.v1.broker_pb2 import PullRequest
from rockoon_proto.v1.nameserver_pb2 import WatchRoutesRequest
from rockoon_proto.v1.offset_pb2 import WatchGroupRequest
from support.http2_attacks import Poll
from support.http2_frames import block

TOPIC = GROUP = "polled"
WAIT_SECONDS = 20

_receive = pb.ReceiveMessageRequest(
    group=d.Resource(name=GROUP),
    message_queue=d.MessageQueue(
        topic=d.Resource(name=TOPIC), id=-1, broker=d.Broker(name="broker-a")
    ),
    filter_expression=d.FilterExpression(type=d.TAG, expression="*"),
    batch_size=16,
    invisible_duration=Duration(seconds=30),
    long_polling_timeout=Duration(seconds=WAIT_SECONDS),
)
POLLS = {
    NAMESERVER: Poll(
        "/rockoon.v1.NameServer/WatchRoutes", WatchRoutesRequest().SerializeToString()
    ),
    BROKER: Poll(
        "/rockoon.v1.Broker/Pull",
        PullRequest(topic=TOPIC, wait_ms=WAIT_SECONDS * 1000).SerializeToString(),
    ),
    OFFSET: Poll(
        "/rockoon.v1.OffsetService/WatchGroup", WatchGroupRequest(group=GROUP).SerializeToString()
    ),
    GATEWAY: Poll(
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
        _receive.SerializeToString(),
        block(
            [
                ("x-mq-client-id", "host@1@0@attacker"),
                ("x-mq-language", "JAVA"),
                ("x-mq-protocol", "v2"),
            ]
        ),
    ),
}


async def make_polled(local: LocalCluster) -> None:
    """Create the topic and the group of these calls."""
    async with rockoon.connect(local.nameservers, tls=local.tls) as cluster:
        await when_there(lambda: cluster.admin.create_topic(TOPIC, queues_per_broker=1))
        await cluster.admin.create_group(GROUP)
