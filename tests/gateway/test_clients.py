"""First calls of clients: routes, settings, heartbeats, and their ends."""

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

import rockoon
from gateway.consumers import Consumer
from gateway.gateways import RunningGateway, running_gateway
from gateway.wire_client import WireClient, consumer_settings, message, producer_settings
from rockoon.local.cluster import LocalCluster
from rockoon_gateway.calls import GatewayCall
from rockoon_gateway.clients.client_settings import check_settings
from rockoon_gateway.clients.presence import GatewayClient, Outbox, Presence, check_owner
from rockoon_gateway.codes import Refusal, enum_name
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d
from rockoon_proto.apache.rocketmq.v2 import service_pb2 as pb
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.nameserver_pb2 import CLASSIC, GroupConfig


async def test_a_route_leads_back_to_where_the_client_called(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("tenant%orders", queues_per_broker=3)
    told = d.Endpoints(scheme=d.DOMAIN_NAME, addresses=[d.Address(host="mq.example.org", port=443)])
    topic = d.Resource(resource_namespace="tenant", name="orders")
    answer = await client.call("QueryRoute", pb.QueryRouteRequest(topic=topic, endpoints=told))
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert queue.topic == topic
        assert queue.permission == d.READ_WRITE
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        assert queue.broker.endpoints == told
        assert list(queue.accept_message_types) == [d.NORMAL, d.FIFO, d.DELAY, d.TRANSACTION]


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY"])
async def test_a_route_says_what_the_topic_takes(
    client: WireClient, cluster: rockoon.Cluster, kind: str
) -> None:
    name = f"only-{kind}"
    await cluster.admin.create_topic(name, attributes={"message.type": kind})
    answer = await client.route(name)
    assert list(answer.message_queues[0].accept_message_types) == [d.MessageType.Value(kind)]


async def test_a_mixed_topic_accepts_the_four_types_of_a_topic_without_one(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    await cluster.admin.create_topic("mixed", attributes={"message.type": "MIXED"})
    accepted = (await client.route("mixed")).message_queues[0].accept_message_types
    assert list(accepted) == [d.NORMAL, d.FIFO, d.DELAY, d.TRANSACTION]


async def test_a_topic_that_is_not_there_or_cannot_be(client: WireClient) -> None:
    absent = await client.route("nowhere")
    assert absent.status.code == Code.TOPIC_NOT_FOUND
    assert absent.status.message.startswith("TOPIC_NOT_FOUND")
    for name in ("", "white space", "x" * 128, "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_any"):
        assert (await client.route(name)).status.code == Code.ILLEGAL_TOPIC, name
    request = pb.QueryRouteRequest(topic=d.Resource(name="orders"))
    assert (await client.call("QueryRoute", request)).status.code == Code.ILLEGAL_ACCESS_POINT
    request.endpoints.scheme = d.AddressScheme.ValueType(99)
    request.endpoints.addresses.add(host="h", port=1)
    assert (await client.call("QueryRoute", request)).status.code == Code.ILLEGAL_ACCESS_POINT
    request.endpoints.scheme = d.DOMAIN_NAME
    # The reply repeats them for each queue.
    for host, times in (("h" * 256, 1), ("h", 65)):
        del request.endpoints.addresses[:]
        request.endpoints.addresses.extend([d.Address(host=host, port=1)] * times)
        assert (await client.call("QueryRoute", request)).status.code == Code.ILLEGAL_ACCESS_POINT


async def test_topics_are_created_where_a_setting_says_so(local_cluster: LocalCluster) -> None:
    async with (
        running_gateway(local_cluster, create_topics=True) as gateway,
        WireClient(gateway.address) as client,
    ):
        assert (await client.route("made-when-seen")).status.code == Code.OK
        assert (await client.send(message("made-by-a-send"))).status.code == Code.OK
        assert await Consumer(client, "readers", "made-by-a-receive").receive(wait=0) == []
        assert (await client.route("made-by-a-receive")).status.code == Code.OK


async def test_a_call_without_a_client_id_is_refused(gateway: RunningGateway) -> None:
    async with WireClient(gateway.address, client_id="") as nameless:
        assert (await nameless.route("orders")).status.code == Code.CLIENT_ID_REQUIRED
        stream = nameless.telemetry()
        # Not `tell`: it may have ended before a write.
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.next()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_id_is_not_cut(gateway: RunningGateway) -> None:
    async with (
        WireClient(gateway.address, client_id="c" * 255) as longest,
        WireClient(gateway.address, client_id="c" * 256) as longer,
    ):
        assert (await longest.heartbeat(d.PRODUCER)).status.code == Code.OK
        assert (await longer.heartbeat(d.PRODUCER)).status.code == Code.BAD_REQUEST


async def test_a_producer_is_told_what_it_cannot_do_without(client: WireClient) -> None:
    stream = client.telemetry()
    sent = producer_settings("orders")
    answer = await stream.tell(sent)
    assert answer.status.code == Code.OK
    assert answer.settings.client_type == d.PRODUCER
    assert answer.settings.publishing.topics == sent.publishing.topics
    assert answer.settings.publishing.max_body_size == 4 << 20
    assert answer.settings.publishing.validate_message_type
    assert answer.settings.backoff_policy.max_attempts == 3
    backoff = answer.settings.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()) == (10, 1000)
    await stream.close()


async def test_push_consumers_get_the_delays_that_their_language_understands(
    client: WireClient,
) -> None:
    stream = client.telemetry()
    java = await stream.tell(consumer_settings("readers", "orders"))
    policy = java.settings.backoff_policy
    assert policy.max_attempts == 17
    assert [each.seconds for each in policy.customized_backoff.next][:5] == [1, 5, 10, 30, 60]
    assert len(policy.customized_backoff.next) == 18
    assert java.settings.subscription.group.name == "readers"
    assert java.settings.subscription.receive_batch_size == 32
    assert java.settings.subscription.long_polling_timeout.seconds == 20
    node = await stream.tell(consumer_settings("readers", "orders", language=d.Language.NODE_JS))
    assert node.settings.backoff_policy.HasField("exponential_backoff")
    # It may have begun to wait after the first message arrived.
    again = await stream.next()
    assert again == node
    await stream.close()


async def test_push_consumers_get_the_retries_of_their_group(
    client: WireClient, cluster: rockoon.Cluster
) -> None:
    group = GroupConfig(name="patient", retry_attempts_max=5, retry_delays_ms=[10_000, 60_000])
    await cluster.admin.create_group(group)
    stream = client.telemetry()
    policy = (await stream.tell(consumer_settings("patient", "orders"))).settings.backoff_policy
    assert policy.max_attempts == 6, "the first delivery and five retries"
    assert [each.seconds for each in policy.customized_backoff.next] == [10, 60]
    await stream.close()


async def test_a_group_is_made_when_it_is_first_seen_unless_that_is_forbidden(
    client: WireClient, cluster: rockoon.Cluster, local_cluster: LocalCluster
) -> None:
    stream = client.telemetry()
    await stream.tell(consumer_settings("new-readers", "orders"))
    await stream.close()
    made = (await cluster.admin.get_group("new-readers")).group.config
    assert (made.name, made.new_queue_rule) == ("new-readers", CLASSIC)
    async with (
        running_gateway(local_cluster, create_groups=False) as strict,
        WireClient(strict.address) as other,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await other.telemetry().tell(consumer_settings("unheard-of", "orders"))
        assert "CONSUMER_GROUP_NOT_FOUND" in str(refused.value.details())


async def test_heartbeats_are_welcome_without_settings_as_after_a_restart(
    client: WireClient,
) -> None:
    assert (await client.heartbeat(d.PRODUCER)).status.code == Code.OK
    assert (await client.heartbeat(d.PUSH_CONSUMER, "readers")).status.code == Code.OK
    nothing = await client.heartbeat(d.CLIENT_TYPE_UNSPECIFIED, "readers")
    assert nothing.status.code == Code.OK, "it has said before what it is"
    wrong = await client.heartbeat(d.SIMPLE_CONSUMER, "no group")
    assert wrong.status.code == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_client_that_ends_is_forgotten(client: WireClient) -> None:
    await client.heartbeat(d.PUSH_CONSUMER, "readers")
    request = pb.NotifyClientTerminationRequest(group=d.Resource(name="readers"))
    first = await client.call("NotifyClientTermination", request)
    again = await client.call("NotifyClientTermination", pb.NotifyClientTerminationRequest())
    assert first.status.code == Code.OK
    assert again.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    for client_type in (d.CLIENT_TYPE_UNSPECIFIED, d.ClientType.ValueType(99)):
        unknown = await client.heartbeat(client_type)
        assert unknown.status.code == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_streams_end_when_the_gateway_goes(
    client: WireClient, gateway: RunningGateway
) -> None:
    stream = client.telemetry()
    await stream.tell(producer_settings("orders"))
    gateway.stop.request("it is replaced")
    assert [each async for each in stream.rest()] == []


@pytest.mark.parametrize("count", [1001, 600])
async def test_settings_that_are_too_large_are_refused(client: WireClient, count: int) -> None:
    stream = client.telemetry()
    with pytest.raises(grpc.aio.AioRpcError, match="more than"):
        await stream.tell(producer_settings(*["t" * (127 if count == 600 else 1)] * count))


@pytest.mark.parametrize(
    ("code", "properties"),
    [
        ("INVALID_CLIENT_PROPERTIES", {f"p{number}": "v" for number in range(33)}),
        ("INVALID_CLIENT_PROPERTIES", {"1st": "v"}),
        ("INVALID_CLIENT_PROPERTIES", {"n" * 65: "v"}),
        ("INVALID_CLIENT_PROPERTIES", {"name": "v" * 257}),
        ("INVALID_CLIENT_PROPERTIES", {f"p{number}": "v" * 256 for number in range(16)}),
        ("", {f"p{number}": "v" * 125 for number in range(32)}),
        ("", {"n" * 64: "v" * 256}),
    ],
)
def test_client_properties_have_the_protocols_bounds(code: str, properties: dict[str, str]) -> None:
    settings = d.Settings(client_type=d.PRODUCER, client_properties=properties)
    found = ""
    try:
        check_settings(settings)
    except Refusal as refused:
        found = Code.Name(refused.code)
    assert found == code


async def test_settings_of_an_unknown_type_are_refused(client: WireClient) -> None:
    stream = client.telemetry()
    settings = producer_settings("orders")
    settings.client_type = d.ClientType.ValueType(99)
    with pytest.raises(grpc.aio.AioRpcError, match="UNRECOGNIZED_CLIENT_TYPE"):
        await stream.tell(settings)


async def test_settings_of_all_clients_together_have_a_bound() -> None:
    presence = Presence(30.0, settings_bytes_max=2000)
    calls = [GatewayCall(name, "JAVA", "5", "peer", None, None) for name in "ab"]
    large = producer_settings("t" * 1000)
    presence.record_settings(calls[0], large)
    presence.record_settings(calls[0], large)
    client = presence.record_settings(calls[1], large)
    # The first client does not exclude it: it is known by its other headers.
    assert (client.settings, client.client_type) == (None, d.PRODUCER)
    await presence.terminate(pb.NotifyClientTerminationRequest(), calls[0])
    assert presence.record_settings(calls[1], large).settings is not None


async def test_a_consumer_that_is_too_busy_to_call_is_heard_by_its_connection() -> None:
    presence = Presence(30.0)
    call = GatewayCall("c", "JAVA", "5", "peer", None, None)
    client = presence.record_settings(call, consumer_settings("readers", "orders"))
    signs = [1]
    client.outboxes.append(Outbox(call, lambda: signs[0]))
    presence.check_signs_of_life()
    presence.heard.clear()
    presence.check_signs_of_life()
    assert presence.heard == {}
    signs[0] += 1
    presence.check_signs_of_life()
    assert list(presence.heard) == [(client, "readers")]


async def test_a_goodbye_needs_the_group_of_a_client_that_is_not_known_here() -> None:
    presence = Presence(30.0)
    left: list[tuple[str, list[str]]] = []
    presence.on_goodbye.append(lambda client, groups: left.append((client.key_id, list(groups))))
    call = GatewayCall("c", "JAVA", "5", "peer", None, None)
    with pytest.raises(Refusal):
        await presence.terminate(pb.NotifyClientTerminationRequest(), call)
    await presence.terminate(
        pb.NotifyClientTerminationRequest(group=d.Resource(name="readers")), call
    )
    presence.record_call(call, "more")
    await presence.heartbeat(
        pb.HeartbeatRequest(client_type=d.PUSH_CONSUMER, group=d.Resource(name="readers")), call
    )
    await presence.terminate(pb.NotifyClientTerminationRequest(), call)
    assert left == [("", ["readers"]), ("", ["more", "readers"])]
    assert presence.heard == {}


async def test_of_settings_only_what_is_looked_at_is_kept() -> None:
    presence = Presence(30.0)
    settings = producer_settings("orders")
    settings.backoff_policy.customized_backoff.next.extend([Duration()] * 1000)
    settings.user_agent.hostname = "host"
    settings.user_agent.version = 9 * "version"
    settings.subscription.group.name = 10_000 * "g"
    client = presence.record_settings(GatewayCall("c", "JAVA", "5", "peer", None, None), settings)
    assert client.settings is not None
    assert client.settings.publishing == settings.publishing
    assert client.settings.user_agent == settings.user_agent
    settings.user_agent.platform = 1000 * "p"
    client = presence.record_settings(GatewayCall("c", "JAVA", "5", "peer", None, None), settings)
    assert client.settings is not None
    assert (client.settings.ByteSize() < 1000, client.group) == (True, "")
    assert not client.settings.HasField("backoff_policy")


async def test_words_that_the_protocol_does_not_know_are_their_numbers() -> None:
    assert enum_name(d.Language, 99) == "99"
    assert enum_name(d.ClientType, d.PRODUCER) == "PRODUCER"


def test_a_client_id_is_the_access_keys_that_came_with_it_first() -> None:
    client = GatewayClient("c", "peer", "JAVA", "5", 0.0)
    client.key_id = "first"
    unsigned = GatewayCall("c", "JAVA", "5", "peer", None, None)
    with pytest.raises(Refusal) as refused:
        check_owner(client, unsigned)
    assert refused.value.code == Code.UNAUTHORIZED
    client.key_id = ""
    check_owner(client, unsigned)
