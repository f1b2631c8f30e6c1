"""Commands of consoles to push consumers of each language, by the Admin service of the server.

docs/use/gateway-consumers.md has the same table of codes.
"""

from collections.abc import Mapping
from typing import Any

import grpc

from conformance.scene import Differs, Scene, expect
from rockoon_proto.apache.rocketmq.v2 import admin_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Resource

METADATA = (("x-mq-client-id", "console"),)
# Timeout of a call by the official clients.
CALL_SECONDS = 3.0
# Codes of PrintThreadStackTrace and of VerifyMessage.
CODES: Mapping[str, tuple[Code, Code]] = {
    "Java": (Code.OK, Code.OK),
    "Python": (Code.NOT_IMPLEMENTED, Code.NOT_IMPLEMENTED),
    "Node.js": (Code.OK, Code.NOT_IMPLEMENTED),
    "Go": (Code.OK, Code.NOT_IMPLEMENTED),
    "C++": (Code.OK, Code.OK),
}


def console_commands(scene: Scene) -> None:
    """A push consumer is asked for its thread stacks and to verify a message."""
    topic, group = scene.topic(), scene.group()
    sent = scene.sender(topic).send("verify me")
    scene.listener(topic, group).wait(1)
    named = Resource(name=group)
    with grpc.insecure_channel(scene.target.endpoint) as channel:
        stub: Any = AdminStub(channel)

        def ask(rpc: str, request: Any) -> Any:
            try:
                return getattr(stub, rpc)(request, metadata=METADATA, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                raise Differs(f"{rpc}: {error}") from error

        described = ask("DescribeSubscription", pb.DescribeSubscriptionRequest(group=named))
        (client,) = described.client_subscription_info
        target = {"group": named, "client_id": client.client_info.client_id}
        stacks = pb.PrintThreadStackTraceRequest(**target)
        verify = pb.VerifyMessageRequest(
            topic=Resource(name=topic), message_id=sent["id"], **target
        )
        answers = [ask("PrintThreadStackTrace", stacks), ask("VerifyMessage", verify)]
    found = [Code.Name(answer.status.code) for answer in answers]
    expect(found, [Code.Name(code) for code in CODES[scene.language]], "codes")
